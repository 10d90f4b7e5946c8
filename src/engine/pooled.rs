//! An engine with threads of its own.

use super::{Applied, Batch, Engine, EngineError, State, Update};
use crate::model::ParamLayout;
use std::borrow::Cow;

/// Runs every call of an engine on a pool, so that its kernels find the pool's threads and nothing is handed over
/// inside a step.
pub struct Pooled<E> {
    pool: rayon::ThreadPool,
    inner: E,
}

impl<E: Engine + Send> Pooled<E> {
    /// Makes an engine on a new pool of `threads` workers that flush denormal numbers to zero: AdamW's moments decay
    /// into them, and arithmetic on denormals is many times slower.
    pub fn new(
        threads: usize,
        make: impl FnOnce() -> Result<E, EngineError> + Send,
    ) -> Result<Self, EngineError> {
        let pool = rayon::ThreadPoolBuilder::new()
            .num_threads(threads)
            .thread_name(|i| format!("runner-cpu-{i}"))
            .start_handler(|_| flush_denormals())
            .build()
            .map_err(|e| EngineError::Unsupported(format!("could not start {threads} threads: {e}")))?;
        let inner = pool.install(make)?;
        Ok(Self { pool, inner })
    }

    /// The engine that runs on the pool.
    pub fn inner(&self) -> &E {
        &self.inner
    }

    /// The same, to change.
    pub fn inner_mut(&mut self) -> &mut E {
        &mut self.inner
    }

    /// Runs something on the pool, as the engine's own calls are.
    pub fn run<R: Send>(&mut self, call: impl FnOnce(&mut E) -> R + Send) -> R {
        self.pool.install(|| call(&mut self.inner))
    }
}

impl<E: Engine + Send> Engine for Pooled<E> {
    fn layout(&self) -> &ParamLayout {
        self.inner.layout()
    }

    fn read(&mut self, state: State) -> Result<Cow<'_, [f32]>, EngineError> {
        self.inner.read(state)
    }

    fn write(&mut self, state: State, values: &[f32]) -> Result<(), EngineError> {
        self.pool.install(|| self.inner.write(state, values))
    }

    fn accumulate(&mut self, batch: Batch, weight: f64) -> Result<(), EngineError> {
        self.pool.install(|| self.inner.accumulate(batch, weight))
    }

    fn accumulate_last(&mut self, batch: Batch, weight: f64) -> Result<(), EngineError> {
        self.pool.install(|| self.inner.accumulate_last(batch, weight))
    }

    fn loss(&mut self) -> Result<f64, EngineError> {
        self.inner.loss()
    }

    fn update(&mut self, update: &Update) -> Result<(), EngineError> {
        self.pool.install(|| self.inner.update(update))
    }

    fn applied(&mut self) -> Result<Applied, EngineError> {
        self.inner.applied()
    }

    fn grad_norm(&mut self, loss_scale: f64) -> Result<f64, EngineError> {
        self.inner.grad_norm(loss_scale)
    }

    fn first_not_finite(&mut self, state: State) -> Result<Option<usize>, EngineError> {
        self.inner.first_not_finite(state)
    }

    fn evaluate(&mut self, batch: Batch) -> Result<f64, EngineError> {
        self.pool.install(|| self.inner.evaluate(batch))
    }

    fn logits(&mut self, tokens: &[u32], last_only: bool) -> Result<Vec<f32>, EngineError> {
        self.pool.install(|| self.inner.logits(tokens, last_only))
    }
}

fn flush_denormals() {
    #[cfg(target_arch = "x86_64")]
    {
        const FLUSH_TO_ZERO: u32 = 1 << 15;
        const DENORMALS_ARE_ZERO: u32 = 1 << 6;
        let mut control = 0u32;
        // SAFETY: reads and writes this thread's SSE control register through a live local; only the two flags that
        // concern denormals change, no exception is unmasked. The compiler assumes the default environment, so it may
        // fold constants as if denormals were kept; no result here depends on a denormal either way.
        unsafe {
            std::arch::asm!("stmxcsr [{}]", in(reg) &raw mut control, options(nostack));
            control |= FLUSH_TO_ZERO | DENORMALS_ARE_ZERO;
            std::arch::asm!("ldmxcsr [{}]", in(reg) &raw const control, options(nostack, readonly));
        }
    }
    #[cfg(target_arch = "aarch64")]
    {
        const FLUSH_TO_ZERO: u64 = 1 << 24;
        let mut control: u64;
        // SAFETY: reads and writes this thread's floating-point control register; only the flush flag changes.
        unsafe {
            std::arch::asm!("mrs {}, fpcr", out(reg) control, options(nomem, nostack));
            control |= FLUSH_TO_ZERO;
            std::arch::asm!("msr fpcr, {}", in(reg) control, options(nomem, nostack));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::dfdx::DfdxEngine;
    use crate::model::Dims;
    use dfdx::tensor::Cpu;

    #[test]
    fn workers_flush_denormals() {
        let dims = Dims { n_layer: 1, n_head: 1, n_embd: 2, block_size: 2, vocab_size: 2, padded_vocab: 2 };
        let pooled = Pooled::new(2, || DfdxEngine::<Cpu>::new(dims)).expect("two threads can start");
        let product = pooled.pool.install(|| std::hint::black_box(1e-30f32) * std::hint::black_box(1e-10));
        assert_eq!(product, 0.0);
    }
}
