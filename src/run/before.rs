//! What a run began from: another run, weights, and what these had been trained on.

use serde::{Deserialize, Serialize};

/// The run that another one began from.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Parent {
    /// The name of its directory.
    pub run: String,
    /// The step of its checkpoint.
    pub step: u64,
    /// Whether the whole state was taken, so that the new run went on at that step, or the weights alone.
    pub optimizer: bool,
    /// Whether the steps of that state were not all that it was trained for: that run, or one before it, had begun with
    /// weights that were trained before.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub with_weights: bool,
}

impl Parent {
    /// Whether both began at the same step of one run. Records of earlier versions do not say what that began with.
    #[must_use]
    pub fn is_place_of(&self, other: &Self) -> bool {
        (&self.run, self.step, self.optimizer) == (&other.run, other.step, other.optimizer)
    }

    /// The steps that it has taken of a run which began from it: none where that took its weights alone.
    #[must_use]
    pub fn steps(&self) -> u64 {
        if self.optimizer { self.step } else { 0 }
    }
}

/// What the weights that a run began with had been trained on, where those were other data than its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum TrainedBefore {
    /// Its validation data.
    ValidationData,
    /// Data that may hold its validation data or not.
    OtherData,
}
