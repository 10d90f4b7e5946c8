//! Files of other programs that would pass for tokens: they are named instead of being read as garbage.

use super::DataError;
use super::llmc::LLAMA3_MAGIC;
use std::path::Path;

/// What other files of llm.c than GPT-2's shards begin with, and what they are.
const LLMC: [(i32, &str); 5] = [
    (
        LLAMA3_MAGIC,
        "llm.c's Llama 3 shards, which hold 32-bit tokens of another vocabulary: tokenize the text with GPT-2's",
    ),
    (
        20_240_326,
        "llm.c's GPT-2 models, which hold weights: weights are named by model.init_from, not as data",
    ),
    (20_240_803, "llm.c's Llama 3 models, which hold weights of another architecture than GPT-2's"),
    (
        20_240_327,
        "llm.c's debug states, which hold a batch, its loss and its gradients for llm.c's own tests: name a shard of \
         tokens, which llm.c's scripts in dev/data write",
    ),
    (
        20_240_522,
        "llm.c's multiple-choice questions (HellaSwag, MMLU), which are for scoring a model and not for training: \
         name a shard of tokens",
    ),
];

/// A headerless file is judged by this much of its beginning.
const SAMPLE: usize = 16 << 20;

/// Fewer wide tokens than these may be 16-bit tokens by chance.
const ENOUGH: usize = 64;

/// Refuses a file whose first word says that it is llm.c's, but no shard of GPT-2's tokens.
pub(super) fn refuse_llmc(path: &Path, bytes: &[u8]) -> Result<(), DataError> {
    match LLMC.iter().find(|(magic, _)| bytes.starts_with(&magic.to_le_bytes())) {
        Some(&(magic, what)) => Err(DataError::ForeignMagic { path: path.into(), magic, what }),
        None => Ok(()),
    }
}

/// Refuses a headerless file that holds wider tokens than 16 bits.
pub(super) fn refuse_headerless(path: &Path, bytes: &[u8]) -> Result<(), DataError> {
    match width(bytes) {
        Some(bits) => Err(DataError::Wide { path: path.into(), bits }),
        None => Ok(()),
    }
}

/// The bits of a token, if they are more than 16 by all appearances: of numbers below 65536, the upper halves are 0.
/// Where everything is 0, nothing can be told.
fn width(bytes: &[u8]) -> Option<u32> {
    let sample = &bytes[..bytes.len().min(SAMPLE)];
    let has_upper_zeros = |width: usize| {
        let mut tokens = sample.chunks_exact(width);
        tokens.len() >= ENOUGH && tokens.all(|token| token[2..].iter().all(|&byte| byte == 0))
    };
    if !has_upper_zeros(4) || sample.iter().all(|&byte| byte == 0) {
        return None;
    }
    Some(if has_upper_zeros(8) { 64 } else { 32 })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn wide<const N: usize>(tokens: impl IntoIterator<Item = u64>) -> Vec<u8> {
        tokens.into_iter().flat_map(|token| token.to_le_bytes()[..N].to_vec()).collect()
    }

    fn headerless(bytes: &[u8]) -> Result<(), String> {
        refuse_headerless(Path::new("/nowhere/a.bin"), bytes).map_err(|error| error.to_string())
    }

    #[test]
    fn wide_tokens_are_refused_by_their_width() {
        let tokens = || (0..1000).map(|i| i * 7 % 50_257);
        let message = headerless(&wide::<4>(tokens())).expect_err("32 bits");
        assert!(message.contains("`/nowhere/a.bin` looks like 32-bit tokens"), "{message}");
        assert!(
            message.contains("astype(numpy.uint16)") && message.contains("dtype=numpy.uint32"),
            "{message}"
        );
        let message = headerless(&wide::<8>(tokens())).expect_err("64 bits");
        assert!(message.contains("64-bit tokens") && message.contains("dtype=numpy.uint64"), "{message}");
        headerless(&wide::<2>(tokens())).expect("16 bits");
        headerless(&[0; 4000]).expect("zeros");
    }

    #[test]
    fn every_other_file_of_llmc_is_named() {
        for (magic, what) in [
            (20_240_801, "Llama 3 shards"),
            (20_240_326, "model.init_from"),
            (20_240_803, "another architecture"),
            (20_240_327, "debug states"),
            (20_240_522, "HellaSwag"),
        ] {
            let bytes = [i32::to_le_bytes(magic).as_slice(), &[0; 2000]].concat();
            let message = refuse_llmc(Path::new("a.bin"), &bytes).expect_err("refused").to_string();
            let stated = format!("`a.bin` begins with {magic}");
            assert!(message.starts_with(&stated) && message.contains(what), "{message}");
            assert!(!message.contains("vocab_size"), "{message}");
        }
        refuse_llmc(Path::new("a.bin"), &super::super::llmc::MAGIC.to_le_bytes()).expect("a shard");
    }

    proptest! {
        #[test]
        fn tokens_of_16_bits_are_never_refused(
            tokens in prop::collection::vec(0u64..50_257, 0..2000),
            few in prop::collection::vec(0u64..3, 0..2000),
            zeros in 0usize..500,
        ) {
            for tokens in [tokens, few] {
                let padded = std::iter::repeat_n(0, zeros).chain(tokens).chain(std::iter::repeat_n(0, zeros));
                // two tokens in a row that are not 0 are enough to be sure of
                let padded: Vec<u64> = padded.chain([5, 6]).chain([7; 3]).collect();
                prop_assert_eq!(headerless(&wide::<2>(padded)), Ok(()));
            }
        }

        #[test]
        fn wider_tokens_are_always_refused(tokens in prop::collection::vec(1u64..65_536, 64..500)) {
            prop_assert!(headerless(&wide::<4>(tokens.clone())).is_err());
            prop_assert!(headerless(&wide::<8>(tokens)).is_err());
        }
    }
}
