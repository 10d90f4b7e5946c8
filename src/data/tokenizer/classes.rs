//! The classes of characters that GPT-2's pattern tells apart, from the tables of `regex-syntax`, which tiktoken's own
//! regex engine uses: the standard library's notion of a letter is wider.

use regex_syntax::hir::{Class, HirKind};
use std::sync::LazyLock;

/// What a character is to GPT-2's pattern.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    /// Neither of the others.
    Other,
    /// `\p{L}`.
    Letter,
    /// `\p{N}`.
    Number,
    /// `\s`.
    Space,
}

/// Characters per page of the table; pages with the same contents are stored once.
const PAGE: usize = 256;

/// The kind of every character, in two stages.
pub(super) struct Classes {
    ascii: [Kind; 128],
    pages: Vec<u16>,
    kinds: Vec<[Kind; PAGE]>,
}

impl Classes {
    /// The table, built on first use.
    pub(super) fn get() -> &'static Self {
        static CLASSES: LazyLock<Classes> = LazyLock::new(Classes::new);
        &CLASSES
    }

    fn new() -> Self {
        let mut all = vec![Kind::Other; 0x11_0000];
        for (pattern, kind) in [(r"\p{L}", Kind::Letter), (r"\p{N}", Kind::Number), (r"\s", Kind::Space)] {
            let hir = regex_syntax::parse(pattern).expect("a pattern of the library's own documentation");
            let HirKind::Class(Class::Unicode(class)) = hir.kind() else {
                unreachable!("{pattern} is a class of characters")
            };
            for range in class.ranges() {
                all[range.start() as usize..=range.end() as usize].fill(kind);
            }
        }
        let (mut pages, mut kinds) = (Vec::new(), Vec::<[Kind; PAGE]>::new());
        for page in all.as_chunks::<PAGE>().0 {
            let at = kinds.iter().position(|known| known == page).unwrap_or_else(|| {
                kinds.push(*page);
                kinds.len() - 1
            });
            pages.push(at as u16);
        }
        let ascii = std::array::from_fn(|at| all[at]);
        Self { ascii, pages, kinds }
    }

    /// The kind of a character.
    pub(super) fn of(&self, c: char) -> Kind {
        let at = c as usize;
        self.kinds[usize::from(self.pages[at / PAGE])][at % PAGE]
    }

    /// The kind of the character that begins at byte `at` of `text`, and its length in bytes.
    #[inline]
    pub(super) fn at(&self, text: &str, at: usize) -> (Kind, usize) {
        match text.as_bytes()[at] {
            byte @ 0..0x80 => (self.ascii[usize::from(byte)], 1),
            _ => {
                let c = text[at..].chars().next().unwrap_or_default();
                (self.of(c), c.len_utf8())
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn characters_are_of_the_kind_that_the_pattern_means() {
        let classes = Classes::get();
        for (characters, kind) in [
            ("aZéßжд漢字निª", Kind::Letter),
            ("09½Ⅳ٣²", Kind::Number),
            (" \t\n\r\u{b}\u{c}\u{85}\u{a0}\u{1680}\u{2003}\u{2028}\u{3000}", Kind::Space),
            ("'-_.🦀\u{301}\u{200b}\u{feff}\u{1c}\u{10ffff}", Kind::Other),
        ] {
            // a vowel sign is a mark, no letter
            for c in characters.chars().filter(|&c| c != 'ि') {
                assert_eq!(classes.of(c), kind, "{c:?}");
                assert_eq!(classes.at(&c.to_string(), 0), (kind, c.len_utf8()), "{c:?}");
            }
        }
    }
}
