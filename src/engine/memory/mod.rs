//! Every byte of a training step, laid out before anything is allocated.
//!
//! An engine allocates exactly the buffers listed here and addresses them by [`Span`], so the plan's byte count *is*
//! the memory used, and a run that does not fit can be refused before it starts. What the kernels of a device need
//! beside activations is known to that device alone: the arena asks for it as [`Scratch`].

mod arena;
mod config;
mod share;
mod span;

pub use arena::{Arena, KeptSpans, LayerSpans, MuonSpans, Scratch};
pub use config::{Activations, MemoryConfig, Mode, Recompute, Target};
pub use share::OptimizerShard;
pub use span::{Buffer, Element, Span};

use crate::engine::optimizer::{OptimizerKind, OptimizerState};
use crate::engine::{cuda, saved_states};
use crate::model::ParamLayout;
use share::Kept;
use std::ops::Range;
use std::sync::Arc;

/// All buffers of an engine.
#[derive(Debug, Clone)]
pub struct MemoryPlan {
    /// What it was computed from.
    pub config: MemoryConfig,
    /// The share of the optimizer's states that is kept.
    pub shard: OptimizerShard,
    /// The flat parameter layout.
    pub layout: Arc<ParamLayout>,
    /// The arena.
    pub arena: Arc<Arena>,
    /// Which elements of the flat layout this rank updates and keeps states for.
    kept: Arc<Kept>,
}

impl MemoryPlan {
    /// Lays everything out.
    pub fn new(config: MemoryConfig) -> Self {
        let layout = ParamLayout::new(&config.dims);
        let (shard, optimizer) = (OptimizerShard::WHOLE, config.mode.optimizer());
        Self {
            config,
            shard,
            kept: Arc::new(Kept::new(&layout, optimizer, shard)),
            layout: Arc::new(layout),
            arena: Arc::new(Arena::new(&config)),
        }
    }

    /// The optimizer, if the engine trains.
    pub fn optimizer(&self) -> Option<OptimizerKind> {
        self.config.mode.optimizer()
    }

    /// The optimizer's states; none without one.
    pub fn states(&self) -> &'static [OptimizerState] {
        self.optimizer().map_or(&[], OptimizerKind::states)
    }

    /// Lays everything out, or `None` for more than about a PiB: beyond that, sizes would not be numbers of this
    /// machine.
    pub fn checked(config: MemoryConfig) -> Option<Self> {
        (config.about_bytes() < (1u64 << 50) as f64).then(|| Self::new(config))
    }

    /// Every buffer of an engine in the order of allocation, with what messages call it. Some may have no elements.
    pub fn buffers(&self) -> Vec<(Buffer, &'static str)> {
        let states = self.states().iter().enumerate();
        [(Buffer::Parameters, "parameters"), (Buffer::Gradients, "gradients")]
            .into_iter()
            .chain(states.map(|(index, state)| (Buffer::Optimizer(index), state.label)))
            .chain([(Buffer::Low, "the low-precision copy"), (Buffer::Arena, "activations and scratch")])
            .collect()
    }

    /// Elements of one buffer; 0 if the engine does not have it.
    pub fn elements(&self, buffer: Buffer) -> usize {
        let training = self.config.mode.is_training();
        match buffer {
            Buffer::Parameters => self.layout.len,
            Buffer::Gradients if training => self.layout.len,
            Buffer::Gradients => 0,
            Buffer::Optimizer(state) => {
                self.kept.parts.get(state).map_or(0, |parts| parts.iter().map(ExactSizeIterator::len).sum())
            }
            Buffer::Low if !self.config.rounds_operands() => 0,
            Buffer::Low => match self.config.target {
                Target::Cpu { .. } => self.layout.decayed,
                // biases too, for the library adds them in the precision of the product
                Target::Cuda => self.layout.len,
            },
            Buffer::Arena => self.arena.len,
        }
    }

    /// How the elements of a buffer are stored. Those of the arena differ: its length is in 4-byte words.
    pub fn element(&self, buffer: Buffer) -> Element {
        if buffer == Buffer::Low { self.config.operand() } else { Element::F32 }
    }

    /// A range of one of the parameter-shaped buffers.
    pub fn span(&self, buffer: Buffer, range: &Range<usize>) -> Span {
        Span { buffer, element: self.element(buffer), start: range.start, len: range.len() }
    }

    /// One of the optimizer's states for a range of the flat layout that this rank updates, inside one of the state's
    /// [`parts`](Self::parts).
    pub fn state(&self, index: usize, range: &Range<usize>) -> Span {
        let mut before = 0;
        for part in self.parts(index) {
            if part.start <= range.start && range.end <= part.end {
                let first = before + range.start - part.start;
                return self.span(Buffer::Optimizer(index), &(first..first + range.len()));
            }
            before += part.len();
        }
        panic!("{} does not cover {range:?} here", self.states()[index].label)
    }

    /// The low-precision copy of a range of the flat layout, where there is one.
    pub fn low(&self, range: &Range<usize>) -> Option<Span> {
        (range.end <= self.elements(Buffer::Low)).then(|| self.span(Buffer::Low, range))
    }

    /// A whole parameter-shaped buffer.
    pub fn whole(&self, buffer: Buffer) -> Span {
        self.span(buffer, &(0..self.elements(buffer)))
    }

    /// Where matrix products read the matrices.
    pub fn matrices(&self) -> Buffer {
        if self.elements(Buffer::Low) > 0 { Buffer::Low } else { Buffer::Parameters }
    }

    /// Bytes of an allocation.
    pub fn buffer_bytes(&self, buffer: Buffer) -> usize {
        self.elements(buffer) * self.element(buffer).bytes()
    }

    /// Bytes that a device needs beside the buffers.
    pub fn device_bytes(&self) -> usize {
        match self.config.target {
            Target::Cpu { .. } => 0,
            Target::Cuda => cuda::scratch::device_bytes(&self.config),
        }
    }

    /// Bytes of every kind, in the order in which they are shown.
    pub fn bytes(&self) -> Vec<(&'static str, usize)> {
        let size = |buffer| self.buffer_bytes(buffer);
        let activations = self.arena.activations * Element::F32.bytes();
        vec![
            ("parameters", size(Buffer::Parameters)),
            ("gradients", size(Buffer::Gradients)),
            ("moments", (0..self.states().len()).map(|state| size(Buffer::Optimizer(state))).sum()),
            ("low_precision_copy", size(Buffer::Low)),
            ("activations", activations),
            ("scratch", size(Buffer::Arena) - activations + self.device_bytes()),
        ]
    }

    /// Bytes of the buffers that a checkpoint holds, those of all ranks: parameters and the optimizer's states.
    pub fn saved_bytes(&self) -> usize {
        let saved = saved_states(self.states()).into_iter();
        saved.map(|state| state.len_in(&self.layout) * Element::F32.bytes()).sum()
    }

    /// Bytes of the largest state of the optimizer of which each rank has a part: rank 0 gathers one after the other
    /// for a checkpoint. 0 where each rank has all of it.
    pub fn gathered_bytes(&self) -> usize {
        let states = self.states().iter().filter(|_| self.is_sharded()).map(super::State::Optimizer);
        states.map(|state| state.len_in(&self.layout) * Element::F32.bytes()).max().unwrap_or(0)
    }

    /// Bytes in all.
    pub fn total_bytes(&self) -> usize {
        self.bytes().iter().map(|(_, bytes)| bytes).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::Dims;
    use crate::recipe::{Attention, Precision, Residual};

    const TRAIN: Mode = Mode::Train(OptimizerKind::AdamW);
    const TARGETS: [Target; 2] = [Target::Cpu { threads: 2 }, Target::Cuda];

    fn config(mode: Mode, attention: Attention, block_size: usize, target: Target) -> MemoryConfig {
        let dims = Dims { n_layer: 3, n_head: 2, n_embd: 32, block_size, vocab_size: 100, padded_vocab: 128 };
        MemoryConfig {
            dims,
            micro_batch: 2,
            precision: Precision::Bf16,
            attention,
            target,
            mode,
            activations: Activations::default(),
        }
    }

    #[test]
    fn arena_spans_are_aligned_and_disjoint() {
        for (target, attention) in [(TARGETS[0], Attention::Naive), (TARGETS[1], Attention::Flash)] {
            let arena = MemoryPlan::new(config(TRAIN, attention, 23, target)).arena;
            let mut spans: Vec<Span> = arena
                .layers
                .iter()
                .flat_map(|l| [l.x, l.ln_1, l.qkv, l.softmax, l.att, l.x_mid, l.ln_2, l.fc])
                .chain([arena.x_out, arena.ln_f, arena.ln, arena.delta, arena.wide, arena.logits])
                .chain([
                    arena.losses,
                    arena.partials,
                    arena.workers,
                    arena.panels,
                    arena.scores,
                    arena.batch,
                    arena.sums,
                ])
                .chain(arena.dx)
                .chain(arena.dx_low)
                .filter(|span| span.len > 0)
                .collect();
            spans.sort_by_key(|s| s.byte_range().start);
            assert!(spans.iter().all(|s| s.byte_range().start.is_multiple_of(64)));
            assert!(spans.windows(2).all(|w| !w[0].overlaps(&w[1])));
            assert!(spans.last().is_some_and(|s| s.byte_range().end <= arena.len * 4));
        }
    }

    #[test]
    fn blocks_share_the_place_of_what_is_computed_again() {
        for (target, kept) in [(TARGETS[0], false), (TARGETS[1], false), (TARGETS[1], true)] {
            for recompute in Recompute::ALL {
                let activations = Activations { kept, recompute, ..Activations::default() };
                let config = config(TRAIN, Attention::Flash, 23, target);
                let arena = MemoryPlan::new(MemoryConfig { activations, ..config }).arena;
                let [first, second] = [arena.layers[0], arena.layers[1]];
                let is_shared = |of: fn(&LayerSpans) -> Span| of(&first) == of(&second);
                assert!(!is_shared(|l| l.x) && !is_shared(|l| l.ln_1), "where a block begins is kept");
                assert_eq!(is_shared(|l| l.fc), recompute >= Recompute::Mlp);
                let inside: [fn(&LayerSpans) -> Span; 5] =
                    [|l| l.qkv, |l| l.softmax, |l| l.att, |l| l.x_mid, |l| l.ln_2];
                for of in inside {
                    assert_eq!(is_shared(of), recompute == Recompute::Block);
                }
                assert_eq!(first.kept.is_some(), kept && recompute < Recompute::Block);
                assert_eq!(first.gelu.is_some(), kept);
                assert_eq!(first.gelu == Some(arena.wide), kept && recompute > Recompute::None);
            }
        }
    }

    #[test]
    fn buffers_are_named_as_messages_say_them() {
        let plan = MemoryPlan::new(config(TRAIN, Attention::Flash, 16, TARGETS[0]));
        let names: Vec<_> = plan.buffers().into_iter().map(|(_, name)| name).collect();
        let states = ["the first moment", "the second moment"];
        let rest = ["the low-precision copy", "activations and scratch"];
        assert_eq!(names, [["parameters", "gradients"], states, rest].concat());
    }

    #[test]
    fn flash_memory_is_linear_in_t_and_naive_is_not() {
        for target in TARGETS {
            let bytes = |a, t| MemoryPlan::new(config(TRAIN, a, t, target)).arena.len as f64;
            let growth = |a| (bytes(a, 4096) - bytes(a, 2048)) / (bytes(a, 2048) - bytes(a, 1024));
            // on CUDA the parts of a head, of which there are at most four, have sums of their own
            assert!((1.7..2.01).contains(&growth(Attention::Flash)), "{}", growth(Attention::Flash));
            assert!(growth(Attention::Naive) > 2.9, "{}", growth(Attention::Naive));
        }
    }

    #[test]
    fn inference_needs_less_than_training() {
        let total = |mode, target| {
            let plan = MemoryPlan::new(config(mode, Attention::Flash, 64, target));
            plan.total_bytes() - plan.device_bytes()
        };
        for target in TARGETS {
            assert!(total(Mode::Infer, target) * 4 < total(TRAIN, target) * 3);
        }
    }

    #[test]
    fn gpt2_124m_with_64_rows_keeps_what_it_can_in_40_gb() {
        let dims = Dims {
            n_layer: 12,
            n_head: 12,
            n_embd: 768,
            block_size: 1024,
            vocab_size: 50257,
            padded_vocab: 50304,
        };
        let plan = |kept, residual| {
            let activations = Activations { kept, residual, ..Activations::default() };
            let config = config(TRAIN, Attention::Flash, 1024, Target::Cuda);
            MemoryPlan::new(MemoryConfig { dims, micro_batch: 64, activations, ..config })
        };
        let [kept, again] = [true, false].map(|kept| plan(kept, Residual::Fp32));
        let outputs = 12 * 6 * 64 * 1024 * 768 * 2;
        assert_eq!((kept.arena.activations - again.arena.activations) * 4, outputs);
        assert_eq!([kept.arena.chunk, again.arena.chunk], [1 << 14, 1 << 13]);
        assert!(kept.total_bytes() < 40_000_000_000, "{}", kept.total_bytes());
        // a stream of 2 bytes needs no second halves of its gradient, and lacks no biases
        let low = plan(true, Residual::Bf16);
        assert_eq!(kept.arena.len - low.arena.len, (25 + 1) * 64 * 1024 * 768 / 2 + 25 * 768);
        assert!(low.arena.dx_low.is_none() && kept.arena.dx_low.is_some());
    }

    #[test]
    fn cuda_stores_operands_in_two_bytes() {
        let plan = |target| MemoryPlan::new(config(TRAIN, Attention::Flash, 256, target));
        let [cpu, cuda] = TARGETS.map(plan);
        assert_eq!(cuda.buffer_bytes(Buffer::Low), 2 * cuda.layout.len);
        assert!(cuda.arena.activations * 3 < cpu.arena.activations * 2);
        assert_eq!(cuda.matrices(), Buffer::Low);
    }
}
