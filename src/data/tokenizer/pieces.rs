//! GPT-2's pattern, written out: where a text is cut into the pieces that are encoded by themselves.
//!
//! The pattern is `'(?:[sdmt]|ll|ve|re)| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+`. A regex engine needs a
//! state per character of a long run for its look-ahead; this needs none, so time is linear and memory constant.

use super::classes::{Classes, Kind};

/// The pieces of a text, in order; together they are the text.
pub(super) struct Pieces<'a> {
    classes: &'static Classes,
    text: &'a str,
    at: usize,
}

impl<'a> Pieces<'a> {
    pub(super) fn of(text: &'a str) -> Self {
        Self { classes: Classes::get(), text, at: 0 }
    }

    /// The end of the run of characters of one kind that reaches to `at`.
    #[inline]
    fn run(&self, kind: Kind, mut at: usize) -> usize {
        while at < self.text.len() {
            let (next, len) = self.classes.at(self.text, at);
            if next != kind {
                break;
            }
            at += len;
        }
        at
    }

    /// The end of a contraction that begins at `at`, where there is one.
    fn contraction(&self, at: usize) -> Option<usize> {
        match self.text.as_bytes().get(at + 1..)? {
            [b's' | b'd' | b'm' | b't', ..] => Some(at + 2),
            [b'l', b'l', ..] | [b'v', b'e', ..] | [b'r', b'e', ..] => Some(at + 3),
            _ => None,
        }
    }

    /// The end of the piece that begins with white space.
    fn space(&self, start: usize, first: usize) -> usize {
        let end = self.run(Kind::Space, start + first);
        if end == self.text.len() {
            return end;
        }
        // what follows is no white space; the last character of the run is left for its piece
        let last = self.text.floor_char_boundary(end - 1);
        if last > start {
            return last;
        }
        match self.text.as_bytes()[start] {
            b' ' => {
                let (kind, len) = self.classes.at(self.text, end);
                self.run(kind, end + len)
            }
            _ => end,
        }
    }
}

impl Iterator for Pieces<'_> {
    /// The bytes of the piece in the text.
    type Item = std::ops::Range<usize>;

    #[inline]
    fn next(&mut self) -> Option<Self::Item> {
        let start = self.at;
        if start >= self.text.len() {
            return None;
        }
        let (kind, len) = self.classes.at(self.text, start);
        self.at = match kind {
            Kind::Space => self.space(start, len),
            Kind::Other if self.text.as_bytes()[start] == b'\'' => {
                self.contraction(start).unwrap_or_else(|| self.run(kind, start + len))
            }
            _ => self.run(kind, start + len),
        };
        Some(start..self.at)
    }
}

/// The first position at or after byte `from` (rounded down to a character) where `text` may be cut, so that the tokens
/// of both parts together are those of the whole.
///
/// Two cuts are always right. *Before white space that follows any other character*: no alternative of the pattern
/// continues past white space once it has matched anything else, so a piece ends there; no alternative looks back, so
/// the right part is split as before; and the left part does not end in white space, so its look-aheads give the same
/// result. *Behind a letter or number that another kind of character follows*: a run of either ends there, and no
/// alternative joins it to what follows.
pub(super) fn safe_cut(text: &str, from: usize) -> Option<usize> {
    let classes = Classes::get();
    let mut at = text.floor_char_boundary(from);
    let mut before = text[..at].chars().next_back().map(|c| classes.of(c));
    while at < text.len() {
        let (kind, len) = classes.at(text, at);
        match before {
            Some(Kind::Letter | Kind::Number) if before != Some(kind) => return Some(at),
            Some(Kind::Other) if kind == Kind::Space => return Some(at),
            _ => {}
        }
        before = Some(kind);
        at += len;
    }
    None
}
