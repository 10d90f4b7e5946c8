//! The pages and the source hold what they say.

#[path = "../document_support/mod.rs"]
mod document_support;
#[path = "../source_support/mod.rs"]
mod source_support;

mod architecture;
mod commands;
mod pages;
