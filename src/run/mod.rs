//! A run on disk: directory, lock, CSV log, checkpoints.
//!
//! Everything that a run leaves behind is written here, so the promises about it live here too: a file is whole or
//! absent, one process writes a run at a time, readers never wait, and damage is named instead of trained on. The
//! module knows strings, numbers and flat buffers; it knows nothing of recipes, engines' insides or terminals.

mod appended;
pub mod before;
pub mod checkpoint;
pub mod column;
pub mod columns;
pub mod cut;
pub mod deletion;
mod digest;
pub mod dir;
pub mod error;
pub mod evaluations;
pub mod facts;
pub mod fault;
pub mod files;
pub mod find;
pub mod hf_config;
pub mod import;
mod import_advice;
pub mod lock;
pub mod log;
pub mod made;
pub mod named;
pub mod record;
pub mod records;
pub mod row;
pub mod samples;
pub mod seal;
mod status;
mod tensors;
pub mod usable;

pub use checkpoint::{CheckpointData, CheckpointState};
pub use columns::{TrainRow, ValRow};
pub use cut::{cut_back, row_at};
pub use dir::{RunDir, ensure_writable};
pub use error::RunError;
pub use import::import;
pub use log::{Log, TrainLog, ValLog};
pub use record::RunRecord;
pub use records::{read_train, read_val};
pub use status::{REFUSED, RunStatus, is_left_over, status, status_and_record};
