//! A model's `config.json`, and the index of one in several files.

#![no_main]

mod scratch;

use libfuzzer_sys::fuzz_target;
use scratch::readers;

fuzz_target!(|data: &[u8]| readers::config(scratch::dir(), data));
