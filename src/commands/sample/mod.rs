//! `runner sample MODEL`: continues prompts.

mod text;

use super::exit::Exit;
use super::terminal::say;
use super::voice::Voice;
use crate::cli::{Format, SampleArgs};
use crate::data::Tokenizer;
use crate::engine::memory::Mode;
use crate::session::UsageError;
use crate::session::model::{self, Model, Options, Source};
use crate::train::sample::{Beginning, Sampling, generate};
use serde_json::json;
use std::ops::ControlFlow;
use text::{Continuation, Printer};

/// Texts that are continued at once at most: their rows share each product, which reads the weights once for all.
const AT_ONCE: usize = 8;

/// The tokens of a prompt, and whether it is shown.
type Prompt = (Vec<u32>, bool);

/// What a text begins with where no prompt was given: the prompt of the run's recipe, else the token with which
/// documents begin, else, in a vocabulary without it, the first one. The flag says whether it is shown.
fn unasked(tokenizer: &Tokenizer, source: &Source, vocab_size: usize) -> Prompt {
    let text = source.prompt().unwrap_or_else(|problem| {
        say(&format!(
            "warning: {problem}: the text begins without the prompt of the run; --prompt names one"
        ));
        None
    });
    let text = text.unwrap_or_default();
    match (tokenizer.prompt(&text, vocab_size), tokenizer.prompt("", vocab_size)) {
        (Ok(prompt), _) => (prompt, !text.is_empty()),
        (Err(_), Ok(begin)) => (begin, false),
        (Err(_), Err(_)) => (vec![0], false),
    }
}

/// Refuses what a flag's type allows and its meaning does not.
fn check(args: &SampleArgs) -> Result<(), UsageError> {
    if !(args.temperature.is_finite() && args.temperature >= 0.0) {
        return Err(UsageError(format!("--temperature {} is not a number from 0 up", args.temperature)));
    }
    if !(args.top_p > 0.0 && args.top_p <= 1.0) {
        return Err(UsageError(format!("--top-p {} is not above 0 and at most 1", args.top_p)));
    }
    if args.stop.iter().any(String::is_empty) {
        return Err(UsageError("--stop \"\" would end every text before it begins; name a text".into()));
    }
    Ok(())
}

/// What texts are continued with.
struct Opened {
    model: Model,
    /// What its tokens stand for.
    tokenizer: Tokenizer,
    /// What to know where nothing says that.
    unknown_tokens: Option<String>,
    prompts: Vec<Prompt>,
}

fn opened(args: &SampleArgs, source: Source) -> anyhow::Result<Opened> {
    let options = super::options(&args.compute)?;
    let vocab_size = source.dims()?.vocab_size;
    let known = source.known_tokenizer(vocab_size)?;
    let unknown_tokens = known.is_none().then(|| source.of_unknown_tokens(vocab_size));
    let tokenizer = known.unwrap_or_else(|| Tokenizer::gpt2().clone());
    let mut prompts = Vec::new();
    for text in &args.prompt {
        prompts.push((tokenizer.prompt(text, vocab_size)?, !text.is_empty()));
    }
    if prompts.is_empty() {
        prompts.push(unasked(&tokenizer, &source, vocab_size));
    }
    let longest = prompts.iter().map(|(prompt, _)| prompt.len()).max().unwrap_or(0);
    let count = prompts.len() * args.num_samples as usize;
    // memory for no more context than will be seen
    let block_size = longest.saturating_add(args.tokens);
    let options = Options { block_size, mode: Mode::Generate, micro_batch: count.min(AT_ONCE), ..options };
    let model = model::open_source(source, &options, &Voice::default())?;
    Ok(Opened { model, tokenizer, unknown_tokens, prompts })
}

/// Prints each prompt and its continuations, token by token; texts that are continued at the same time one after the
/// other.
pub(super) fn run(args: &SampleArgs) -> anyhow::Result<Exit> {
    check(args)?;
    let voice = Voice::default();
    let opened = Source::with(&args.model, &args.runs.runs_dir, &voice, |source| opened(args, source))?;
    let Opened { model: Model { mut engine, dims, .. }, tokenizer, unknown_tokens, prompts } = opened;
    if let Some(unknown) = unknown_tokens {
        say(&format!("warning: {unknown}"));
    }
    let count = prompts.len() * args.num_samples as usize;
    let Sampled { beginnings, mut texts } = Sampled::new(args, &tokenizer, &prompts);
    let sampling =
        Sampling { tokens: args.tokens, temperature: args.temperature, top_k: args.top_k, top_p: args.top_p };
    let mut printer = Printer::new(args.format == Format::Text, count);
    let mut printed = printer.print(&mut texts);
    generate(engine.as_mut(), dims.block_size, &beginnings, &sampling, |text, token| {
        let goes_on = texts[text].push(token);
        printed = printer.print(&mut texts);
        match printed {
            Ok(true) if goes_on => ControlFlow::Continue(()),
            _ => ControlFlow::Break(()),
        }
    })?;
    printed?;
    texts.iter_mut().for_each(Continuation::end);
    printer.print(&mut texts)?;
    if args.format == Format::Json {
        let document = |(text, beginning): (&Continuation, &Beginning)| {
            json!({
                "model": args.model.display().to_string(),
                "prompt": text.prompt(),
                "seed": beginning.seed,
                "text": text.text(),
                "tokens": text.tokens(),
                "finish": text.finish(),
            })
        };
        let documents: Vec<_> = texts.iter().zip(&beginnings).map(document).collect();
        super::print(&format!("{:#}\n", serde_json::Value::from(documents)))?;
    }
    Ok(Exit::Finished)
}

/// The texts of a call, prompt by prompt.
struct Sampled<'a> {
    beginnings: Vec<Beginning>,
    texts: Vec<Continuation<'a>>,
}

impl<'a> Sampled<'a> {
    /// `num_samples` texts of each prompt. The n-th one of each has the seed that is n - 1 higher, so a call for it
    /// alone gives the same text.
    fn new(args: &'a SampleArgs, tokenizer: &'a Tokenizer, prompts: &[Prompt]) -> Self {
        let mut all = Self { beginnings: Vec::new(), texts: Vec::new() };
        for (prompt, shown) in prompts {
            for n in 0..u64::from(args.num_samples) {
                let (prompt, seed) = (prompt.clone(), args.seed.wrapping_add(n));
                let shown = if *shown { tokenizer.decode(&prompt) } else { String::new() };
                all.texts.push(Continuation::new(tokenizer, &args.stop, shown));
                all.beginnings.push(Beginning { prompt, seed });
            }
        }
        all
    }
}
