//! `runner sample MODEL`: continues a prompt.

use super::exit::Exit;
use super::voice::Voice;
use crate::cli::SampleArgs;
use crate::data::Tokenizer;
use crate::session::UsageError;
use crate::session::model::{self, Model, Options, Source};
use crate::train::sample::{Sampling, generate};
use std::ops::ControlFlow;

/// What a text begins with where no prompt was given: the prompt of the run's recipe, else the token with which
/// documents begin, else, in a vocabulary without it, the first one. The flag says whether it is shown.
fn unasked(tokenizer: &Tokenizer, source: &Source, vocab_size: usize) -> (Vec<u32>, bool) {
    let text = source.prompt().unwrap_or_default();
    match (tokenizer.prompt(&text, vocab_size), tokenizer.prompt("", vocab_size)) {
        (Ok(prompt), _) => (prompt, !text.is_empty()),
        (Err(_), Ok(begin)) => (begin, false),
        (Err(_), Err(_)) => (vec![0], false),
    }
}

/// Prints the prompt and its continuation, token by token.
pub(super) fn run(args: &SampleArgs) -> anyhow::Result<Exit> {
    if !(args.temperature.is_finite() && args.temperature >= 0.0) {
        let message = format!("--temperature {} is not a number from 0 up", args.temperature);
        return Err(UsageError(message).into());
    }
    let options = super::options(&args.compute)?;
    let source = Source::find(&args.model, &args.runs.runs_dir)?;
    let tokenizer = &source.tokenizer()?;
    let vocab_size = source.dims()?.vocab_size;
    let (prompt, shown) = match &args.prompt {
        Some(text) => (tokenizer.prompt(text, vocab_size)?, !text.is_empty()),
        None => unasked(tokenizer, &source, vocab_size),
    };
    // memory for no more context than will be seen
    let options = Options { block_size: prompt.len().saturating_add(args.tokens), ..options };
    let Model { mut engine, dims, .. } = model::open_source(source, &options, &Voice::default())?;
    let sampling =
        Sampling { tokens: args.tokens, temperature: args.temperature, top_k: args.top_k, seed: args.seed };
    let mut said = tokenizer.decode(&prompt);
    super::print(if shown { &said } else { "" })?;
    let mut all = prompt.clone();
    let mut printed = Ok(true);
    generate(engine.as_mut(), dims.block_size, &prompt, &sampling, |token| {
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
