//! The CUDA kernels and whole steps of the CUDA engine, on the CPU.
//!
//! Needs a C++ compiler: `cargo test --release --features cuda-emulator --test emulator`.

#![allow(clippy::duplicate_mod, reason = "what tests share may be used alone, and brings what it needs")]

#[path = "../comm_support/mod.rs"]
mod comm_support;

mod faults;
mod flash;
mod kernels;
mod planted;
mod ranks;
mod steps;
mod traffic;
