//! Recipes: any text is either a recipe or refused with a message, which can be shown; a recipe that was read can be
//! written and is then the same.

#![no_main]

mod scratch;

use libfuzzer_sys::fuzz_target;
use scratch::readers;

fuzz_target!(|data: &[u8]| readers::recipe(scratch::dir(), data));
