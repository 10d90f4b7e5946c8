//! Training data: what is read, split and refused.

#[path = "../data_support/mod.rs"]
mod data_support;

mod dataset;
mod mixture;
mod refusals;
mod split;
