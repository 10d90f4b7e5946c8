//! The table: the rows of all keys, and the names that other modules ask for.

use super::{Fallback, Key, Kind, experiment, training, upkeep};

/// The key by which replicas of an experiment differ.
pub const SEED: &str = "seed";
/// The key that chooses a preset.
pub const PRESET: &str = "model.preset";
/// The key that names the weights or the run that a run begins from.
pub const INIT_FROM: &str = "model.init_from";
/// The key whose value may be emulated where a device lacks it.
pub const PRECISION: &str = "compute.precision";
/// The key that decides which keys of `schedule` are used.
pub const SCHEDULE_KIND: &str = "schedule.kind";
pub(super) const MAX_STEPS: &str = "schedule.max_steps";
pub(super) const RAMP_START: &str = "batch.ramp_start";

/// Bounds are far above any sensible experiment: they keep every derived product within 64 bits.
pub(super) const STEPS: i64 = 1 << 40;
pub(super) const BATCH: i64 = 1 << 36;
pub(super) const TOKENS: i64 = 1 << 50;
pub(super) const WITH_WARMUP: &[&str] = &["cosine", "linear", "wsd"];

pub(super) const fn key(path: &'static str, kind: Kind, default: Fallback, doc: &'static str) -> Key {
    Key::new(path, kind, default, doc)
}

/// The rows, by what they are about.
const PARTS: [&[Key]; 3] = [experiment::ROWS, training::ROWS, upkeep::ROWS];
const LEN: usize = PARTS[0].len() + PARTS[1].len() + PARTS[2].len();

/// Every key, in the order in which a resolved recipe is written.
pub const KEYS: &[Key] = &{
    let mut all = [PARTS[0][0]; LEN];
    let (mut part, mut row, mut at) = (0, 0, 0);
    while at < LEN {
        if row == PARTS[part].len() {
            (part, row) = (part + 1, 0);
        }
        all[at] = PARTS[part][row];
        (row, at) = (row + 1, at + 1);
    }
    all
};
