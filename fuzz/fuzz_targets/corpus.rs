//! Files of text, whatever their names say: any bytes become the tokens that the card counts, or are refused and leave
//! nothing behind. JSON lines become what another parser finds in them.

#![no_main]

mod scratch;

use libfuzzer_sys::fuzz_target;
use scratch::readers;

fuzz_target!(|data: &[u8]| readers::corpus(scratch::dir(), data));
