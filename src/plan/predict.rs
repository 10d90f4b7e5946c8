//! How long a run will take, from what a small step of the same shapes was measured to take.
//!
//! A step is mostly matrix products, whose time goes with the operations, and an update, whose time goes with the
//! parameters and, under Muon, with the operations of its own products, which grow with the cube of the width. What a
//! product of this width reaches depends on the width, so the probe keeps it.

use super::{Plan, flops_per_token, recompute};
use crate::engine::memory::{MemoryConfig, MemoryPlan, Recompute};
use crate::engine::optimizer::muon::most_iteration_flops;
use crate::model::{Dims, ParamLayout};
use crate::recipe::EvalConfig;
use serde::{Deserialize, Serialize};

/// The probe's parameters are about this many, unless its width alone makes more.
const PARAMETERS: f64 = 12e6;
/// Wider products are no more efficient.
const WIDTH: usize = 1024;
/// Tokens of the probe's forward pass, about.
const TOKENS: usize = 512;
/// The probe takes at most this much memory, where that can be.
const BYTES: usize = 1 << 30;

/// The update of a parameter takes about as long as this many operations of a pass: it is bound by memory.
const UPDATE_FLOPS: f64 = 150.0;

/// What a machine was measured to do.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Rates {
    /// Seconds of forward and backward pass per operation, as [`flops_per_token`] counts, with those of what is
    /// computed again.
    pub seconds_per_flop: f64,
    /// Seconds of the optimizer's update per parameter, without matrix products.
    pub seconds_per_parameter: f64,
    /// Seconds of the update's matrix products per operation; 0 for a rule that has none.
    #[serde(default)]
    pub seconds_per_update_flop: f64,
}

/// A guess at a run's time.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Prediction {
    /// Seconds of one optimizer step of full size, without communication between ranks.
    pub step_s: f64,
    /// Tokens trained on per second.
    pub tokens_per_s: f64,
    /// Seconds of all steps that the run takes itself.
    pub training_s: f64,
    /// Seconds of all evaluations.
    pub evaluation_s: f64,
    /// Seconds of the run; checkpoints and samples are not counted.
    pub total_s: f64,
}

impl Plan {
    /// The run's time at these rates, which are of a rank that has this machine to itself. The ranks that share it slow
    /// each other down ([`crowding`](Plan::crowding)); what ranks say to each other is [`scaling`](Plan::scaling).
    pub fn predict(&self, rates: &Rates, eval: &EvalConfig) -> Prediction {
        let token_s = self.crowding * rates.seconds_per_flop * self.flops_per_token as f64;
        let trained_s = self.crowding * rates.seconds_per_flop * self.computed_per_token() as f64;
        let update_s = self.crowding
            * (rates.seconds_per_parameter * self.updated_elements() as f64
                + rates.seconds_per_update_flop * self.update_flops);
        let step_s = trained_s * (self.batch.tokens_per_step / self.ranks.world_size) as f64 + update_s;
        // what a growing batch leaves out
        let full = u128::from(self.own_steps()) * self.batch.tokens_per_step as u128;
        let less = (full - u128::from(self.own_tokens())) as f64 / self.ranks.world_size as f64;
        let training_s = step_s * self.own_steps() as f64 - trained_s * less;
        // before every step that is a multiple, and after the last; a forward pass is a third of the work
        let evaluations = match eval.every {
            0 => 0,
            every => self.steps.div_ceil(every).saturating_sub(self.before.steps.div_ceil(every)) + 1,
        };
        let eval_tokens = self.eval_tokens() as f64;
        let evaluation_s = evaluations as f64 * eval_tokens / self.ranks.world_size as f64 * token_s / 3.0;
        Prediction {
            step_s,
            tokens_per_s: self.batch.tokens_per_step as f64 / step_s,
            training_s,
            evaluation_s,
            total_s: training_s + evaluation_s,
        }
    }

    /// Rates at which [`predict`](Plan::predict) says of a step of this plan, of one rank, that it takes `step_s`
    /// seconds. How a step divides into passes and update is guessed, an operation being taken to last as long in the
    /// one as in the other, which matters only to plans of other steps.
    pub fn rates_of_step(&self, step_s: f64) -> Rates {
        let tokens = self.batch.tokens_per_step / self.ranks.world_size;
        let flops = self.computed_per_token() as f64 * tokens as f64
            + UPDATE_FLOPS * self.updated_elements() as f64
            + self.update_flops;
        let seconds_per_flop = step_s / flops;
        Rates {
            seconds_per_flop,
            seconds_per_parameter: UPDATE_FLOPS * seconds_per_flop,
            seconds_per_update_flop: if self.update_flops > 0.0 { seconds_per_flop } else { 0.0 },
        }
    }

    /// Operations that training on one token takes: the model's, and those of what is computed again.
    fn computed_per_token(&self) -> u64 {
        self.flops_per_token + recompute::flops_per_token(&self.memory.dims, self.memory.recompute())
    }

    /// Parameters that a rank updates.
    fn updated_elements(&self) -> usize {
        ParamLayout::new(&self.memory.dims).len / self.shard.count
    }
}

/// The small step that stands for a run's: its width and heads, fewer of everything else.
pub fn probe(config: &MemoryConfig) -> MemoryConfig {
    let dims = config.dims;
    let head_size = dims.head_size().min(WIDTH);
    let n_head = dims.n_head.min(WIDTH / head_size).max(1);
    let n_embd = n_head * head_size;
    let parameters = (12 * dims.n_layer * n_embd * n_embd + dims.padded_vocab * n_embd) as f64;
    let share = (PARAMETERS / parameters).min(1.0);
    let n_layer = ((dims.n_layer as f64 * share) as usize).max(1);
    // the head keeps its share of the work
    let share = share.max(n_layer as f64 / dims.n_layer as f64);
    let vocab = ((dims.padded_vocab as f64 * share) as usize).max(dims.padded_vocab.min(64));
    let block_size = dims.block_size.min(TOKENS);
    let dims = Dims { n_layer, n_head, n_embd, block_size, vocab_size: vocab, padded_vocab: vocab };
    let micro_batch = (TOKENS / block_size).clamp(1, config.micro_batch.max(1));
    // an operation that is computed again takes as long as the first time, so the probe need not
    let mut probe = MemoryConfig { dims, micro_batch, ..*config }.recomputing(Recompute::None);
    // odd models are large in odd places; whatever it is, there is less of it in the probe
    while MemoryPlan::new(probe).total_bytes() > BYTES {
        let dims = &mut probe.dims;
        let large = [&mut dims.padded_vocab, &mut dims.n_layer, &mut dims.block_size, &mut probe.micro_batch];
        let floors = [1 << 14, 1, 32, 1];
        match large.into_iter().zip(floors).find(|(size, floor)| **size > *floor) {
            Some((size, floor)) => *size = (*size / 2).max(floor),
            None => break,
        }
        probe.dims.vocab_size = probe.dims.padded_vocab;
    }
    probe
}

/// The seconds that the probe's updates took.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum UpdateTimes {
    /// Of a rule without matrix products.
    Plain(f64),
    /// Of Muon's with so many iterations each: [`ITERATIONS`].
    Iterated([f64; 2]),
}

/// The numbers of Newton and Schulz's iterations with which updates of a probe are timed: the difference is the time of
/// the iterations, and what one of them does not explain is that of the rest.
pub const ITERATIONS: [u32; 2] = [1, 3];

/// Rates from the seconds that the probe's forward and backward pass and its updates took.
pub fn rates(probe: &MemoryConfig, pass_s: f64, updates: UpdateTimes) -> Rates {
    let layout = ParamLayout::new(&probe.dims);
    let parameters = layout.count(true).0 + layout.count(false).0;
    let tokens = probe.micro_batch * probe.dims.block_size;
    let flops = flops_per_token(&probe.dims, parameters) as f64 * tokens as f64;
    let (rest_s, seconds_per_update_flop) = match updates {
        UpdateTimes::Plain(seconds) => (seconds, 0.0),
        UpdateTimes::Iterated([few, many]) => {
            let one = (many - few) / f64::from(ITERATIONS[1] - ITERATIONS[0]);
            let operations = most_iteration_flops(&layout, 1);
            // on a busy machine the one may have taken longer than the other: then as quick as those of a pass
            let one = if one > 0.0 { one } else { pass_s / flops * operations };
            let one = one.min(0.99 * few);
            (few - one, one / operations)
        }
    };
    Rates {
        seconds_per_flop: pass_s / flops,
        seconds_per_parameter: rest_s / layout.len as f64,
        seconds_per_update_flop,
    }
}
