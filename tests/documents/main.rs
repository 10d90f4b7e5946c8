//! The pages and the source hold what they say.

#![allow(clippy::duplicate_mod, reason = "what tests share may be used alone, and brings what it needs")]

#[path = "../document_support/mod.rs"]
mod document_support;
#[path = "../source_support/mod.rs"]
mod source_support;

mod architecture;
mod book;
mod commands;
mod lengths;
mod manual;
mod pages;
mod supply;
