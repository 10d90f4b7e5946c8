//! An engine whose calls run with denormal numbers flushed to zero: on a pool of its own, or on the caller's thread.

use super::optimizer::{OptimizerState, OptimizerStep};
use super::{Applied, Batch, Engine, EngineError, Next, State, TokenLosses, Watch};
use crate::model::ParamLayout;
use crate::wording::count;
use std::borrow::Cow;
use std::ops::ControlFlow;

/// Runs the calls of an engine.
pub trait Executor {
    /// Runs a call and waits for it.
    fn run<R: Send>(&self, call: impl FnOnce() -> R + Send) -> R;
}

impl Executor for rayon::ThreadPool {
    fn run<R: Send>(&self, call: impl FnOnce() -> R + Send) -> R {
        self.install(call)
    }
}

/// The caller's thread, which flushes denormal numbers to zero during a call.
pub struct Here;

impl Executor for Here {
    fn run<R: Send>(&self, call: impl FnOnce() -> R + Send) -> R {
        let _flushing = FlushDenormals { before: flush_denormals() };
        call()
    }
}

/// Runs every call of an engine on an [`Executor`]: on a pool, so that its kernels find the pool's threads and
/// nothing is handed over inside a step; or [`Here`], where the kernels have threads of their own.
pub struct Pooled<E, P = rayon::ThreadPool> {
    pool: P,
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
            .start_handler(|_| {
                flush_denormals();
            })
            .build()
            .map_err(|e| {
                EngineError::Unsupported(format!("could not start {}: {e}", count(threads, "thread")))
            })?;
        let inner = pool.install(make)?;
        Ok(Self { pool, inner })
    }
}

impl<E: Engine + Send> Pooled<E, Here> {
    /// An engine whose kernels hand work to threads of their own.
    pub fn here(inner: E) -> Self {
        Self { pool: Here, inner }
    }
}

impl<E: Engine + Send, P: Executor> Pooled<E, P> {
    /// The engine that runs on the pool.
    pub fn inner(&self) -> &E {
        &self.inner
    }

    /// The engine that runs on the pool, to change.
    pub fn inner_mut(&mut self) -> &mut E {
        &mut self.inner
    }

    /// Runs a call on the engine where the engine's own calls run.
    pub fn run<R: Send>(&mut self, call: impl FnOnce(&mut E) -> R + Send) -> R {
        self.pool.run(|| call(&mut self.inner))
    }
}

impl<E: Engine + Send, P: Executor> Engine for Pooled<E, P> {
    fn layout(&self) -> &ParamLayout {
        self.inner.layout()
    }

    fn optimizer_states(&self) -> &'static [OptimizerState] {
        self.inner.optimizer_states()
    }

    fn read(&mut self, state: State) -> Result<Cow<'_, [f32]>, EngineError> {
        self.inner.read(state)
    }

    fn write(&mut self, state: State, values: &[f32]) -> Result<(), EngineError> {
        self.pool.run(|| self.inner.write(state, values))
    }

    fn accumulate(&mut self, batch: Batch, weight: f64) -> Result<(), EngineError> {
        self.pool.run(|| self.inner.accumulate(batch, weight))
    }

    fn accumulate_last(&mut self, batch: Batch, weight: f64) -> Result<(), EngineError> {
        self.pool.run(|| self.inner.accumulate_last(batch, weight))
    }

    fn accumulate_watched(
        &mut self,
        batch: Batch,
        weight: f64,
        last: bool,
        watch: &Watch,
    ) -> Result<ControlFlow<()>, EngineError> {
        self.pool.run(|| self.inner.accumulate_watched(batch, weight, last, watch))
    }

    fn loss(&mut self) -> Result<f64, EngineError> {
        self.inner.loss()
    }

    fn update(&mut self, step: &OptimizerStep) -> Result<(), EngineError> {
        self.pool.run(|| self.inner.update(step))
    }

    fn discard(&mut self) -> Result<(), EngineError> {
        self.pool.run(|| self.inner.discard())
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
        self.pool.run(|| self.inner.evaluate(batch))
    }

    fn evaluate_watched(&mut self, batch: Batch, watch: &Watch) -> Result<Option<f64>, EngineError> {
        self.pool.run(|| self.inner.evaluate_watched(batch, watch))
    }

    fn token_losses(&mut self, batch: Batch) -> Result<Vec<f32>, EngineError> {
        self.pool.run(|| self.inner.token_losses(batch))
    }

    fn losses_at(&mut self, batch: Batch, at: &[usize], greedy: bool) -> Result<TokenLosses, EngineError> {
        self.pool.run(|| self.inner.losses_at(batch, at, greedy))
    }

    fn logits(&mut self, tokens: &[u32], last_only: bool) -> Result<Vec<f32>, EngineError> {
        self.pool.run(|| self.inner.logits(tokens, last_only))
    }

    fn sequences(&self) -> usize {
        self.inner.sequences()
    }

    fn begin_sequence(&mut self, sequence: usize, tokens: &[u32]) -> Result<Vec<f32>, EngineError> {
        self.pool.run(|| self.inner.begin_sequence(sequence, tokens))
    }

    fn continue_sequences(&mut self, next: &[Next]) -> Result<Vec<f32>, EngineError> {
        self.pool.run(|| self.inner.continue_sequences(next))
    }
}

/// Flushes denormal numbers to zero on this thread from now on, for AdamW's moments decay into them, and arithmetic on
/// them is many times slower. Returns what [`restore`] takes.
pub(super) fn flush_denormals() -> u64 {
    // Miri does not interpret assembly
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    {
        const FLUSH_TO_ZERO: u32 = 1 << 15;
        const DENORMALS_ARE_ZERO: u32 = 1 << 6;
        let mut control = 0u32;
        // SAFETY: reads and writes this thread's SSE control register through a live local; only the two flags that
        // concern denormals change, no exception is unmasked. The compiler assumes the default environment, so it may
        // fold constants as if denormals were kept; no result here depends on a denormal either way.
        unsafe {
            std::arch::asm!("stmxcsr [{}]", in(reg) &raw mut control, options(nostack));
        }
        restore(u64::from(control | FLUSH_TO_ZERO | DENORMALS_ARE_ZERO));
        u64::from(control)
    }
    #[cfg(all(target_arch = "aarch64", not(miri)))]
    {
        const FLUSH_TO_ZERO: u64 = 1 << 24;
        let mut control: u64;
        // SAFETY: reads and writes this thread's floating-point control register; only the flush flag changes.
        unsafe {
            std::arch::asm!("mrs {}, fpcr", out(reg) control, options(nomem, nostack));
        }
        restore(control | FLUSH_TO_ZERO);
        control
    }
    #[cfg(any(miri, not(any(target_arch = "x86_64", target_arch = "aarch64"))))]
    0
}

/// Gives this thread's floating-point control register the flags that it had.
fn restore(control: u64) {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    {
        let control = control as u32;
        // SAFETY: loads a value that was read there, perhaps with the flags for denormals set.
        unsafe { std::arch::asm!("ldmxcsr [{}]", in(reg) &raw const control, options(nostack, readonly)) };
    }
    #[cfg(all(target_arch = "aarch64", not(miri)))]
    // SAFETY: writes a value that was read from this register, perhaps with the flush flag set.
    unsafe {
        std::arch::asm!("msr fpcr, {}", in(reg) control, options(nomem, nostack));
    }
    #[cfg(any(miri, not(any(target_arch = "x86_64", target_arch = "aarch64"))))]
    let _ = control;
}

/// Until this is dropped, denormal numbers are flushed to zero on this thread.
struct FlushDenormals {
    before: u64,
}

impl Drop for FlushDenormals {
    fn drop(&mut self) {
        restore(self.before);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::dfdx::DfdxEngine;
    use crate::engine::optimizer::OptimizerKind;
    use crate::model::Dims;
    use dfdx::tensor::Cpu;

    #[test]
    fn workers_flush_denormals() {
        let dims = Dims { n_layer: 1, n_head: 1, n_embd: 2, block_size: 2, vocab_size: 2, padded_vocab: 2 };
        let pooled = Pooled::new(2, || DfdxEngine::<Cpu>::new(dims, OptimizerKind::AdamW))
            .expect("two threads can start");
        let product = || std::hint::black_box(1e-30f32) * std::hint::black_box(1e-10);
        assert_eq!(pooled.pool.run(product), 0.0);
        assert_eq!(Here.run(product), 0.0);
        assert!(product() > 0.0, "the caller's thread is as it was");
    }
}
