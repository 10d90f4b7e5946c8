//! `state.json` and `run.json`: any bytes are read or refused; what was read is written as what reads the same. A state's
//! checksum is put right first, or nothing would get past it.

#![no_main]

mod scratch;

use libfuzzer_sys::fuzz_target;
use scratch::readers;

fuzz_target!(|data: &[u8]| readers::state(scratch::dir(), data));
