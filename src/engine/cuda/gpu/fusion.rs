//! Whether a product's epilogue is fused into it: only where the library computes it rightly, and not slower than the
//! product alone and a kernel after it.
//!
//! A fused epilogue is a way to be faster, so no fault of it ends a run: what the library refuses or computes
//! wrongly is left out, and a note says so.

use super::super::device::{Address, Fused, Operand, Product, Way};
use super::columns::is_in_place;
use super::products::RUNS;
use super::{Device, Gpu, GraphState};
use crate::cuda::choices::Way as Times;
use crate::cuda::{Event, Memory};
use crate::engine::EngineError;
use crate::engine::cuda::kernels::{self, gelu};
use crate::engine::memory::Element;
use crate::model::init::random_bits;

/// Rows, columns and length of the sums of the product on which an epilogue is tried.
const SIDE: usize = 64;

/// What the proof of an epilogue depends on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct Kind {
    epilogue: Epilogue,
    factors: Element,
    result: Element,
    transposed: [bool; 2],
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Epilogue {
    Bias,
    BiasGelu,
    GeluSlope,
    Residual,
}

impl Kind {
    /// `None` for a product without epilogue.
    fn of(product: &Product) -> Option<Self> {
        let epilogue = match product.fused {
            Fused::None => return None,
            Fused::Bias(_) => Epilogue::Bias,
            Fused::BiasGelu { .. } => Epilogue::BiasGelu,
            Fused::GeluSlope { .. } => Epilogue::GeluSlope,
            Fused::Residual(_) => Epilogue::Residual,
        };
        let transposed = [product.a.transposed, product.b.transposed];
        Some(Self { epilogue, factors: product.a.element, result: product.out.element, transposed })
    }
}

impl Gpu {
    /// Whether to compute something as `fused`, and a note for each reason not to.
    pub(super) fn fuses_or_notes(&mut self, fused: Way, apart: Way) -> bool {
        let whole = fused.product;
        if self.context.make_current().is_err() {
            return false;
        }
        // addresses of one shape may be aligned differently
        if !self.products.is_aligned(whole) {
            self.note(format!("not fused: {}: addresses or rows are not aligned", self.products.name(whole)));
            return false;
        }
        if let Some(decided) = self.products.decided(whole) {
            return decided;
        }
        // nothing can be tried while recording; the product is new as well, so the recording will be given up
        if self.state != GraphState::Running {
            return false;
        }
        let fused = match self.judge(fused, apart) {
            Ok(fused) => fused,
            Err(reason) => {
                self.note(format!("not fused: {}: {reason}", self.products.name(whole)));
                false
            }
        };
        self.products.decide(whole, fused);
        fused
    }

    /// Whether the fused product is faster; an error is the reason why it cannot be used.
    fn judge(&mut self, fused: Way, apart: Way) -> Result<bool, String> {
        let whole = fused.product;
        self.settle().map_err(|error| error.to_string())?;
        if !self.products.proposes(whole).map_err(|error| error.to_string())? {
            return Err("cuBLASLt has no algorithm for it".to_owned());
        }
        let Some(kind) = Kind::of(whole) else { return Ok(true) };
        let proved = match self.proved.get(&kind) {
            Some(&proved) => proved,
            None => {
                let outcome = self.prove(kind);
                self.proved.insert(kind, outcome.is_ok());
                outcome?;
                true
            }
        };
        if !proved {
            return Err("cuBLASLt failed to compute a small product with this epilogue".to_owned());
        }
        // fails where all proposals are refused
        self.products.prepare(whole, &self.stream).map_err(|error| error.to_string())?;
        if !self.products.remembers() || is_in_place(whole) {
            return Ok(true);
        }
        let way = match self.products.way(whole) {
            Some(way) => way,
            None => {
                let [separate, fused] = [apart, fused].map(|way| {
                    self.seconds_of(|gpu| {
                        gpu.product(way.product)?;
                        way.then.map_or(Ok(()), |kernel| gpu.launch(kernel))
                    })
                });
                let separate = separate.map_err(|error| error.to_string())?;
                let fused = fused.map_err(|error| error.to_string())?;
                let way = Times {
                    fused: fused <= separate,
                    fused_microseconds: fused * 1e6,
                    separate_microseconds: separate * 1e6,
                };
                self.products.keep_way(whole, way)
            }
        };
        if !way.fused {
            let (fused, separate) = (way.fused_microseconds, way.separate_microseconds);
            return Err(format!("it took {fused:.1} us, and {separate:.1} us as a product and a kernel"));
        }
        Ok(true)
    }

    /// Seconds that some work takes on the device, on average over a few runs after one that is not counted.
    /// The device's clock measures them.
    ///
    /// # Errors
    /// Where the work or the device fails.
    pub fn seconds_of(
        &mut self,
        mut work: impl FnMut(&mut Self) -> Result<(), EngineError>,
    ) -> Result<f64, EngineError> {
        let (begin, end) = (Event::timed(&self.context)?, Event::timed(&self.context)?);
        work(self)?;
        begin.record(&self.stream)?;
        for _ in 0..RUNS {
            work(self)?;
        }
        end.record(&self.stream)?;
        end.synchronize()?;
        Ok(begin.seconds_to(&end)? / f64::from(RUNS))
    }

    /// Computes a small product with this epilogue and compares it with the same product on the host.
    fn prove(&mut self, kind: Kind) -> Result<(), String> {
        let precision = self.products.precision();
        let numbers = |key: u64, element: Element| -> (Vec<f32>, Vec<u8>) {
            let value = |i: usize| (random_bits(key, i as u64) % 2001) as f32 / 2000.0 - 0.5;
            let values: Vec<f32> = (0..SIDE * SIDE).map(value).collect();
            let bytes = kernels::bytes(&values, element, precision);
            (kernels::floats(&bytes, element, precision), bytes)
        };
        let place = |key: u64, element: Element| -> Result<(Vec<f32>, Memory), String> {
            let (values, bytes) = numbers(key, element);
            let memory =
                Memory::new(&self.context, bytes.len(), "trying an epilogue").map_err(|e| e.to_string())?;
            self.stream.upload_now(&bytes, memory.address()).map_err(|e| e.to_string())?;
            Ok((values, memory))
        };
        let ((a, a_at), (b, b_at)) = (place(1, kind.factors)?, place(2, kind.factors)?);
        let ((mut bias, bias_at), (mut aux, aux_at)) = (place(3, kind.result)?, place(4, kind.result)?);
        let (_, out_at) = place(5, kind.result)?;
        let operand = |memory: &Memory, element, transposed| Operand {
            address: Address(memory.address()),
            element,
            stride: SIDE,
            stack: 0,
            transposed,
        };
        let (bias_address, aux_address) = (Address(bias_at.address()), Address(aux_at.address()));
        let fused = match kind.epilogue {
            Epilogue::Bias => Fused::Bias(bias_address),
            Epilogue::BiasGelu => Fused::BiasGelu { bias: bias_address, sum: aux_address },
            Epilogue::GeluSlope => Fused::GeluSlope { at: aux_address, sums: bias_address },
            Epilogue::Residual => Fused::Residual(aux_address),
        };
        let [a_transposed, b_transposed] = kind.transposed;
        let product = Product {
            m: SIDE,
            n: SIDE,
            k: SIDE,
            count: 1,
            a: operand(&a_at, kind.factors, a_transposed),
            b: operand(&b_at, kind.factors, b_transposed),
            out: operand(&out_at, kind.result, false),
            alpha: 1.0,
            accumulate: false,
            fused,
            tf32: None,
        };
        self.products.run_first(&product, &self.stream).map_err(|error| error.to_string())?;
        let at = |values: &[f32], transposed: bool, row: usize, col: usize| {
            f64::from(values[if transposed { col * SIDE + row } else { row * SIDE + col }])
        };
        let mut expected = vec![0.0; SIDE * SIDE];
        for (i, expected) in expected.iter_mut().enumerate() {
            let (row, col) = (i / SIDE, i % SIDE);
            let terms = (0..SIDE).map(|k| at(&a, a_transposed, row, k) * at(&b, b_transposed, k, col));
            let mut value: f64 = terms.sum();
            if matches!(kind.epilogue, Epilogue::Bias | Epilogue::BiasGelu) {
                value += f64::from(bias[col]);
            }
            *expected = match kind.epilogue {
                Epilogue::Bias => value as f32,
                Epilogue::BiasGelu => {
                    aux[i] = value as f32;
                    gelu(value).0 as f32
                }
                Epilogue::GeluSlope => (value * gelu(f64::from(aux[i])).1) as f32,
                Epilogue::Residual => (value + f64::from(aux[i])) as f32,
            };
        }
        if kind.epilogue == Epilogue::GeluSlope {
            for (col, sum) in bias.iter_mut().take(SIDE).enumerate() {
                *sum = expected[col..].iter().step_by(SIDE).sum();
            }
        }
        // one step of bf16 near 4 is 1/32, and 1/16 near 8, which sums of columns reach; fp32 sums of 64 terms differ
        // by far less
        let (step, steps) = if kind.result == Element::Half { (0.04, 2.5) } else { (1e-3, 10.0) };
        for (what, memory, expected, bound) in [
            ("result", &out_at, &expected, step),
            ("auxiliary matrix", &aux_at, &aux, step),
            ("bias or its gradient", &bias_at, &bias, step * steps),
        ] {
            let mut bytes = vec![0; SIDE * SIDE * kind.result.bytes()];
            self.stream.download(memory.address(), &mut bytes).map_err(|error| error.to_string())?;
            let found = kernels::floats(&bytes, kind.result, precision);
            // a NaN is not close
            let is_close = |i: usize| (found[i] - expected[i]).abs() <= bound;
            let wrong = (0..expected.len()).find(|&i| !is_close(i));
            if let Some(i) = wrong {
                return Err(format!(
                    "cuBLASLt computes this epilogue wrongly: element {i} of the {what} of a small product is {}, \
                     not {}",
                    found[i], expected[i]
                ));
            }
        }
        Ok(())
    }
}
