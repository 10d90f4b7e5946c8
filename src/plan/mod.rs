//! From a recipe and the hardware to every derived number.

pub mod memory;
