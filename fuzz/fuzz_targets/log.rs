//! `train.csv` and `val.csv`: any bytes are rows or an error; what is cut back has no row that was to go, and cutting it
//! again changes nothing.

#![no_main]

mod scratch;

use libfuzzer_sys::fuzz_target;
use scratch::readers;

fuzz_target!(|data: &[u8]| readers::log(scratch::dir(), data));
