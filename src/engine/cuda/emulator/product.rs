//! Matrix products of the emulated device, by the CPU.

use super::EmulatedDevice;
use crate::engine::EngineError;
use crate::engine::cuda::device::{Fused, Operand, Product};
use crate::engine::cuda::kernels;
use crate::engine::memory::Element;
use crate::recipe::Precision;

impl EmulatedDevice {
    /// Gathers `rows` x `cols` elements of an operand, as it is read.
    fn gather(
        &self,
        operand: &Operand,
        index: usize,
        rows: usize,
        cols: usize,
    ) -> Result<Vec<f32>, EngineError> {
        let (stored_rows, stored_cols) = if operand.transposed { (cols, rows) } else { (rows, cols) };
        let first = operand.address.offset(index * operand.stack * operand.element.bytes());
        let mut stored = Vec::with_capacity(rows * cols);
        for row in 0..stored_rows {
            let at = first.offset(row * operand.stride * operand.element.bytes());
            stored.extend(self.load(at, operand.element, stored_cols)?);
        }
        if !operand.transposed {
            return Ok(stored);
        }
        Ok((0..rows * cols).map(|i| stored[i % cols * rows + i / cols]).collect())
    }

    /// Carries out a matrix product, with what is fused into it.
    pub(super) fn multiply(&mut self, product: &Product) -> Result<(), EngineError> {
        let Product { m, n, k, count, ref a, ref b, out, alpha, accumulate, fused, tf32 } = *product;
        let tf32 = tf32.unwrap_or(self.precision == Precision::Tf32);
        for index in 0..count {
            let (mut a, mut b) = (self.gather(a, index, m, k)?, self.gather(b, index, k, n)?);
            if tf32 {
                a.iter_mut().chain(&mut b).for_each(|x| *x = keep_ten_bits(*x));
            }
            let mut result = vec![0.0; m * n];
            multiply(&mut result, &a, &b, [m, n, k]);
            let mut sums = vec![0.0; n];
            for (row, values) in result.chunks_exact_mut(n).enumerate() {
                values.iter_mut().for_each(|x| *x *= alpha);
                let place = (index * out.stack + row * out.stride) * out.element.bytes();
                let at = out.address.offset(place);
                if accumulate {
                    let before = self.load(at, out.element, n)?;
                    values.iter_mut().zip(before).for_each(|(x, before)| *x += before);
                }
                self.follow(fused, values, place, out.element)?;
                self.store(at, out.element, values)?;
                sums.iter_mut().zip(values).for_each(|(sum, x)| *sum += *x);
            }
            if let Fused::GeluSlope { sums: to, .. } = fused {
                self.store(to, out.element, &sums)?;
            }
        }
        Ok(())
    }

    /// Applies what is fused into a product to one row of its result, which begins `place` bytes behind the
    /// result's first.
    fn follow(
        &mut self,
        fused: Fused,
        values: &mut [f32],
        place: usize,
        element: Element,
    ) -> Result<(), EngineError> {
        let n = values.len();
        match fused {
            Fused::None => {}
            Fused::Bias(bias) => {
                let bias = self.load(bias, element, n)?;
                values.iter_mut().zip(bias).for_each(|(x, bias)| *x += bias);
            }
            Fused::BiasGelu { bias, sum } => {
                let bias = self.load(bias, element, n)?;
                values.iter_mut().zip(bias).for_each(|(x, bias)| *x += bias);
                self.store(sum.offset(place), element, values)?;
                values.iter_mut().for_each(|x| *x = kernels::gelu(f64::from(*x)).0 as f32);
            }
            Fused::GeluSlope { at, .. } => {
                let fc = self.load(at.offset(place), element, n)?;
                values.iter_mut().zip(fc).for_each(|(x, fc)| *x *= kernels::gelu(f64::from(fc)).1 as f32);
            }
            Fused::Residual(x) => {
                let added = self.load(x.offset(place), element, n)?;
                values.iter_mut().zip(added).for_each(|(x, added)| *x += added);
            }
        }
        Ok(())
    }
}

/// `out[m, n] = a[m, k] · b[k, n]`.
fn multiply(out: &mut [f32], a: &[f32], b: &[f32], [m, n, k]: [usize; 3]) {
    for (out, a) in out.chunks_exact_mut(n).zip(a.chunks_exact(k)).take(m) {
        for (&x, b) in a.iter().zip(b.chunks_exact(n)) {
            out.iter_mut().zip(b).for_each(|(out, b)| *out += x * b);
        }
    }
}

/// Rounds an fp32 operand as a tensor core does in tf32.
fn keep_ten_bits(x: f32) -> f32 {
    if x.is_finite() { f32::from_bits(x.to_bits().wrapping_add(0x1000) & !0x1fff) } else { x }
}
