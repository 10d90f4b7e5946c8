//! `runner data prepare SOURCE... --out DIR`: shards of tokens from text.

use super::super::exit::Exit;
use super::super::terminal::{self, Passes};
use crate::cli::{PrepareArgs, ValidationArgs};
use crate::data::card::{CARD, Card, Part};
use crate::data::prepare::{Hooks, Options, Prepared, Validation, prepare};
use crate::regular;
use crate::report::numbers::bytes;
use crate::run::fault;
use crate::session::UsageError;
use crate::wording::{count, grouped, tame_line, thousands};
use std::time::Instant;

/// Prepares a data set and prints its directory.
pub(super) fn run(args: &PrepareArgs) -> anyhow::Result<Exit> {
    let options = options(args)?;
    let hooks = Hooks { progress: &Passes::default(), fault: &|moment| fault::point("prepare", moment) };
    let threads = count(options.threads, "thread");
    let memory = bytes(options.memory() as f64);
    terminal::say(&format!(
        "preparing {} on {threads}, in at most {memory} of memory",
        options.out.display()
    ));
    let start = Instant::now();
    let (card, took) = match prepare(&options, &hooks)? {
        Prepared::Now(card) => {
            let seconds = start.elapsed().as_secs_f64();
            let rate = thousands((card.tokens as f64 / seconds.max(1e-3)) as u64);
            (card, format!("done in {seconds:.1} s, {rate} tokens/s"))
        }
        Prepared::Before(card) => (card, "was prepared before: nothing to do".to_owned()),
    };
    terminal::say(&format!("{}: {took}", options.out.display()));
    if let Some(user) = regular::another_owner(&options.out.join(CARD)) {
        terminal::say(&format!(
            "warning: {} belongs to another user ({user}), and holds what that user lets it hold: --out names a \
             directory of your own, where it is prepared anew",
            options.out.display()
        ));
    }
    terminal::say_lines(&summary(&card));
    if let Some(source) = card.repeated() {
        terminal::say(&format!(
            "warning: {} and another source have the same contents, which are in the set more than once: name each \
             file once if that is not meant",
            tame_line(&source.path)
        ));
    }
    match options.undivided(&card) {
        None => {}
        Some(0) => terminal::say("warning: --split-on is for .txt files, and none of the sources is one"),
        Some(files) => terminal::say(&format!(
            "warning: --split-on parts no two documents in {}: check the text; lines may end in \\r\\n",
            count(files, "file of text")
        )),
    }
    super::super::print_path(&options.out)?;
    Ok(Exit::Finished)
}

/// A text with `\n`, `\r`, `\t` and `\\` in it, as it is meant.
fn unescaped(text: &str) -> Result<String, UsageError> {
    let (mut out, mut rest) = (String::new(), text.chars());
    while let Some(c) = rest.next() {
        out.push(match c {
            '\\' => match rest.next() {
                Some('n') => '\n',
                Some('r') => '\r',
                Some('t') => '\t',
                Some('\\') => '\\',
                other => {
                    let other = other.map(String::from).unwrap_or_default();
                    return Err(UsageError(format!(
                        "--split-on: `\\{other}` stands for nothing: \\n, \\r and \\t are the end of a line, a \
                         carriage return and a tab, and \\\\ is a backslash"
                    )));
                }
            },
            c => c,
        });
    }
    Ok(out)
}

fn options(args: &PrepareArgs) -> Result<Options, UsageError> {
    let validation = match args.validation {
        ValidationArgs { val_tokens: Some(tokens), .. } => Validation::Tokens(tokens),
        ValidationArgs { val_fraction: Some(fraction), .. } => Validation::Fraction(fraction),
        ValidationArgs { val_first_shard: true, .. } => Validation::FirstShard,
        _ => Validation::None,
    };
    let all = || std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    Ok(Options {
        sources: args.sources.clone(),
        out: args.out.clone(),
        tokenizer: args.tokenizer,
        field: args.field.clone(),
        split_on: args.split_on.as_deref().map(unescaped).transpose()?,
        shard_tokens: args.shard_tokens,
        validation,
        separator: args.separator,
        shuffle_seed: args.shuffle_seed,
        limit_tokens: args.limit_tokens,
        threads: args.threads.map_or_else(all, |threads| threads as usize),
    })
}

/// What a set has, for people.
fn summary(card: &Card) -> String {
    let part = |name: &str, part: &Part| match part.files.len() {
        0 => String::new(),
        files => format!("  {name}: {} in {}\n", grouped(part.tokens, "token"), count(files, "shard")),
    };
    format!(
        "  {}, {} of text from {}, {} ({} ids)\n{}{}  entropy of the tokens {:.4} nats; {CARD} has the rest",
        grouped(card.documents, "document"),
        grouped(card.bytes, "byte"),
        count(card.sources.len(), "file"),
        card.tokenizer,
        card.vocab_size,
        part("train", &card.train),
        part("val", &card.val),
        card.unigram_entropy,
    )
}
