//! Parquet's hybrid of runs and packed numbers: levels, and indices into a dictionary.

/// Numbers of a few bits each.
pub(super) struct Runs<'a> {
    rest: &'a [u8],
    width: u32,
    /// Numbers that are left of the run.
    left: u64,
    /// The number that the run repeats; `None` for packed ones.
    repeated: Option<u32>,
    /// Bits of `rest` that are used up.
    bit: usize,
}

impl<'a> Runs<'a> {
    /// Numbers of `width` bits.
    pub(super) fn new(rest: &'a [u8], width: u32) -> Self {
        Self { rest, width, left: 0, repeated: None, bit: 0 }
    }

    /// Reads the head of the next run.
    fn begin(&mut self) -> Option<()> {
        self.rest = self.rest.get(self.bit.div_ceil(8)..)?;
        self.bit = 0;
        let mut head = 0u64;
        for shift in (0..35).step_by(7) {
            let (byte, rest) = self.rest.split_first()?;
            self.rest = rest;
            head |= u64::from(byte & 0x7f) << shift;
            if byte & 0x80 == 0 {
                break;
            }
        }
        self.left = if head & 1 == 1 { (head >> 1) * 8 } else { head >> 1 };
        self.repeated = None;
        if head & 1 == 0 {
            let (bytes, rest) = self.rest.split_at_checked(self.width.div_ceil(8) as usize)?;
            self.repeated = Some(bytes.iter().rev().fold(0, |value, byte| (value << 8) | u32::from(*byte)));
            self.rest = rest;
        }
        Some(())
    }
}

impl Iterator for Runs<'_> {
    type Item = u32;

    fn next(&mut self) -> Option<u32> {
        if self.width > 32 {
            return None;
        }
        while self.left == 0 {
            self.begin()?;
        }
        self.left -= 1;
        if self.repeated.is_some() {
            return self.repeated;
        }
        let mut value = 0u64;
        let bytes = self.rest.get(self.bit / 8..(self.bit + self.width as usize).div_ceil(8))?;
        for (place, byte) in bytes.iter().enumerate() {
            value |= u64::from(*byte) << (8 * place);
        }
        value = (value >> (self.bit % 8)) & ((1 << self.width) - 1);
        self.bit += self.width as usize;
        Some(value as u32)
    }
}

/// Levels that stand behind their length in 32 bits, and what follows them.
pub(super) fn with_length(page: &[u8]) -> Option<(&[u8], &[u8])> {
    let (len, rest) = page.split_first_chunk::<4>()?;
    rest.split_at_checked(u32::from_le_bytes(*len) as usize)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_and_packed_numbers_are_read() {
        // 0 to 7 packed in 3 bits each, as the format's own document has them, then five times 4
        let bytes = [0b11, 0b1000_1000, 0b1100_0110, 0b1111_1010, 10, 4];
        let read: Vec<u32> = Runs::new(&bytes, 3).collect();
        assert_eq!(read, [0, 1, 2, 3, 4, 5, 6, 7, 4, 4, 4, 4, 4]);
        assert_eq!(Runs::new(&[6, 0x34, 0x12], 13).collect::<Vec<_>>(), [0x1234; 3]);
        assert_eq!(Runs::new(&bytes[..3], 3).count(), 5, "as far as there are bits");
        assert_eq!(Runs::new(&bytes, 33).next(), None);
    }
}
