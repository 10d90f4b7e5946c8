//! Training through the program: what a user sees, what survives crashes and faults, what a run holds.

#![allow(clippy::duplicate_mod, reason = "what tests share may be used alone, and brings what it needs")]

#[path = "../server_support/mod.rs"]
mod server_support;
#[path = "../support/mod.rs"]
mod support;

mod bar;
mod best;
mod branch;
mod combinations;
mod control_characters;
mod crash_kills;
mod crash_starts;
mod crash_writes;
mod data_changes;
mod data_damaged;
mod data_kills;
mod data_names;
mod data_prepare;
mod data_records;
mod data_refused;
mod data_unfinished;
mod determinism;
mod diverged;
mod dry_run;
mod eval;
mod exchanged;
mod faults_data;
mod faults_logs;
mod faults_storage;
mod fetch;
mod fetch_refusals;
mod gone;
mod hostile_weights;
mod inspect;
mod leases;
mod log_format;
mod logs;
mod machine_memory;
mod measured;
mod memory;
mod missing;
mod mixture;
mod muon;
mod neighbours;
mod overlay;
mod planted;
mod processes;
mod ranks;
mod refusals;
mod resume;
mod runs;
mod sample;
mod sample_texts;
mod seen;
mod session_library;
mod shell;
mod signals;
mod signals_repeated;
mod simd_levels;
mod split;
mod strange_files;
mod strangers;
mod streams;
mod surroundings;
mod target;
mod tokenizers;
mod watchdog;
mod weights;
mod words;
