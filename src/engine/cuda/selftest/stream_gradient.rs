//! The gradient of the residual stream as numbers, however a plan stores it.

use crate::engine::EngineError;
use crate::engine::fused::backend::Backend;
use crate::engine::memory::{Element, MemoryPlan, Span};
use half::bf16;

/// Reads it.
///
/// # Errors
/// The device's failure.
pub fn read(backend: &mut dyn Backend, plan: &MemoryPlan) -> Result<Vec<f32>, EngineError> {
    let (dx, low) = spans(plan);
    let Some(first) = low.filter(|_| plan.config.halves_gradient()) else {
        return Ok(backend.download(dx)?.into_owned());
    };
    let [firsts, rests] = [halves_of(backend, first)?, halves_of(backend, dx)?];
    Ok(firsts.into_iter().zip(rests).map(|(first, rest)| whole(first, rest)).collect())
}

/// Overwrites it.
///
/// # Errors
/// The device's failure.
pub fn write(backend: &mut dyn Backend, plan: &MemoryPlan, values: &[f32]) -> Result<(), EngineError> {
    let (dx, low) = spans(plan);
    let Some(first) = low.filter(|_| plan.config.halves_gradient()) else {
        return backend.write(dx, values);
    };
    let halves: Vec<(u16, u16)> = values.iter().copied().map(halves).collect();
    let words = |of: fn(&(u16, u16)) -> u16| -> Vec<f32> {
        let pair = |pair: &[(u16, u16)]| {
            let [low, high] = [0, 1].map(|i| pair.get(i).map_or(0, |halves| u32::from(of(halves))));
            f32::from_bits(high << 16 | low)
        };
        halves.chunks(2).map(pair).collect()
    };
    backend.write(as_words(first), &words(|halves| halves.0))?;
    backend.write(as_words(dx), &words(|halves| halves.1))
}

fn spans(plan: &MemoryPlan) -> (Span, Option<Span>) {
    (plan.arena.dx.expect("training"), plan.arena.dx_low)
}

/// Numbers of 2 bytes as words of 4, which are copied bit by bit. Spans begin at multiples of both, and the gap behind
/// one has room for the last word.
fn as_words(span: Span) -> Span {
    Span { element: Element::F32, start: span.start / 2, len: span.len.div_ceil(2), ..span }
}

fn halves_of(backend: &mut dyn Backend, span: Span) -> Result<Vec<u16>, EngineError> {
    let words = backend.download(as_words(span))?;
    let halves = words.iter().map(|word| word.to_bits()).flat_map(|bits| [bits as u16, (bits >> 16) as u16]);
    Ok(halves.take(span.len).collect())
}

/// The number rounded to bf16, and what its bits are further on: `Halves` of the kernels.
fn halves(x: f32) -> (u16, u16) {
    let first = bf16::from_f32(x).to_bits();
    let on = x.to_bits().wrapping_sub(u32::from(first) << 16).cast_signed();
    (first, on.min(0x7fff) as u16)
}

fn whole(first: u16, rest: u16) -> f32 {
    let on = i32::from(rest.cast_signed()).cast_unsigned();
    f32::from_bits((u32::from(first) << 16).wrapping_add(on))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn halves_are_the_number_but_for_the_last_bit_of_one_in_the_middle(bits: u32) {
            let x = f32::from_bits(bits);
            let (first, rest) = halves(x);
            let again = whole(first, rest);
            if x.is_nan() {
                prop_assert!(again.is_nan());
            } else {
                let lost = bits.wrapping_sub(again.to_bits());
                prop_assert!(lost <= u32::from(bits & 0xffff == 0x8000), "{x:e} becomes {again:e}");
            }
        }
    }

    #[test]
    fn numbers_in_the_middle_and_beyond_the_largest_operand_come_back() {
        for bits in
            [0x3f80_8000, 0x3f81_8000, 0xbf80_8000, 0x7f7f_ffff, 0x7f7f_8000, 0xff80_0000, 1, 0x8000_0000]
        {
            let (first, rest) = halves(f32::from_bits(bits));
            assert!(bits.wrapping_sub(whole(first, rest).to_bits()) <= 1, "{bits:#x}");
        }
    }
}
