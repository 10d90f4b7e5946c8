//! A model's `tokenizer.json`.

#![no_main]

mod scratch;

use libfuzzer_sys::fuzz_target;
use scratch::readers;

fuzz_target!(|data: &[u8]| readers::tokenizer(scratch::dir(), data));
