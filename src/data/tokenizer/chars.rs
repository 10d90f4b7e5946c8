//! A vocabulary of characters.

use std::collections::{BTreeSet, HashMap};

/// The most characters of a vocabulary: ids have 16 bits.
const MOST: usize = 1 << 16;

/// A character that is not in a vocabulary.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("{c:?} at byte {offset} is not in the vocabulary")]
pub struct Unlisted {
    /// The character.
    pub c: char,
    /// Its first byte in the text.
    pub offset: usize,
}

/// Characters in the order of their ids.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Characters {
    all: Vec<char>,
    /// The ids of ASCII, which most text is.
    ascii: [Option<u16>; 128],
    ids: HashMap<char, u16>,
}

impl Characters {
    /// A vocabulary of these characters, with ids from 0 on.
    ///
    /// # Errors
    /// What keeps them from being one: none at all, more than 65,536, or a character that is there twice.
    pub fn new(all: Vec<char>) -> Result<Self, String> {
        if all.is_empty() || all.len() > MOST {
            return Err(format!("a vocabulary has between 1 and {MOST} characters, not {}", all.len()));
        }
        let (mut ascii, mut ids) = ([None; 128], HashMap::new());
        for (id, &c) in all.iter().enumerate() {
            if ids.insert(c, id as u16).is_some() {
                return Err(format!("the vocabulary has {c:?} twice"));
            }
            if let Some(place) = ascii.get_mut(c as usize) {
                *place = Some(id as u16);
            }
        }
        Ok(Self { all, ascii, ids })
    }

    /// Adds the characters of a text to those that are known.
    pub fn collect(text: &str, all: &mut BTreeSet<char>) {
        // a set of a hundred characters is asked once for each run of the same one
        let mut last = None;
        all.extend(text.chars().filter(|c| last.replace(*c) != Some(*c)));
    }

    /// The vocabulary of a text as nanoGPT makes it: its characters in the order of their code points.
    ///
    /// # Errors
    /// As of [`new`](Self::new).
    pub fn of(all: &BTreeSet<char>) -> Result<Self, String> {
        Self::new(all.iter().copied().collect())
    }

    /// Number of characters.
    #[must_use]
    #[expect(clippy::len_without_is_empty, reason = "there is no empty vocabulary")]
    pub fn len(&self) -> usize {
        self.all.len()
    }

    /// The character of an id.
    #[must_use]
    pub fn get(&self, id: u32) -> Option<char> {
        self.all.get(id as usize).copied()
    }

    /// All characters, as a text.
    #[must_use]
    pub fn text(&self) -> String {
        self.all.iter().collect()
    }

    /// Appends the ids of a text.
    pub(super) fn encode(&self, text: &str, out: &mut Vec<u16>) -> Result<(), Unlisted> {
        out.reserve(text.len());
        for (offset, c) in text.char_indices() {
            let id = match self.ascii.get(c as usize) {
                Some(id) => *id,
                None => self.ids.get(&c).copied(),
            };
            out.push(id.ok_or(Unlisted { c, offset })?);
        }
        Ok(())
    }
}
