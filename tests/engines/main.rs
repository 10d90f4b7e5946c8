//! Engines against golden files and against each other; ranks, checkpoints, CUDA over its fakes.

#![allow(clippy::duplicate_mod, reason = "what tests share may be used alone, and brings what it needs")]

#[path = "../comm_support/mod.rs"]
mod comm_support;
#[path = "../cuda_support/mod.rs"]
mod cuda_support;
#[path = "../golden/mod.rs"]
mod golden;
#[path = "../log_support/mod.rs"]
mod log_support;
#[path = "../program/mod.rs"]
mod program;
#[path = "../support/mod.rs"]
mod support;
#[path = "../verify_support/mod.rs"]
mod verify_support;

mod comm_tcp;
mod comm_threads;
mod doctor;
mod evaluation;
mod generation;
mod golden_dfdx;
mod golden_fused;
mod gpu_clock;
mod gpu_device;
mod gpu_plans;
mod gpu_ranks;
mod ranks;
mod recompute;
mod run_checkpoint;
mod run_faults;
mod run_import;
mod threads;
mod verify_command;
mod verify_engines;
mod verify_training;
mod watch;
