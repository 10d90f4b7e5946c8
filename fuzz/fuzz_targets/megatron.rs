//! Megatron-LM's data: any bytes as the index beside 64 tokens are refused, or describe those tokens and no others.

#![no_main]

mod scratch;

use libfuzzer_sys::fuzz_target;
use runner::data::{Dataset, NoProgress, OpenOptions, Tokenizer, inspect};

fuzz_target!(|data: &[u8]| {
    let tokens: Vec<u8> = (1..=64u16).flat_map(|token| (257 * token).to_le_bytes()).collect();
    let path = scratch::write("m.bin", &tokens);
    scratch::write("m.idx", data);
    let options = OpenOptions {
        block_size: 4,
        vocab_size: 1 << 30,
        tokenizer: Tokenizer::gpt2(),
        cache_dir: scratch::dir(),
        progress: &NoProgress,
    };
    match Dataset::open(&[path.display().to_string()], options) {
        Ok(set) => {
            // of 16 or of 32 bits each
            assert!(matches!(set.tokens(), 32 | 64));
            let seen = inspect(&path, scratch::dir(), &NoProgress).expect("what can be trained on is shown");
            assert!(seen.documents.is_none_or(|documents| documents.tokens <= set.tokens()));
        }
        Err(error) => assert!(!error.to_string().is_empty()),
    }
});
