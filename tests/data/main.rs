//! Training data: what is read, split and refused.

#![allow(clippy::duplicate_mod, reason = "what tests share may be used alone, and brings what it needs")]

#[path = "../data_support/mod.rs"]
mod data_support;

mod changing;
mod dataset;
mod mixture;
mod refusals;
mod split;
