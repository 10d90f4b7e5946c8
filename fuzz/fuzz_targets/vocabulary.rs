//! What says which text tokens stand for, nanoGPT's `meta.pkl` and `dataset.json`: any bytes are a vocabulary that
//! decodes what it encodes, or refused.

#![no_main]

mod scratch;

use libfuzzer_sys::fuzz_target;
use scratch::readers;

fuzz_target!(|data: &[u8]| readers::vocabulary(scratch::dir(), data));
