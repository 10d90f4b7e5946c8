//! What a checkpoint says about the run besides the tensors.

use super::job::Job;
use crate::plan::Begun;
use crate::run::checkpoint::{BestState, CheckpointState, ChosenState, FileDigest, Scaler, WatchdogState};
use crate::train::Progress;
use std::collections::BTreeMap;

/// The state of a run at `progress`, after `elapsed_s` seconds and with what its `logs` hold by then.
pub(super) fn state(
    job: &Job,
    progress: &Progress,
    elapsed_s: f64,
    logs: BTreeMap<String, FileDigest>,
) -> CheckpointState {
    let Job { plan, data, hash, .. } = job;
    let has_trained = progress.step > plan.before.data_from;
    let trained_files = if has_trained { &job.trained_files } else { &job.trained_before.files };
    let (window, begun) = (progress.watchdog.window(), plan.begun());
    let chosen = |Begun { micro_batch, keeps_outputs }| ChosenState { micro_batch, keeps_outputs };
    CheckpointState {
        step: progress.step,
        tokens: plan.sizes.tokens_before(progress.step),
        updates_applied: progress.updates,
        rows_consumed: plan.sizes.rows_before(progress.step),
        data_from: plan.before.data_from,
        scaler: Scaler { scale: progress.scaler.scale(), good_steps: progress.scaler.good_steps() },
        watchdog: WatchdogState {
            losses: window.losses.iter().copied().collect(),
            grad_norms: window.grad_norms.iter().copied().collect(),
            skipped: window.skipped,
        },
        elapsed_s,
        recipe_hash: (*hash).to_owned(),
        data_digests: BTreeMap::from([
            ("train".to_owned(), data.digests.train.clone()),
            ("val".to_owned(), data.digests.val.clone()),
        ]),
        trained_before: job.trained_before.sets.clone(),
        trained_files: trained_files.clone(),
        micro_batch: begun.micro_batch,
        keeps_outputs: begun.keeps_outputs,
        chosen: job.chosen.map(chosen),
        best_val: progress.best_val_loss,
        kept: progress.kept.map(|best| BestState { step: best.step, val_loss: best.val_loss }),
        logs,
        ..CheckpointState::default()
    }
}
