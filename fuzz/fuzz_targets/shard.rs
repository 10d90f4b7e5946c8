//! Files of tokens: any bytes under any extension are a data set whose rows can all be read, or refused.

#![no_main]

mod scratch;

use libfuzzer_sys::fuzz_target;
use runner::data::{Dataset, NoProgress, OpenOptions, TokenStream, Tokenizer};

fuzz_target!(|data: &[u8]| {
    let Some((&kind, bytes)) = data.split_first() else { return };
    // text is encoded and kept, which is slow and not what is looked for here
    let name = ["a.bin", "a.npy", "a.dat"][usize::from(kind) % 3];
    let path = scratch::write(name, bytes);
    let block_size = 1 + usize::from(kind >> 4);
    let options = OpenOptions {
        block_size,
        vocab_size: 50257,
        tokenizer: Tokenizer::gpt2(),
        cache_dir: scratch::dir(),
        progress: &NoProgress,
    };
    match Dataset::open(&[path.display().to_string()], options) {
        Ok(set) => {
            let (mut inputs, mut targets) = (vec![0; block_size], vec![0; block_size]);
            let stream = TokenStream::new(&set, u64::from(kind), true);
            for row in 0..set.rows().min(64) {
                stream.fill(row, 1, &mut inputs, &mut targets);
                assert!(inputs.iter().chain(&targets).all(|&token| token < 50257));
                let (_, token) = stream.locate(row);
                assert!(token + block_size as u64 + 1 <= set.tokens());
            }
            assert!(set.unigram_entropy().is_finite());
        }
        Err(error) => assert!(!error.to_string().is_empty()),
    }
});
