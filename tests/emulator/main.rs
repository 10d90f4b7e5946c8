//! The CUDA kernels and whole steps of the CUDA engine, on the CPU.
//!
//! Needs a C++ compiler: `cargo test --release --features cuda-emulator --test emulator`.

#[path = "../comm_support/mod.rs"]
mod comm_support;

mod faults;
mod flash;
mod kernels;
mod ranks;
mod steps;
mod traffic;
