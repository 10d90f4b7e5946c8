//! `builtin:lipsum`: endless pseudo-Latin, so that a new machine can train without a download.
//!
//! The text is a second-order Markov chain over the first book of Cicero's *De finibus* and the traditional
//! lorem ipsum, both from the `lipsum` crate. The seed determines it exactly; another seed gives another text
//! of the same kind, which serves as validation data.

use super::DataError;
use lipsum::MarkovChain;
use rand_chacha::ChaCha20Rng;
use rand_chacha::rand_core::SeedableRng;
use std::fmt;

/// The prefix of every built-in name.
pub const PREFIX: &str = "builtin:";

/// A paragraph ends with the first sentence that reaches this many words.
const PARAGRAPH: u64 = 60;

/// A longer text would be hundreds of megabytes of the same few thousand words.
const MAX_WORDS: u64 = 100_000_000;

/// The parameters of a lorem-ipsum text. Displayed as the name that produces it again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Lipsum {
    /// Seed of the random walk.
    pub seed: u64,
    /// Length of the text in words.
    pub words: u64,
}

impl Default for Lipsum {
    fn default() -> Self {
        Self { seed: 1, words: 200_000 }
    }
}

impl fmt::Display for Lipsum {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        write!(f, "{PREFIX}lipsum:seed={},words={}", self.seed, self.words)
    }
}

impl Lipsum {
    /// Parses `builtin:lipsum[:seed=N][,words=N]`.
    pub fn parse(spec: &str) -> Result<Self, DataError> {
        let wrong = |detail: String| DataError::BuiltinOption { spec: spec.into(), detail };
        let rest = spec.strip_prefix(PREFIX).and_then(|rest| rest.strip_prefix("lipsum"));
        let options = match rest {
            Some("") => return Ok(Self::default()),
            Some(rest) => rest.strip_prefix(':'),
            None => None,
        };
        let options = options.ok_or_else(|| DataError::UnknownBuiltin { spec: spec.into() })?;
        let (mut seed, mut words) = (None, None);
        for option in options.split(',') {
            let (key, value) = option
                .split_once('=')
                .ok_or_else(|| wrong(format!("has the option `{option}` without a value")))?;
            let place = match key {
                "seed" => &mut seed,
                "words" => &mut words,
                _ => return Err(wrong(format!("has the unknown option `{key}`"))),
            };
            let number = value
                .parse::<u64>()
                .map_err(|_| wrong(format!("has {key} `{value}`, which is not a whole number")))?;
            if place.replace(number).is_some() {
                return Err(wrong(format!("gives {key} twice")));
            }
        }
        let default = Self::default();
        let parsed = Self { seed: seed.unwrap_or(default.seed), words: words.unwrap_or(default.words) };
        if !(1..=MAX_WORDS).contains(&parsed.words) {
            return Err(wrong(format!("asks for {} words, but 1 to {MAX_WORDS} are possible", parsed.words)));
        }
        Ok(parsed)
    }

    /// Generates the text: sentences that start with a capital, in paragraphs separated by an empty line.
    pub fn text(&self) -> String {
        let mut chain = MarkovChain::new();
        chain.learn(lipsum::LOREM_IPSUM);
        chain.learn(lipsum::LIBER_PRIMUS);
        let words = chain.iter_with_rng(ChaCha20Rng::seed_from_u64(self.seed));

        let mut text = String::new();
        let (mut in_paragraph, mut sentence_starts) = (0, true);
        for word in words.take(self.words as usize) {
            if in_paragraph > 0 {
                text.push(' ');
            }
            if sentence_starts {
                push_capitalized(&mut text, word);
            } else {
                text.push_str(word);
            }
            in_paragraph += 1;
            sentence_starts = word.trim_end_matches('\'').ends_with(['.', '!', '?']);
            if sentence_starts && in_paragraph >= PARAGRAPH {
                text.push_str("\n\n");
                in_paragraph = 0;
            }
        }
        text.truncate(text.trim_end().len());
        if !text.ends_with(['.', '!', '?', '\'']) {
            text.truncate(text.trim_end_matches(|c: char| c.is_ascii_punctuation()).len());
            text.push('.');
        }
        text.push('\n');
        text
    }
}

/// Appends `word` with its first letter, which may follow a quotation mark, in upper case.
fn push_capitalized(text: &mut String, word: &str) {
    let first = word.find(char::is_alphabetic).unwrap_or(0);
    text.push_str(&word[..first]);
    let mut rest = word[first..].chars();
    text.extend(rest.next().into_iter().flat_map(char::to_uppercase));
    text.push_str(rest.as_str());
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(spec: &str) -> String {
        Lipsum::parse(spec).expect_err("refused").to_string()
    }

    #[test]
    fn names_are_parsed_and_given_back() {
        assert_eq!(Lipsum::parse("builtin:lipsum").expect("valid"), Lipsum { seed: 1, words: 200_000 });
        assert_eq!(
            Lipsum::parse("builtin:lipsum:seed=7").expect("valid"),
            Lipsum { seed: 7, words: 200_000 }
        );
        let both = Lipsum::parse("builtin:lipsum:words=50,seed=7").expect("valid");
        assert_eq!(both, Lipsum { seed: 7, words: 50 });
        assert_eq!(both.to_string(), "builtin:lipsum:seed=7,words=50");
        assert_eq!(Lipsum::parse(&both.to_string()).expect("valid"), both);
    }

    #[test]
    fn wrong_names_are_explained() {
        assert!(message("builtin:shakespeare").contains("`builtin:shakespeare` is not built in"));
        assert!(message("builtin:lipsum2").contains("not built in"));
        assert!(message("builtin:lipsum:seed").contains("`seed` without a value"));
        assert!(message("builtin:lipsum:").contains("without a value"));
        assert!(message("builtin:lipsum:seed=x").contains("seed `x`"));
        assert!(message("builtin:lipsum:seed=-1").contains("seed `-1`"));
        assert!(message("builtin:lipsum:speed=1").contains("unknown option `speed`"));
        assert!(message("builtin:lipsum:seed=1,seed=2").contains("seed twice"));
        assert!(message("builtin:lipsum:words=0").contains("0 words"));
        assert!(message("builtin:lipsum:words=100000001").contains("100000001 words"));
    }

    #[test]
    fn the_text_reads_like_text() {
        for words in [1, 2, 59, 60, 1_000] {
            let text = Lipsum { seed: 3, words }.text();
            assert_eq!(text.split_whitespace().count() as u64, words);
            assert!(text.ends_with(".\n") || text.ends_with("?\n"), "{text:?}");
            assert!(!text.contains("\n\n\n") && !text.contains("  "));
            for paragraph in text.split("\n\n") {
                let first = paragraph.chars().find(|c| c.is_alphabetic()).expect("a letter");
                assert!(first.is_uppercase(), "{paragraph:?}");
            }
        }
        assert!(Lipsum { seed: 3, words: 1_000 }.text().contains("\n\n"));
    }

    /// Frozen, because the quickstart's results depend on it.
    #[test]
    fn golden_text() {
        let text = Lipsum::default().text();
        assert!(text.starts_with("Et accusamus et iusto odio dignissimos ducimus, qui blanditi"));
        assert_eq!(
            blake3::hash(text.as_bytes()).to_hex().as_str(),
            "ab14a153725da670675b2c4c77a1fff44d401fcbabf0a9111046d2bfceaf4bc1"
        );
        assert_ne!(text, Lipsum { seed: 2, ..Lipsum::default() }.text());
    }
}
