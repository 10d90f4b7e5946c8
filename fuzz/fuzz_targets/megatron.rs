//! Megatron-LM's data: any bytes as the index beside 64 tokens are refused, or describe those tokens and no others.

#![no_main]

mod scratch;

use libfuzzer_sys::fuzz_target;
use scratch::readers;

fuzz_target!(|data: &[u8]| readers::megatron(scratch::dir(), data));
