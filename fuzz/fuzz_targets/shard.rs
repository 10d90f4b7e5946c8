//! Files of tokens: any bytes under any extension are a data set whose rows can all be read, or refused.

#![no_main]

mod scratch;

use libfuzzer_sys::fuzz_target;
use scratch::readers;

fuzz_target!(|data: &[u8]| readers::shard(scratch::dir(), data));
