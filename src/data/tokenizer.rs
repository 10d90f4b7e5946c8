//! GPT-2's byte-pair encoding, from the vocabulary inside `tiktoken-rs`.
//!
//! GPT-2 first splits text into pieces with the pattern
//! `'(?:[sdmt]|ll|ve|re)| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+`
//! and encodes each piece by itself. A cut inside a piece changes the tokens, and because of the look-ahead most
//! cuts at line ends are wrong. One rule is always right: *cut directly before a white-space character that follows
//! any other character*. No alternative of the pattern continues past white space once it has matched anything else,
//! so a piece ends there; no alternative looks back, so the right part is split as before; and the left part does
//! not end in white space, so its look-aheads give the same result.

use rayon::prelude::*;
use std::sync::LazyLock;
use tiktoken_rs::CoreBPE;

/// The id that separates documents, `<|endoftext|>`. Encoding plain text never yields it.
pub const END_OF_TEXT: u32 = 50256;

/// Number of ids in GPT-2's vocabulary, including the end of text.
pub const VOCAB_SIZE: usize = 50257;

/// Runs of white space longer than this many bytes are encoded separately: for the pattern's look-ahead, the
/// regex engine keeps a state per character of the run, and it fails beyond a million of them.
const LONG_RUN: usize = 1 << 16;

/// A prompt that a vocabulary cannot spell.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("the prompt {text:?} has token {token}, which a vocabulary of {vocab_size} does not have")]
pub struct PromptError {
    /// The prompt.
    pub text: String,
    /// The first token that is not there.
    pub token: u32,
    /// Number of ids that the model knows.
    pub vocab_size: usize,
}

/// GPT-2's tokenizer.
pub struct Tokenizer {
    bpe: CoreBPE,
}

impl Tokenizer {
    /// The tokenizer, built on first use and shared by the whole process.
    pub fn gpt2() -> &'static Self {
        static GPT2: LazyLock<Tokenizer> = LazyLock::new(|| Tokenizer {
            bpe: tiktoken_rs::r50k_base().expect("the vocabulary compiled into tiktoken-rs is well-formed"),
        });
        &GPT2
    }

    /// The tokens of `text`. A special token in it is encoded as ordinary characters.
    pub fn encode_ordinary(&self, text: &str) -> Vec<u32> {
        self.encode_isolating(text, LONG_RUN)
    }

    /// The tokens of a prompt, all of them below `vocab_size`. An empty prompt becomes [`END_OF_TEXT`], with which
    /// documents begin.
    ///
    /// # Errors
    /// The first token that the vocabulary does not have.
    pub fn prompt(&self, text: &str, vocab_size: usize) -> Result<Vec<u32>, PromptError> {
        let mut tokens = self.encode_ordinary(text);
        if tokens.is_empty() {
            tokens.push(END_OF_TEXT);
        }
        match tokens.iter().find(|&&token| token as usize >= vocab_size) {
            Some(&token) => Err(PromptError { text: text.to_owned(), token, vocab_size }),
            None => Ok(tokens),
        }
    }

    /// The tokens of `text`, in parts of about `part` bytes that the current pool's threads encode.
    pub(super) fn encode_parallel(&self, text: &str, part: usize) -> Vec<Vec<u32>> {
        split(text, part).into_par_iter().map(|part| self.encode_ordinary(part)).collect()
    }

    /// The text of `tokens`. Invalid UTF-8 (a token may end inside a character) and ids outside the
    /// vocabulary become U+FFFD.
    pub fn decode(&self, tokens: &[u32]) -> String {
        let mut bytes = Vec::with_capacity(4 * tokens.len());
        for &token in tokens {
            match self.bpe.decode_bytes(&[token]) {
                Ok(piece) => bytes.extend(piece),
                Err(_) => bytes.extend("\u{fffd}".as_bytes()),
            }
        }
        String::from_utf8_lossy(&bytes).into_owned()
    }

    /// Encodes `text`, with every run of white space longer than `long_run` (at least 4) bytes encoded
    /// separately. Such a run is one piece, except that its last character belongs to the next piece if text
    /// follows; so it must have at least two.
    fn encode_isolating(&self, text: &str, long_run: usize) -> Vec<u32> {
        let mut tokens = Vec::new();
        let mut rest = text;
        while let Some((start, end)) = find_long_run(rest, long_run) {
            let piece_end = if end == rest.len() { end } else { rest.floor_char_boundary(end - 1) };
            tokens.extend(self.bpe.encode_ordinary(&rest[..start]));
            tokens.extend(self.bpe.encode_ordinary(&rest[start..piece_end]));
            rest = &rest[piece_end..];
        }
        tokens.extend(self.bpe.encode_ordinary(rest));
        tokens
    }
}

/// The start and end of the first run of white space longer than `long_run` bytes.
fn find_long_run(text: &str, long_run: usize) -> Option<(usize, usize)> {
    let mut start = 0;
    for (at, c) in text.char_indices() {
        if !c.is_whitespace() {
            if at - start > long_run {
                return Some((start, at));
            }
            start = at + c.len_utf8();
        }
    }
    (text.len() - start > long_run).then_some((start, text.len()))
}

/// Splits `text` into parts of at least `part` bytes, each as little longer as the rule above allows. The
/// tokens of the parts together are the tokens of the whole.
pub(super) fn split(text: &str, part: usize) -> Vec<&str> {
    let mut parts = Vec::new();
    let mut rest = text;
    while let Some(at) = safe_cut(rest, part) {
        let (head, tail) = rest.split_at(at);
        parts.push(head);
        rest = tail;
    }
    parts.push(rest);
    parts
}

/// The first position at or after byte `from` (rounded down to a character) where `text` may be cut.
pub(super) fn safe_cut(text: &str, from: usize) -> Option<usize> {
    let from = text.floor_char_boundary(from);
    let mut after_space = text[..from].chars().next_back().is_none_or(char::is_whitespace);
    for (at, c) in text[from..].char_indices() {
        let space = c.is_whitespace();
        if space && !after_space {
            return Some(from + at);
        }
        after_space = space;
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Text that is dense in the pattern's corner cases: contractions, all kinds of white space, digits,
    /// other scripts.
    fn awkward_text() -> impl Strategy<Value = String> {
        let piece = prop_oneof![
            3 => "[a-zA-Z]{1,6}",
            3 => "[ \t\n\r\u{b}\u{c}]{1,5}",
            2 => " {1,4}",
            2 => "\n{1,4}",
            1 => "[\u{a0}\u{85}\u{1680}\u{2003}\u{2028}\u{3000}\u{200b}\u{feff}\u{1c}]{1,3}",
            1 => "[0-9½Ⅳ٣]{1,4}",
            1 => "'(s|t|re|ve|ll|d|m|x|S)",
            1 => "[-.,;:!?'\"()<|>_]{1,3}",
            1 => "[éßдж漢字नि🦀👩\u{200d}🚀\u{301}]{1,4}",
        ];
        proptest::collection::vec(piece, 0..60).prop_map(|pieces| pieces.concat())
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(2_000))]

        #[test]
        fn parts_encode_like_the_whole(text in awkward_text(), part in 0usize..40) {
            let parts = split(&text, part);
            prop_assert_eq!(parts.concat(), text.clone());
            prop_assert!(text.is_empty() || parts.iter().all(|p| !p.is_empty()));
            let tokenizer = Tokenizer::gpt2();
            let whole = tokenizer.bpe.encode_ordinary(&text);
            prop_assert_eq!(tokenizer.encode_parallel(&text, part).concat(), whole);
        }

        #[test]
        fn isolated_runs_encode_like_the_whole(text in awkward_text(), long_run in 4usize..12) {
            let tokenizer = Tokenizer::gpt2();
            prop_assert_eq!(tokenizer.encode_isolating(&text, long_run), tokenizer.bpe.encode_ordinary(&text));
        }

        #[test]
        fn decoding_gives_the_text_back(text in awkward_text()) {
            let tokenizer = Tokenizer::gpt2();
            prop_assert_eq!(tokenizer.decode(&tokenizer.encode_ordinary(&text)), text);
        }
    }

    /// The ids are those of OpenAI's encoder.
    #[test]
    fn known_encodings() {
        let tokenizer = Tokenizer::gpt2();
        assert_eq!(
            tokenizer.encode_ordinary("Hello, I'm a language model,"),
            [15496, 11, 314, 1101, 257, 3303, 2746, 11]
        );
        assert_eq!(tokenizer.encode_ordinary("First Citizen:\n\n"), [5962, 22307, 25, 628]);
        assert_eq!(tokenizer.encode_ordinary(""), Vec::<u32>::new());
    }

    #[test]
    fn special_tokens_in_text_are_ordinary_text() {
        let tokens = Tokenizer::gpt2().encode_ordinary("a<|endoftext|>b");
        assert!(!tokens.contains(&END_OF_TEXT));
        assert_eq!(Tokenizer::gpt2().decode(&[END_OF_TEXT]), "<|endoftext|>");
    }

    #[test]
    fn broken_utf8_and_unknown_ids_decode_to_replacements() {
        let tokenizer = Tokenizer::gpt2();
        let crab = tokenizer.encode_ordinary("🦀");
        assert!(crab.len() > 1);
        assert!(tokenizer.decode(&crab[..1]).contains('\u{fffd}'));
        assert_eq!(tokenizer.decode(&[15496, VOCAB_SIZE as u32, 11]), "Hello\u{fffd},");
    }

    /// Without special treatment, the regex engine runs out of stack where text follows the spaces.
    #[test]
    fn millions_of_spaces_are_encoded() {
        let tokenizer = Tokenizer::gpt2();
        for (before, after) in [("a", "b"), ("", "\n b"), ("a", "")] {
            let text = format!("{before}{}{after}", " ".repeat(1_500_000));
            assert_eq!(tokenizer.decode(&tokenizer.encode_ordinary(&text)), text);
        }
    }

    #[test]
    fn text_without_white_space_stays_whole() {
        assert_eq!(split("abcdefgh", 2), ["abcdefgh"]);
        assert_eq!(split("ab cd\n\n ef", 1), ["ab", " cd", "\n\n ef"]);
    }
}
