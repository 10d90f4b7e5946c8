//! Tasks: examples as tokens of one model, cut to its context.

use super::documents::{self, Choice, Document, LastWord};
use super::{EvalError, Share, llmc, lm_eval};
use crate::data::tokenizer::{Tokenizer, TokenizerKind};
use crate::regular;
use std::ops::Range;
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

/// One of the endings that may continue an example's context. Where its tokens lie is counted in 32 bits: a file has
/// up to 2 GiB, and an ending may be one byte of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Candidate {
    /// The context is read from this of its tokens on.
    context: u32,
    /// The ending's tokens among those of all endings.
    ending: Range<u32>,
    scored: u32,
    characters: u32,
}

impl Candidate {
    /// How many of its last tokens are scored; at least 1, fewer than all.
    #[must_use]
    pub fn scored(&self) -> usize {
        self.scored as usize
    }

    /// Characters of the ending as its file has it; 0 where the file has tokens only.
    #[must_use]
    pub fn characters(&self) -> usize {
        self.characters as usize
    }
}

/// A question with its answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Example {
    /// The tokens before each ending, which a small file may have very many of.
    context: Vec<u32>,
    /// Those of all endings, one behind the other.
    endings: Vec<u32>,
    /// The endings; one for a last word.
    pub candidates: Vec<Candidate>,
    /// The right one.
    pub label: usize,
}

impl Example {
    /// The tokens of the context and of an ending, at most T + 1, in two parts.
    #[must_use]
    pub fn parts(&self, candidate: &Candidate) -> [&[u32]; 2] {
        let Range { start, end } = candidate.ending;
        [&self.context[candidate.context as usize..], &self.endings[start as usize..end as usize]]
    }
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

/// The tokens of an example before they are cut.
pub(super) struct Encoded {
    pub(super) context: Vec<u32>,
    /// Those of all endings, one behind the other.
    pub(super) endings: Vec<u32>,
    /// Of each ending the end among these, and its characters.
    pub(super) ends: Vec<(usize, usize)>,
    pub(super) label: usize,
    /// Where it is in the file, for messages.
    pub(super) place: String,
}

/// What a file's examples may still have. Each ending comes with its context and its delimiter, so a long one with many
/// endings would take a day to score, or fill the memory, from a small file.
pub(super) struct Room {
    /// Tokens to be scored.
    scored: usize,
    /// Tokens of endings to be kept.
    kept: usize,
    /// Bytes of text to become tokens.
    encoded: usize,
}

impl Room {
    /// Tokens to be scored for each byte of a file: a context of two thousand bytes may have fifty endings.
    const SCORED_PER_BYTE: usize = 32;
    /// Tokens of endings to be kept for each byte of a file, at 4 bytes each.
    const KEPT_PER_BYTE: usize = 2;
    /// Bytes that become tokens for each byte of a file. A token of dashes may have 64, so tokens do not bound them.
    const ENCODED_PER_BYTE: usize = 64;

    /// That of a file of `bytes` bytes.
    pub(super) fn of(bytes: usize) -> Self {
        Self {
            scored: bytes.saturating_mul(Self::SCORED_PER_BYTE).saturating_add(1 << 20),
            kept: bytes.saturating_mul(Self::KEPT_PER_BYTE).saturating_add(1 << 24),
            encoded: bytes.saturating_mul(Self::ENCODED_PER_BYTE).saturating_add(1 << 22),
        }
    }

    /// Takes the text of an ending from it, before it becomes tokens.
    fn take_text(&mut self, bytes: usize) -> Result<(), String> {
        self.encoded = self.encoded.checked_sub(bytes).ok_or(TOO_OFTEN)?;
        Ok(())
    }

    /// Takes the tokens of a context with one ending from it.
    pub(super) fn take(&mut self, context: usize, ending: usize) -> Result<(), String> {
        let left = (self.scored.checked_sub(context + ending)).zip(self.kept.checked_sub(ending));
        (self.scored, self.kept) = left.ok_or(TOO_OFTEN)?;
        Ok(())
    }
}

const TOO_OFTEN: &str =
    "its endings repeat a long context or delimiter too often: shorten it, or leave out endings";

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
        // one after the other: the texts of all examples would take many times the memory of the file
        type Examples<'a> = Box<dyn Iterator<Item = Result<Encoded, EvalError>> + 'a>;
        let (kind, encoded): (_, Examples) = match llmc::is_eval_file(&bytes) {
            true if definition == Definition::LmEval || tokenizer.kind() != TokenizerKind::Gpt2 => {
                let what =
                    "llm.c's file, which has GPT-2's tokens and no text: give the JSONL of the task".into();
                return Err(EvalError::NoTask { path: path.to_owned(), what });
            }
            true => (Kind::Choice, Box::new(llmc::read(path, &bytes, room)?)),
            false => {
                let (first, documents) = documents::read(path, &bytes)?;
                let kind = match first {
                    Document::LastWord(_) => Kind::LastWord,
                    _ => Kind::Choice,
                };
                let encode = move |document: Result<_, _>| {
                    let (line, document) = document?;
                    encode(document, definition, tokenizer, &mut room)
                        .map(|encoded| Encoded { place: format!("line {line}"), ..encoded })
                        .map_err(|problem| EvalError::Line { path: path.to_owned(), line, problem })
                };
                (kind, Box::new(documents.map(encode)))
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
        let rows =
            self.examples.iter().flat_map(|example| example.candidates.iter().map(|one| example.parts(one)));
        rows.map(|[context, ending]| (context.len() + ending.len()) as u64 - 1).sum()
    }

    /// The blake3 digest of all tokens, endings and labels, 64 hexadecimal digits: what two files with equal examples
    /// for one model share.
    #[must_use]
    pub fn digest(&self) -> String {
        let mut hasher = blake3::Hasher::new();
        for example in &self.examples {
            let (label, candidates) = (example.label as u64, example.candidates.len() as u64);
            hasher.update(&label.to_le_bytes()).update(&candidates.to_le_bytes());
            for candidate in &example.candidates {
                let tokens = example.parts(candidate);
                for number in [tokens[0].len() + tokens[1].len(), candidate.scored(), candidate.characters()]
                {
                    hasher.update(&(number as u64).to_le_bytes());
                }
                tokens.iter().copied().flatten().for_each(|token| {
                    hasher.update(&token.to_le_bytes());
                });
            }
        }
        hasher.finalize().to_hex().to_string()
    }

    /// What the names of its scores begin with: its own name, and that of the definition where it is not the usual one.
    #[must_use]
    pub fn prefix(&self) -> String {
        match self.definition {
            Definition::LmEval if self.kind == Kind::Choice => format!("{}_lm_eval", self.name),
            _ => self.name.clone(),
        }
    }

    /// Cuts an example to the context and adds it.
    fn push(&mut self, path: &Path, encoded: Encoded, tokenizer: &Tokenizer) -> Result<(), EvalError> {
        let Limits { block_size, vocab_size } = self.limits;
        let Encoded { mut context, mut endings, ends, label, place } = encoded;
        if context.is_empty() {
            // something has to come before the first token that is scored
            let begin = tokenizer.prompt("", vocab_size).ok().and_then(|tokens| tokens.first().copied());
            context.push(begin.unwrap_or(0));
        }
        let outside = context.iter().chain(&endings).find(|&&token| token as usize >= vocab_size);
        if let Some(&token) = outside {
            let (path, tokenizer) = (path.to_owned(), tokenizer.kind().word());
            return Err(EvalError::Token { path, place, token, vocab_size, tokenizer });
        }
        let (mut cut, mut start) = (Cut::default(), 0);
        let mut candidates = Vec::with_capacity(ends.len());
        for (end, characters) in ends {
            let length = end - start;
            // the last T + 1 tokens
            let excess = (context.len() + length).saturating_sub(block_size + 1);
            let of_context = excess.min(context.len());
            let scored = length.min(block_size);
            cut.contexts |= usize::from(excess > 0);
            cut.endings |= usize::from(scored < length);
            candidates.push(Candidate {
                context: of_context as u32,
                ending: (start + excess - of_context) as u32..end as u32,
                scored: scored as u32,
                characters: characters as u32,
            });
            start = end;
        }
        self.cut.contexts += cut.contexts;
        self.cut.endings += cut.endings;
        context.shrink_to_fit();
        endings.shrink_to_fit();
        self.examples.push(Example { context, endings, candidates, label });
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
            let (context, endings) = (tokens(tokenizer, &context)?, tokens(tokenizer, &format!(" {word}"))?);
            let ends = vec![(endings.len(), word.chars().count())];
            return Ok(Encoded { context, endings, ends, label: 0, place: String::new() });
        }
        (Document::Choice(choice), _) => choice,
        (Document::HellaSwag(document), Definition::PerToken) => document.raw(),
        (Document::HellaSwag(document), Definition::LmEval) => lm_eval::cleaned(&document)?,
    };
    let Choice { context: text, endings: texts, label, delimiter } = choice;
    let context = match definition {
        Definition::PerToken => tokens(tokenizer, &text)?,
        Definition::LmEval => tokens(tokenizer, text.trim_end())?,
    };
    let (mut endings, mut ends) = (Vec::new(), Vec::with_capacity(texts.len()));
    for ending in texts {
        let continuation = format!("{delimiter}{ending}");
        // the harness's definition encodes the context again
        let again = if definition == Definition::LmEval { text.len() } else { 0 };
        room.take_text(continuation.len() + again)?;
        let own = match definition {
            Definition::PerToken => tokens(tokenizer, &continuation)?,
            Definition::LmEval => lm_eval::ending(tokenizer, &text, context.len(), &continuation)?,
        };
        if own.is_empty() {
            return Err(format!("the ending {ending:?} has no token: give each ending a text"));
        }
        room.take(context.len(), own.len())?;
        endings.extend(own);
        ends.push((endings.len(), ending.chars().count()));
    }
    Ok(Encoded { context, endings, ends, label, place: String::new() })
}
