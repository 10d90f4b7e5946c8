//! Tokenizers: what text the ids of a model stand for.
//!
//! [`Tokenizer::gpt2`] is GPT-2's byte-pair encoding with the vocabulary inside `tiktoken-rs`; its ids are those of
//! OpenAI's encoder. [`Tokenizer::chars`] gives each character of a list an id, as nanoGPT's experiments with
//! characters do, and [`Tokenizer::bytes`] each byte of UTF-8.

mod bpe;
mod chars;
mod classes;
mod hugging_face;
mod pieces;
mod recognized;

use bpe::Bpe;
use rayon::prelude::*;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::sync::Arc;

pub use chars::{Characters, Unlisted};
use pieces::safe_cut;

/// The id that separates documents in GPT-2's vocabulary, `<|endoftext|>`. Encoding plain text never yields it.
pub const END_OF_TEXT: u32 = 50256;

/// Number of ids in GPT-2's vocabulary, including the end of text.
pub const VOCAB_SIZE: usize = 50257;

/// The kinds of tokenizers, by the words of `data.tokenizer`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum TokenizerKind {
    /// GPT-2's byte-pair encoding.
    #[default]
    Gpt2,
    /// An id per character of the text.
    Char,
    /// An id per byte of UTF-8.
    Bytes,
}

impl TokenizerKind {
    /// All kinds.
    pub const ALL: [Self; 3] = [Self::Gpt2, Self::Char, Self::Bytes];

    /// The word of `data.tokenizer`.
    #[must_use]
    pub fn word(self) -> &'static str {
        match self {
            Self::Gpt2 => "gpt2",
            Self::Char => "char",
            Self::Bytes => "bytes",
        }
    }
}

impl fmt::Display for TokenizerKind {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.write_str(self.word())
    }
}

/// A prompt that a vocabulary cannot spell.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PromptError {
    /// A token that the model does not have.
    #[error("the prompt {text:?} has token {token}, which a vocabulary of {vocab_size} does not have")]
    Token {
        /// The prompt.
        text: String,
        /// The first token that is not there.
        token: u32,
        /// Number of ids that the model knows.
        vocab_size: usize,
    },
    /// A character that the tokenizer does not have.
    #[error("the prompt {text:?} has {c:?}, which is none of the {count} characters that the model knows")]
    Character {
        /// The prompt.
        text: String,
        /// The first character that is not listed.
        c: char,
        /// Number of characters.
        count: usize,
    },
}

/// What text token ids stand for. Clones share their tables.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Tokenizer(Inner);

#[derive(Debug, Clone, PartialEq, Eq)]
enum Inner {
    Gpt2,
    Char(Arc<Characters>),
    Bytes,
}

impl Tokenizer {
    /// GPT-2's tokenizer, whose tables are built on first use and shared by the whole process.
    #[must_use]
    pub fn gpt2() -> &'static Self {
        const { &Self(Inner::Gpt2) }
    }

    /// A tokenizer of characters.
    #[must_use]
    pub fn chars(characters: Characters) -> Self {
        Self(Inner::Char(Arc::new(characters)))
    }

    /// The tokenizer of bytes: 256 ids, each the value of a byte of UTF-8.
    #[must_use]
    pub fn bytes() -> &'static Self {
        const { &Self(Inner::Bytes) }
    }

    /// Its kind.
    #[must_use]
    pub fn kind(&self) -> TokenizerKind {
        match self.0 {
            Inner::Gpt2 => TokenizerKind::Gpt2,
            Inner::Char(_) => TokenizerKind::Char,
            Inner::Bytes => TokenizerKind::Bytes,
        }
    }

    /// Number of ids.
    #[must_use]
    pub fn vocab_size(&self) -> usize {
        match &self.0 {
            Inner::Gpt2 => VOCAB_SIZE,
            Inner::Char(characters) => characters.len(),
            Inner::Bytes => 256,
        }
    }

    /// The characters in the order of their ids; `None` for another kind of tokenizer.
    #[must_use]
    pub fn characters(&self) -> Option<&Characters> {
        match &self.0 {
            Inner::Char(characters) => Some(characters),
            _ => None,
        }
    }

    /// The id that separates documents, in a vocabulary that has one.
    #[must_use]
    pub fn separator(&self) -> Option<u16> {
        (self.kind() == TokenizerKind::Gpt2).then_some(END_OF_TEXT as u16)
    }

    /// Appends the tokens of `text` to `out`. A special token in the text is encoded as ordinary characters.
    ///
    /// # Errors
    /// [`Unlisted`] for a character that a tokenizer of characters does not have; what comes before it is appended.
    pub fn encode_into(&self, text: &str, out: &mut Vec<u16>) -> Result<(), Unlisted> {
        match &self.0 {
            Inner::Gpt2 => Bpe::gpt2().encode(text, out),
            Inner::Char(characters) => characters.encode(text, out)?,
            Inner::Bytes => out.extend(text.bytes().map(u16::from)),
        }
        Ok(())
    }

    /// The tokens of `text`. A special token in it is encoded as ordinary characters; what a tokenizer of characters
    /// does not have is left out.
    #[must_use]
    pub fn encode_ordinary(&self, text: &str) -> Vec<u32> {
        let (mut out, mut rest) = (Vec::new(), text);
        while let Err(Unlisted { c, offset }) = self.encode_into(rest, &mut out) {
            rest = &rest[offset + c.len_utf8()..];
        }
        out.into_iter().map(u32::from).collect()
    }

    /// The tokens of a prompt, all of them below `vocab_size`. An empty prompt becomes one token: [`END_OF_TEXT`], with
    /// which documents begin, or the end of a line in a vocabulary without it.
    ///
    /// # Errors
    /// The first token that the model does not have, or the first character that the tokenizer does not have.
    pub fn prompt(&self, text: &str, vocab_size: usize) -> Result<Vec<u32>, PromptError> {
        let mut tokens = Vec::new();
        let encoded = self.encode_into(text, &mut tokens);
        encoded.map_err(|Unlisted { c, .. }| {
            let count = self.vocab_size();
            PromptError::Character { text: text.to_owned(), c, count }
        })?;
        let mut tokens: Vec<u32> = tokens.into_iter().map(u32::from).collect();
        if tokens.is_empty() {
            let line = || self.encode_ordinary("\n").first().copied().unwrap_or(0);
            tokens.push(self.separator().map_or_else(line, u32::from));
        }
        match tokens.iter().find(|&&token| token as usize >= vocab_size) {
            Some(&token) => Err(PromptError::Token { text: text.to_owned(), token, vocab_size }),
            None => Ok(tokens),
        }
    }

    /// The tokens of `text`, in parts of about `part` bytes that the current pool's threads encode.
    ///
    /// # Errors
    /// [`Unlisted`] for a character that a tokenizer of characters does not have.
    pub(super) fn encode_parallel(&self, text: &str, part: usize) -> Result<Vec<Vec<u16>>, Unlisted> {
        let encode = |(start, part): (usize, &str)| {
            let mut out = Vec::with_capacity(part.len() / 3);
            let encoded = self.encode_into(part, &mut out);
            encoded.map_err(|unlisted| Unlisted { offset: unlisted.offset + start, ..unlisted })?;
            Ok(out)
        };
        let mut start = 0;
        let parts = self.split(text, part).into_iter().map(|part| {
            start += part.len();
            (start - part.len(), part)
        });
        parts.collect::<Vec<_>>().into_par_iter().map(encode).collect()
    }

    /// The first position at or after byte `from` (rounded down to a character) where `text` may be cut, so that the
    /// tokens of both parts together are those of the whole.
    pub(super) fn cut(&self, text: &str, from: usize) -> Option<usize> {
        match self.0 {
            Inner::Gpt2 => safe_cut(text, from),
            Inner::Char(_) | Inner::Bytes => {
                let at = text.ceil_char_boundary(from.max(1));
                (at < text.len()).then_some(at)
            }
        }
    }

    /// Splits `text` into parts of at least `part` bytes, each as little longer as [`cut`](Self::cut) allows.
    fn split<'a>(&self, text: &'a str, part: usize) -> Vec<&'a str> {
        let mut parts = Vec::new();
        let mut rest = text;
        while let Some(at) = self.cut(rest, part) {
            let (head, tail) = rest.split_at(at);
            parts.push(head);
            rest = tail;
        }
        parts.push(rest);
        parts
    }

    /// Bytes of text that a token stands for, 0 for a separator of documents; `None` for an id outside the vocabulary.
    #[must_use]
    pub fn bytes_of(&self, token: u32) -> Option<usize> {
        match &self.0 {
            Inner::Gpt2 if token == END_OF_TEXT => Some(0),
            Inner::Gpt2 => (token < END_OF_TEXT).then(|| Bpe::gpt2().token(token as u16).len()),
            Inner::Bytes => (token < 256).then_some(1),
            Inner::Char(characters) => characters.get(token).map(char::len_utf8),
        }
    }

    /// The text of `tokens`. Invalid UTF-8 (a token may end inside a character) and ids outside the vocabulary become
    /// U+FFFD.
    #[must_use]
    pub fn decode(&self, tokens: &[u32]) -> String {
        let mut bytes = Vec::with_capacity(4 * tokens.len());
        for &token in tokens {
            let unknown = "\u{fffd}".as_bytes();
            match &self.0 {
                Inner::Gpt2 if token == END_OF_TEXT => bytes.extend(b"<|endoftext|>"),
                Inner::Gpt2 if token < END_OF_TEXT => bytes.extend(Bpe::gpt2().token(token as u16)),
                Inner::Bytes if token < 256 => bytes.push(token as u8),
                Inner::Char(characters) => match characters.get(token) {
                    Some(c) => bytes.extend(c.encode_utf8(&mut [0; 4]).bytes()),
                    None => bytes.extend(unknown),
                },
                Inner::Gpt2 | Inner::Bytes => bytes.extend(unknown),
            }
        }
        String::from_utf8_lossy(&bytes).into_owned()
    }
}

#[cfg(test)]
mod tests;
