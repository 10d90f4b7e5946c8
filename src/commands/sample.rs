//! `runner sample RUN|CHECKPOINT`: what a model has to say.

use super::build;
use super::exit::{Exit, UsageError};
use crate::cli::SampleArgs;
use crate::data::Tokenizer;
use crate::engine::memory::{MemoryConfig, MemoryPlan, Mode, Target};
use crate::engine::{Engine, State, cpu};
use crate::model::Dims;
use crate::plan::gib;
use crate::plan::hardware::Hardware;
use crate::recipe::{Attention, Precision};
use crate::run::checkpoint::newest_intact;
use crate::run::{RunError, hf_config, import};
use crate::train::sample::{Sampling, generate};
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};

/// Prints the prompt and its continuation, token by token.
pub(super) fn run(args: &SampleArgs) -> anyhow::Result<Exit> {
    if !(args.temperature.is_finite() && args.temperature >= 0.0) {
        let message = format!("--temperature {} is not a number from 0 up", args.temperature);
        return Err(UsageError(message).into());
    }
    let model = model_dir(&args.model, &args.runs.runs_dir)?;
    let dims = hf_config::dims(&model)?;
    let prompt = build::prompt(&args.prompt, dims.vocab_size)?;
    let hardware = Hardware::detect();
    let threads = if args.threads == 0 { hardware.threads } else { args.threads };
    // memory for no more context than will be seen
    let seen = prompt.len().saturating_add(args.tokens);
    let dims = Dims { block_size: dims.block_size.min(seen), ..dims };
    let (precision, attention) = (Precision::Fp32, Attention::Flash);
    let (target, mode) = (Target::Cpu { threads }, Mode::Infer);
    let config = MemoryConfig { dims, micro_batch: 1, precision, attention, target, mode };
    let plan = MemoryPlan::new(config);
    let (needed, free) = (plan.total_bytes() + plan.layout.len * size_of::<f32>(), hardware.free_memory);
    if needed > free {
        let message =
            format!("{} needs {} of memory, but only {} are free", model.display(), gib(needed), gib(free));
        return Err(UsageError(message).into());
    }
    let mut engine = cpu::engine(plan)?;
    let layout = engine.layout().clone();
    let mut parameters = vec![0.0; layout.len];
    import(&model, &dims, &layout, &mut parameters)?;
    engine.write(State::Parameters, &parameters)?;
    drop(parameters);
    let sampling =
        Sampling { tokens: args.tokens, temperature: args.temperature, top_k: args.top_k, seed: args.seed };
    let tokenizer = Tokenizer::gpt2();
    let mut said = tokenizer.decode(&prompt);
    super::print(&said)?;
    let mut all = prompt.clone();
    let mut printed = Ok(true);
    generate(&mut engine, dims.block_size, &prompt, &sampling, |token| {
        all.push(token);
        let text = tokenizer.decode(&all);
        // a character may need several tokens: until it is whole, its bytes show as a replacement mark
        if !text.ends_with('\u{fffd}') {
            printed = super::print(text.get(said.len()..).unwrap_or_default());
            said = text;
        }
        if matches!(printed, Ok(true)) { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
    })?;
    printed?;
    super::print("\n")?;
    Ok(Exit::Finished)
}

/// The Hugging Face model directory that is meant: a checkpoint itself, or the newest intact one of a run.
fn model_dir(named: &Path, runs_dir: &Path) -> anyhow::Result<PathBuf> {
    if named.join("config.json").is_file() {
        return Ok(named.to_owned());
    }
    let run = super::find_run(runs_dir, named)?;
    let newest = newest_intact(&run)?;
    match newest.reader {
        Some(reader) => Ok(reader.path().to_owned()),
        None => {
            let Some(rejected) = newest.rejected.first() else {
                return Err(RunError::NoCheckpoint { path: run }.into());
            };
            let problem = format!("none of its checkpoints is intact: {}", rejected.reason);
            Err(RunError::Malformed { path: run, problem }.into())
        }
    }
}
