//! How fast a recipe's model generates text on this machine, and how much of the memory's bandwidth that takes. Writes
//! no run.

use super::ending::UsageError;
use super::machine;
use super::machine::rates;
use super::supported::at_its_key;
use super::{engines, model::Weights};
use crate::engine::memory::{Activations, Buffer, Element, MemoryConfig, MemoryPlan, Mode};
use crate::plan::{DataSize, Plan};
use crate::recipe::{EngineKind, Resolved};
use crate::report::stats::median;
use crate::train::sample::{Beginning, Sampling, generate};
use std::ops::ControlFlow;
use std::time::Instant;

/// Tokens that are generated and not counted: caches fill, threads wake up.
pub const WARM_UP: usize = 4;

/// How fast one text grows, a token at a time, with its keys and values kept.
#[derive(Debug)]
pub struct Generation {
    /// Where it was measured.
    pub device: String,
    /// Tokens that were counted.
    pub tokens: usize,
    /// Median milliseconds of a token.
    pub token_ms: f64,
    /// Bytes that a token reads: the weights once, and the keys and values before it, on average.
    pub bytes_per_token: f64,
    /// Bytes per second that the memory was measured to give to readers.
    pub bandwidth: f64,
}

impl Generation {
    /// Generates `tokens` tokens, or as many as the context has room for, from random weights.
    ///
    /// # Errors
    /// Where the recipe cannot be computed here, or has a context too short to measure.
    pub fn measure(resolved: &Resolved, tokens: usize) -> anyhow::Result<Self> {
        let recipe = &resolved.recipe;
        let data = DataSize { train_tokens: u64::MAX, train_rows: u64::MAX, ..DataSize::default() };
        let blame = at_its_key(resolved);
        let hardware = machine::hardware(recipe).map_err(&blame)?;
        let plan = Plan::new(recipe, &hardware, data, None).map_err(&blame)?;
        if recipe.compute.engine == EngineKind::Dfdx {
            let message = "the dfdx engine keeps no keys and values; use compute.engine = \"fused\"";
            return Err(UsageError(format!("--sample: {message}")).into());
        }
        let dims = plan.memory.dims;
        // the prompt is one token
        let counted = tokens.min(dims.block_size.saturating_sub(2 + WARM_UP));
        if counted == 0 {
            let message = format!("--sample needs a context of {} tokens or more", 3 + WARM_UP);
            return Err(UsageError(format!("{message}; model.block_size is {}", dims.block_size)).into());
        }
        let (mode, activations) = (Mode::Generate, Activations::default());
        let memory = MemoryPlan::new(MemoryConfig { mode, activations, micro_batch: 1, ..plan.memory });
        let bytes_per_token = bytes_per_token(&memory, 1 + WARM_UP + counted / 2);
        let mut engine = engines::fused(memory, plan.cuda, &engines::solo())?;
        Weights::Random { seed: recipe.seed }.load(engine.as_mut(), &dims)?;
        let sampling = Sampling {
            tokens: 1 + WARM_UP + counted,
            temperature: super::SAMPLE_TEMPERATURE,
            top_k: super::SAMPLE_TOP_K,
            top_p: 1.0,
        };
        let beginning = Beginning { prompt: vec![0], seed: recipe.seed };
        let mut moments = Vec::with_capacity(sampling.tokens);
        generate(engine.as_mut(), dims.block_size, &[beginning], &sampling, |_, _| {
            moments.push(Instant::now());
            ControlFlow::Continue(())
        })?;
        drop(engine);
        let milliseconds = |pair: &[Instant]| (pair[1] - pair[0]).as_secs_f64() * 1e3;
        let mut each: Vec<f64> = moments[WARM_UP..].windows(2).map(milliseconds).collect();
        Ok(Self {
            tokens: each.len(),
            token_ms: median(&mut each).unwrap_or(f64::NAN),
            bytes_per_token,
            bandwidth: rates::read_bandwidth(plan.cuda, plan.threads)?,
            device: plan.device,
        })
    }

    /// Tokens per second.
    pub fn tokens_per_s(&self) -> f64 {
        1e3 / self.token_ms
    }

    /// The share of the memory's bandwidth that is used.
    pub fn bandwidth_share(&self) -> f64 {
        self.bytes_per_token * self.tokens_per_s() / self.bandwidth
    }
}

/// Bytes that a token reads where so many keys precede it. Of the position embedding it reads one row.
fn bytes_per_token(memory: &MemoryPlan, keys: usize) -> f64 {
    let (layout, dims) = (&memory.layout, memory.config.dims);
    let matrices = (layout.decayed - layout.wpe.len()) * memory.element(memory.matrices()).bytes();
    let vectors = (layout.len - layout.decayed) * memory.element(Buffer::Parameters).bytes();
    let row = dims.n_embd * Element::F32.bytes();
    let kept = dims.n_layer * keys * 2 * dims.n_embd * memory.config.operand().bytes();
    (matrices + vectors + row + kept) as f64
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::memory::Target;
    use crate::model::Dims;
    use crate::recipe::{Attention, Precision};

    #[test]
    fn a_token_of_gpt2_reads_half_a_gigabyte_in_fp32() {
        let dims = Dims {
            n_layer: 12,
            n_head: 12,
            n_embd: 768,
            block_size: 1024,
            vocab_size: 50257,
            padded_vocab: 50304,
        };
        let bytes = |target, precision| {
            let (attention, mode, activations) = (Attention::Flash, Mode::Generate, Activations::default());
            let config =
                MemoryConfig { dims, micro_batch: 1, precision, attention, target, mode, activations };
            bytes_per_token(&MemoryPlan::new(config), 100)
        };
        // 124 M parameters without the positions, 12 layers of 100 keys and values
        let fp32 = bytes(Target::Cpu { threads: 2 }, Precision::Fp32);
        assert!((fp32 - 4.0 * (123.65e6 + 12.0 * 100.0 * 2.0 * 768.0)).abs() < 1e6, "{fp32}");
        let bf16 = bytes(Target::Cuda, Precision::Bf16);
        assert!((0.5..0.51).contains(&(bf16 / fp32)), "{bf16}");
    }
}
