//! A training step allocates nothing: everything lies in the plan's buffers. Held with an allocator that counts.

use runner::engine::memory::{Activations, MemoryConfig, MemoryPlan, Mode, Recompute, Target};
use runner::engine::optimizer::{OptimizerKind, OptimizerStep};
use runner::engine::{Batch, Engine, State, cpu};
use runner::model::{Dims, init};
use runner::recipe::{Attention, Precision};
use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

struct Counting;

static COUNT: AtomicUsize = AtomicUsize::new(0);
static BYTES: AtomicUsize = AtomicUsize::new(0);

// SAFETY: everything is the system's allocator's work; the counters do not allocate.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        COUNT.fetch_add(1, Relaxed);
        BYTES.fetch_add(layout.size(), Relaxed);
        // SAFETY: the caller's promise.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: the caller's promise.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

#[test]
fn a_step_allocates_nothing() {
    for (attention, precision, optimizer, n_embd, recompute) in [
        (Attention::Flash, Precision::Fp32, OptimizerKind::AdamW, 64, Recompute::None),
        (Attention::Naive, Precision::Bf16, OptimizerKind::AdamW, 64, Recompute::Block),
        (Attention::Flash, Precision::Bf16, OptimizerKind::Muon, 32, Recompute::Mlp),
    ] {
        let dims = Dims { n_layer: 2, n_head: 2, n_embd, block_size: 48, vocab_size: 500, padded_vocab: 512 };
        let (target, mode) = (Target::Cpu { threads: 2 }, Mode::Train(optimizer));
        let plan = MemoryPlan::new(MemoryConfig {
            dims,
            micro_batch: 3,
            precision,
            attention,
            target,
            mode,
            activations: Activations { recompute, ..Activations::default() },
        });
        let mut engine = cpu::engine(plan).expect("small buffers can be allocated");
        let before = BYTES.load(Relaxed);
        let mut parameters = vec![0.0f32; engine.layout().len];
        assert!(BYTES.load(Relaxed) - before >= size_of_val(&parameters[..]), "allocations are counted");
        init::initialize(&dims, &engine.layout().clone(), 1, &mut parameters);
        engine.write(State::Parameters, &parameters).expect("the engine takes its parameters");
        let tokens: Vec<u32> = (0..3 * 48).map(|i| i * 7 % 500).collect();
        let batch = Batch { inputs: &tokens, targets: &tokens, rows: 3, cols: 48, first_row: 0 };
        let mut step = |t: u64| {
            engine.accumulate(batch, 0.5).expect("the batch fits");
            engine.accumulate(batch, 0.5).expect("the batch fits");
            let rule = optimizer.typical();
            let update = OptimizerStep { rule, lr: 1e-3, clip_norm: 1.0, t, loss_scale: 1.0 };
            engine.finish_step(&update).expect("there were gradients").loss
        };
        let first = step(1);
        step(2);
        // A helper allocates while it starts, and on a busy machine it gets its first turn late: once, so twenty steps
        // without it come soon.
        let (mut t, mut last) = (2, first);
        let rounds: Vec<_> = (0..5)
            .map(|_| {
                let (count, bytes) = (COUNT.load(Relaxed), BYTES.load(Relaxed));
                (0..20).for_each(|_| {
                    t += 1;
                    last = step(t);
                });
                (COUNT.load(Relaxed) - count, BYTES.load(Relaxed) - bytes)
            })
            .collect();
        assert!(last < first, "it trains: {first} to {last}");
        assert!(rounds.contains(&(0, 0)), "(allocations, bytes) of 20 steps each: {rounds:?}");
        // what a checkpoint holds is read where it lies
        for state in engine.saved_states() {
            let before = BYTES.load(Relaxed);
            let read = engine.read(state).expect("it is kept").len();
            let bytes = BYTES.load(Relaxed) - before;
            assert_eq!(read, state.len_in(engine.layout()), "{state}");
            assert!(bytes * 16 < read, "{bytes} bytes to read {read} numbers of {state}");
        }
    }
}
