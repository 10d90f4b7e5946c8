//! A run to train, with everything that is settled before its first step.

use super::call::Call;
use super::inputs::Data;
use crate::plan::predict::Prediction;
use crate::plan::{Begun, Plan};
use crate::recipe::{Recipe, Resolved};
use crate::run::RunDir;
use crate::run::checkpoint::TrainedOn;

/// A run to train.
pub(super) struct Job<'a> {
    pub(super) call: &'a Call<'a>,
    pub(super) resolved: &'a Resolved,
    pub(super) data: &'a Data,
    /// The run's directory, locked.
    pub(super) dir: RunDir,
    /// The run's identity.
    pub(super) hash: &'a str,
    pub(super) plan: Plan,
    /// What the run goes on with, where this session was given another micro-batch; known to the leader.
    pub(super) chosen: Option<Begun>,
    /// The training data that its first weights had seen; known to the leader.
    pub(super) trained_before: TrainedOn,
    /// By what all training data of its checkpoints are known again; known to the leader.
    pub(super) trained_files: Vec<String>,
    /// How long it is expected to take, once the leader has asked.
    pub(super) prediction: Option<Prediction>,
    /// What `--set` changed of the run's own recipe, as `key=value`.
    pub(super) overrides: &'a [String],
}

impl<'a> Job<'a> {
    pub(super) fn new(
        call: &'a Call<'a>,
        (resolved, data): (&'a Resolved, &'a Data),
        (dir, hash): (RunDir, &'a str),
        plan: Plan,
    ) -> Self {
        let trained_before = data.start.trained_on();
        Self {
            call,
            resolved,
            data,
            dir,
            hash,
            plan,
            chosen: None,
            trained_before,
            trained_files: Vec::new(),
            prediction: None,
            overrides: &[],
        }
    }

    pub(super) fn overriding(self, overrides: &'a [String]) -> Self {
        Self { overrides, ..self }
    }

    pub(super) fn recipe(&self) -> &Recipe {
        &self.resolved.recipe
    }
}
