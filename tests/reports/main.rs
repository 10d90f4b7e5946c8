//! Reading runs back: `list`, `compare`, `watch`, `export`, statistics and pictures.

#![allow(clippy::duplicate_mod, reason = "what tests share may be used alone, and brings what it needs")]

#[path = "../report_support/mod.rs"]
mod report_support;
#[path = "../support/mod.rs"]
mod support;

mod bases;
mod beside;
mod branches;
mod browser;
mod cadences;
mod chosen;
mod compare;
mod events;
mod export;
mod list;
mod live;
mod parts;
mod plots;
mod removal;
mod stats;
mod sweeps;
mod targets;
mod trust;
mod unreadable;
mod watch;
