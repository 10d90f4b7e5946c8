//! `runner`: a declarative experiment runner that trains GPT-2 models from TOML recipes.
//!
//! The binary is a thin shell over this library; `ARCHITECTURE.md` has the map and the invariants.

pub mod cli;
pub mod comm;
pub mod commands;
pub mod cuda;
pub mod data;
pub mod engine;
pub mod eval;
pub mod json;
pub mod model;
pub mod plan;
pub mod recipe;
pub mod regular;
pub mod report;
pub mod run;
pub mod session;
mod sync;
pub mod train;
pub mod web;
pub mod weights;
pub mod wording;
