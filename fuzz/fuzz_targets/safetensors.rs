//! Weights, in the formats of safetensors, PyTorch and llm.c: any bytes are a model of these dimensions, all of whose
//! elements are read, or refused.

#![no_main]

mod scratch;

use libfuzzer_sys::fuzz_target;
use runner::model::{Dims, ParamLayout};
use runner::run::import;

fuzz_target!(|data: &[u8]| {
    let dims = Dims { n_layer: 1, n_head: 1, n_embd: 2, block_size: 2, vocab_size: 3, padded_vocab: 4 };
    let layout = ParamLayout::new(&dims);
    let path = scratch::write("weights.safetensors", data);
    let mut out = vec![f32::NAN; layout.len];
    match import(&path, &dims, &layout, &mut out) {
        Ok(()) => drop(import::check(&path, &dims, &layout).expect("what was imported can be")),
        Err(error) => assert!(!error.to_string().is_empty()),
    }
});
