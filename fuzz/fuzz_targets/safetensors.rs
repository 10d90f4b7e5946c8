//! Weights, in the formats of safetensors, PyTorch and llm.c: any bytes are a model of these dimensions, all of whose
//! elements are read, or refused.

#![no_main]

mod scratch;

use libfuzzer_sys::fuzz_target;
use scratch::readers;

fuzz_target!(|data: &[u8]| readers::safetensors(scratch::dir(), data));
