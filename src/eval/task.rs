//! Tasks: examples as tokens of one model, cut to its context.

use super::documents::{self, Choice, Document, LastWord};
use super::{EvalError, Share, llmc, lm_eval};
use crate::data::tokenizer::{Tokenizer, TokenizerKind};
use crate::regular;
use std::path::Path;

/// Bytes of a file of examples at most.
const LARGEST: u64 = 2 << 30;

/// What an example asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// Which of several endings continues a context.
    Choice,
    /// Whether the last word of a text is what a greedy choice gives.
    LastWord,
}

impl Kind {
    /// What files of this kind hold, for messages.
    #[must_use]
    pub fn words(self) -> &'static str {
        match self {
            Self::Choice => "multiple choice",
            Self::LastWord => "last words (`text`)",
        }
    }
}

/// How text becomes tokens, and what `acc_norm` divides by.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Definition {
    /// llm.c's and build-nanogpt's: the context as it is, the tokens of a space and the ending; the mean per token.
    PerToken,
    /// lm-evaluation-harness's: HellaSwag's text cleaned, context and ending encoded together; the sum over the number
    /// of the ending's characters.
    LmEval,
}

/// What a model takes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Tokens per sequence, T.
    pub block_size: usize,
    /// Number of token ids.
    pub vocab_size: usize,
}

/// A context with one of the endings that may continue it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Candidate {
    /// Context and ending, at most T + 1 tokens.
    pub tokens: Vec<u32>,
    /// The last so many tokens are the ending; at least 1, fewer than all.
    pub scored: usize,
    /// Characters of the ending as its file has it; 0 where the file has tokens only.
    pub characters: usize,
}

/// A question with its answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Example {
    /// The endings; one for a last word.
    pub candidates: Vec<Candidate>,
    /// The right one.
    pub label: usize,
}

/// How many examples did not fit into a model's context.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Cut {
    /// Examples of which a context lost its beginning.
    pub contexts: usize,
    /// Examples of which an ending lost its beginning too, so that its last T tokens only are scored.
    pub endings: usize,
}

/// The examples of a file, as tokens of one model.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Task {
    /// The name that its scores begin with.
    pub name: String,
    /// What it asks for.
    pub kind: Kind,
    /// How text became tokens.
    pub definition: Definition,
    /// In the order of the file.
    pub examples: Vec<Example>,
    /// What did not fit.
    pub cut: Cut,
    /// What the examples were encoded for.
    pub limits: Limits,
}

/// The tokens of an example before they are cut: the context's, and those of each ending.
pub(super) struct Encoded {
    pub(super) pairs: Vec<(Vec<u32>, Vec<u32>)>,
    pub(super) characters: Vec<usize>,
    pub(super) label: usize,
    /// Where it is in the file, for messages.
    pub(super) place: String,
}

/// Tokens that a file's examples may still have. Each ending comes with its context, so a long context with many
/// endings would fill the memory from a small file, and take a day to score.
pub(super) struct Room(usize);

impl Room {
    /// Tokens for each byte of a file: a context of two thousand bytes may have fifty endings.
    const PER_BYTE: usize = 32;

    /// That of a file of `bytes` bytes.
    pub(super) fn of(bytes: usize) -> Self {
        Self(bytes.saturating_mul(Self::PER_BYTE).saturating_add(1 << 20))
    }

    /// Takes tokens from it.
    pub(super) fn take(&mut self, tokens: usize) -> Result<(), String> {
        let left = self.0.checked_sub(tokens);
        self.0 =
            left.ok_or("its endings repeat a long context too often: shorten it, or leave out endings")?;
        Ok(())
    }
}

impl Task {
    /// Reads a file of examples: HellaSwag's JSONL, llm.c's `.bin` of it, multiple choice in JSONL (`context`,
    /// `endings`, `label`), or texts whose last word is asked for (`text`). What the file holds decides, not its name.
    ///
    /// # Errors
    /// What is wrong with the file or one of its examples, and a token that the model does not have.
    pub fn load(
        path: &Path,
        name: &str,
        definition: Definition,
        tokenizer: &Tokenizer,
        limits: Limits,
    ) -> Result<Self, EvalError> {
        let bytes = regular::read_within(path, LARGEST);
        let bytes = bytes.map_err(|error| EvalError::Read { path: path.to_owned(), error })?;
        let mut room = Room::of(bytes.len());
        // one after the other: texts and tokens of all examples together would take twice the memory
        type Examples<'a> = Box<dyn Iterator<Item = Result<Encoded, EvalError>> + 'a>;
        let (kind, encoded): (_, Examples) = match llmc::is_eval_file(&bytes) {
            true if definition == Definition::LmEval || tokenizer.kind() != TokenizerKind::Gpt2 => {
                let what =
                    "llm.c's file, which has GPT-2's tokens and no text: give the JSONL of the task".into();
                return Err(EvalError::NoTask { path: path.to_owned(), what });
            }
            true => (Kind::Choice, Box::new(llmc::read(path, &bytes, &mut room)?.into_iter().map(Ok))),
            false => {
                let documents = documents::read(path, &bytes)?;
                let kind = match documents.first() {
                    Some((_, Document::LastWord(_))) => Kind::LastWord,
                    _ => Kind::Choice,
                };
                let encode = move |(line, document)| {
                    encode(document, definition, tokenizer, &mut room)
                        .map(|encoded| Encoded { place: format!("line {line}"), ..encoded })
                        .map_err(|problem| EvalError::Line { path: path.to_owned(), line, problem })
                };
                (kind, Box::new(documents.into_iter().map(encode)))
            }
        };
        let mut task = Self {
            name: name.to_owned(),
            kind,
            definition,
            examples: Vec::new(),
            cut: Cut::default(),
            limits,
        };
        for one in encoded {
            task.push(path, one?, tokenizer)?;
        }
        Ok(task)
    }

    /// Forward passes that scoring a share takes, as many tokens at a time as `micro_batch` whole rows have.
    #[must_use]
    pub fn passes(&self, micro_batch: usize, share: Share) -> usize {
        super::rows::passes_of(self, micro_batch, share).len()
    }

    /// Tokens of all rows that scoring computes, without those that fill up rows.
    #[must_use]
    pub fn tokens(&self) -> u64 {
        let candidates = self.examples.iter().flat_map(|example| &example.candidates);
        candidates.map(|candidate| candidate.tokens.len() as u64 - 1).sum()
    }

    /// The blake3 digest of all tokens, endings and labels, 64 hexadecimal digits: what two files with equal examples
    /// for one model share.
    #[must_use]
    pub fn digest(&self) -> String {
        let mut hasher = blake3::Hasher::new();
        for Example { candidates, label } in &self.examples {
            hasher.update(&(*label as u64).to_le_bytes()).update(&(candidates.len() as u64).to_le_bytes());
            for Candidate { tokens, scored, characters } in candidates {
                for number in [tokens.len(), *scored, *characters] {
                    hasher.update(&(number as u64).to_le_bytes());
                }
                tokens.iter().for_each(|token| {
                    hasher.update(&token.to_le_bytes());
                });
            }
        }
        hasher.finalize().to_hex().to_string()
    }

    /// The name of a file's task: the file's stem in lower case, every other character an underscore.
    #[must_use]
    pub fn name_of(path: &Path) -> String {
        let stem = path.file_stem().unwrap_or_default().to_string_lossy().to_lowercase();
        stem.chars().map(|c| if c.is_ascii_alphanumeric() { c } else { '_' }).collect()
    }

    /// Cuts an example to the context and adds it.
    fn push(&mut self, path: &Path, encoded: Encoded, tokenizer: &Tokenizer) -> Result<(), EvalError> {
        let Limits { block_size, vocab_size } = self.limits;
        let (mut cut, mut candidates) = (Cut::default(), Vec::with_capacity(encoded.pairs.len()));
        for ((mut tokens, ending), characters) in encoded.pairs.into_iter().zip(encoded.characters) {
            if tokens.is_empty() {
                // something has to come before the first token that is scored
                let begin = tokenizer.prompt("", vocab_size).ok().and_then(|tokens| tokens.first().copied());
                tokens.push(begin.unwrap_or(0));
            }
            let scored = ending.len().min(block_size);
            tokens.extend(ending.iter());
            let outside = tokens.iter().find(|&&token| token as usize >= vocab_size);
            if let Some(&token) = outside {
                let (path, place, tokenizer) = (path.to_owned(), encoded.place, tokenizer.kind().word());
                return Err(EvalError::Token { path, place, token, vocab_size, tokenizer });
            }
            let excess = tokens.len().saturating_sub(block_size + 1);
            tokens.drain(..excess);
            cut.contexts |= usize::from(excess > 0);
            cut.endings |= usize::from(scored < ending.len());
            candidates.push(Candidate { tokens, scored, characters });
        }
        self.cut.contexts += cut.contexts;
        self.cut.endings += cut.endings;
        self.examples.push(Example { candidates, label: encoded.label });
        Ok(())
    }
}

/// The tokens of a text. Errors: a character that the tokenizer does not have.
pub(super) fn tokens(tokenizer: &Tokenizer, text: &str) -> Result<Vec<u32>, String> {
    let mut tokens = Vec::new();
    tokenizer.encode_into(text, &mut tokens).map_err(|unlisted| {
        let known = tokenizer.vocab_size();
        format!("its text has {:?}, which is none of the {known} characters that the model knows", unlisted.c)
    })?;
    Ok(tokens.into_iter().map(u32::from).collect())
}

fn encode(
    document: Document,
    definition: Definition,
    tokenizer: &Tokenizer,
    room: &mut Room,
) -> Result<Encoded, String> {
    let choice = match (document, definition) {
        (Document::LastWord(LastWord { context, word }), _) => {
            let pair = (tokens(tokenizer, &context)?, tokens(tokenizer, &format!(" {word}"))?);
            let characters = vec![word.chars().count()];
            return Ok(Encoded { pairs: vec![pair], characters, label: 0, place: String::new() });
        }
        (Document::Choice(choice), _) => choice,
        (Document::HellaSwag(document), Definition::PerToken) => document.raw(),
        (Document::HellaSwag(document), Definition::LmEval) => lm_eval::cleaned(&document)?,
    };
    let Choice { context, endings, label, delimiter } = choice;
    let characters = endings.iter().map(|ending| ending.chars().count()).collect();
    let mut pairs = Vec::with_capacity(endings.len());
    let alone = tokens(tokenizer, &context)?;
    for ending in endings {
        let continuation = format!("{delimiter}{ending}");
        room.take(alone.len() + continuation.len() / 8)?;
        pairs.push(match definition {
            Definition::PerToken => (alone.clone(), tokens(tokenizer, &continuation)?),
            Definition::LmEval => lm_eval::pair(tokenizer, &context, &continuation)?,
        });
        if pairs.last().is_some_and(|(_, ending)| ending.is_empty()) {
            return Err(format!("the ending {ending:?} has no token: give each ending a text"));
        }
    }
    Ok(Encoded { pairs, characters, label, place: String::new() })
}
