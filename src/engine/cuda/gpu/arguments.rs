//! Packs kernel arguments: one after the other, each aligned to its size.

use crate::engine::cuda::device::Arg;

/// Packs arguments by the rules of C structs, as `CU_LAUNCH_PARAM_BUFFER_POINTER` requires.
pub(super) fn pack(args: &[Arg], into: &mut Vec<u8>) {
    into.clear();
    for arg in args {
        match arg {
            Arg::Pointer(address) => put(into, address.0.to_ne_bytes()),
            Arg::Int(value) => put(into, value.to_ne_bytes()),
            Arg::Long(value) => put(into, value.to_ne_bytes()),
            Arg::Float(value) => put(into, value.to_ne_bytes()),
            Arg::Double(value) => put(into, value.to_ne_bytes()),
            Arg::TooLarge(size) => panic!("{size} was not refused before the launch"),
        }
    }
}

fn put<const SIZE: usize>(into: &mut Vec<u8>, bytes: [u8; SIZE]) {
    into.resize(into.len().next_multiple_of(SIZE), 0);
    into.extend_from_slice(&bytes);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::cuda::device::Address;

    #[test]
    fn arguments_lie_where_a_struct_of_them_has_its_fields() {
        #[repr(C)]
        struct Fields {
            small: i32,
            pointer: u64,
            float: f32,
            int: i32,
            last: f32,
            double: f64,
            long: i64,
        }
        let args = [
            Arg::Int(1),
            Arg::Pointer(Address(2)),
            Arg::Float(3.0),
            Arg::Int(-4),
            Arg::Float(5.0),
            Arg::Double(6.0),
            Arg::Long(-7),
        ];
        let mut packed = vec![9; 3];
        pack(&args, &mut packed);
        assert_eq!(packed.len(), size_of::<Fields>());
        let at = |offset: usize, bytes: &[u8]| assert_eq!(&packed[offset..][..bytes.len()], bytes);
        at(std::mem::offset_of!(Fields, small), &1i32.to_ne_bytes());
        at(std::mem::offset_of!(Fields, pointer), &2u64.to_ne_bytes());
        at(std::mem::offset_of!(Fields, float), &3.0f32.to_ne_bytes());
        at(std::mem::offset_of!(Fields, int), &(-4i32).to_ne_bytes());
        at(std::mem::offset_of!(Fields, last), &5.0f32.to_ne_bytes());
        at(std::mem::offset_of!(Fields, double), &6.0f64.to_ne_bytes());
        at(std::mem::offset_of!(Fields, long), &(-7i64).to_ne_bytes());
        pack(&[Arg::Long(1), Arg::Int(2)], &mut packed);
        assert_eq!(packed.len(), 12, "no padding follows the last");
    }
}
