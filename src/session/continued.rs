//! What a run goes on from: its newest checkpoint, the logs that led to it, what it began with, and an evaluation of
//! the checkpoint's step, which is made again.

use super::audience::of_damage;
use super::call::{self, Call};
use super::inputs::Data;
use super::leader::first_step;
use crate::plan::{Before, Begun, Plan};
use crate::recipe::{MicroBatch, Recipe, Resolved};
use crate::run::checkpoint::{self, CheckpointState, ChosenState, Newest};
use crate::run::columns::LOGS;
use crate::run::log::EarlierRow;
use crate::run::row::Row;
use crate::run::{RunDir, RunError, RunRecord, RunStatus, ValRow, dir, read_val, row_at, seal};
use crate::train::{self, Best};
use std::path::Path;

/// Checks that a run's logs are those that led to a checkpoint. One of an earlier version does not state digests.
pub(super) fn check_logs(run: &Path, data: &Data, state: &CheckpointState) -> Result<(), RunError> {
    // a record that a power cut has left empty says nothing
    let of_record = RunRecord::read(run)?.map(|record| record.first_step());
    let first_step = of_record.unwrap_or_else(|| first_step(data, None));
    seal::verify_rows(&run.join(dir::TRAIN_CSV), first_step..state.step)?;
    for name in LOGS.iter().map(|(name, _)| *name).chain([dir::SAMPLES]) {
        if let Some(expected) = state.logs.get(name) {
            seal::verify_beginning(&run.join(name), expected)?;
        }
    }
    Ok(())
}

/// What a run goes on with of choices that were made by the memory there was.
pub(super) struct Choices {
    /// What this session keeps.
    pub(super) now: Begun,
    /// What the run keeps. A session that is given another micro-batch leaves it as it is.
    of_run: Begun,
}

/// The choices of a checkpoint, for a session under this recipe.
pub(super) fn choices(state: &CheckpointState, recipe: &Recipe) -> Choices {
    let last = Begun { micro_batch: state.micro_batch, keeps_outputs: state.keeps_outputs };
    let chosen = |&ChosenState { micro_batch, keeps_outputs }| Begun { micro_batch, keeps_outputs };
    let of_run = state.chosen.as_ref().map_or(last, chosen);
    let now = match recipe.batch.micro_batch {
        MicroBatch::Rows(rows) if rows == last.micro_batch => last,
        _ => of_run,
    };
    Choices { now, of_run }
}

/// Makes a plan that of a run which goes on after another one, or with what its checkpoint says that it keeps. Returns
/// the choices that this session leaves alone because it was given another micro-batch.
pub(super) fn keep_choices(
    plan: &mut Plan,
    resolved: &Resolved,
    data: &Data,
    record: Option<&RunRecord>,
    start: Option<&checkpoint::Reader>,
) -> anyhow::Result<Option<Begun>> {
    let Some(reader) = start else {
        *plan = plan.clone().after(data.start.before());
        return Ok(None);
    };
    let Choices { now, of_run } = choices(reader.state(), &resolved.recipe);
    let steps = record.map_or_else(|| first_step(data, None), RunRecord::first_step);
    let before = Before { steps, data_from: reader.state().data_from };
    *plan = call::plan(resolved, data, Some(now))?.after(before);
    let is_given = matches!(resolved.recipe.batch.micro_batch, MicroBatch::Rows(_));
    Ok(Some(of_run).filter(|of_run| is_given && of_run.micro_batch != plan.batch.micro_batch))
}

/// The checkpoint that a run goes on from, after a word about damaged ones. If there are only such, it is an error.
pub(super) fn usable(
    call: &Call,
    run: &Path,
    (hash, steps): (&str, u64),
    newest: Newest,
) -> anyhow::Result<Option<checkpoint::Reader>> {
    newest.rejected.iter().for_each(of_damage(call.audience));
    let Some(reader) = newest.reader else {
        return match newest.rejected.len() {
            0 => refuse_lost(run).map(|()| None),
            damaged => Err(only_damaged(run, damaged).into()),
        };
    };
    if reader.state().recipe_hash != hash {
        let problem = format!(
            "it belongs to an experiment with hash {}, this run has {hash}; start over with --fresh",
            reader.state().recipe_hash,
        );
        return Err(RunError::Malformed { path: reader.path().to_owned(), problem }.into());
    }
    if reader.state().step > steps {
        let problem = format!(
            "it is of step {}, and this run has {steps}; start over with --fresh, or bring the run back from a backup",
            reader.state().step,
        );
        return Err(RunError::Malformed { path: reader.path().to_owned(), problem }.into());
    }
    Ok(Some(reader))
}

/// Refuses a run whose checkpoints were deleted: at its beginning it would discard the logs of what they held.
fn refuse_lost(run: &Path) -> anyhow::Result<()> {
    let record = RunRecord::read(run).ok().flatten();
    let Some(step) = record.as_ref().and_then(saved_step) else { return Ok(()) };
    let problem = format!(
        "it has no checkpoint left, and was trained up to step {step}; start over with --fresh, or bring one back from \
         a backup"
    );
    Err(RunError::Malformed { path: run.to_owned(), problem }.into())
}

/// The furthest step of which a run has saved a checkpoint, as far as its record tells: one that was killed before its
/// first one has none.
pub(super) fn saved_step(record: &RunRecord) -> Option<u64> {
    // who ends in order saves first
    let ended = matches!(record.status, RunStatus::Finished | RunStatus::Interrupted);
    let gone_on = record.sessions.iter().map(|session| session.from_step);
    let best = record.best_checkpoint.as_ref().map(|best| best.step);
    let saved = gone_on.chain(best).chain(ended.then_some(record.steps_done));
    saved.filter(|step| *step > record.first_step()).max()
}

/// Damage that the user has to decide about.
fn only_damaged(run: &Path, checkpoints: usize) -> RunError {
    let problem = match checkpoints {
        1 => "its only checkpoint is not intact".to_owned(),
        _ => format!("none of its {checkpoints} checkpoints is intact"),
    };
    let problem = format!("{problem}; start over with --fresh, or bring one back from a backup");
    RunError::Malformed { path: run.to_owned(), problem }
}

/// An evaluation of the step that a run goes on from. It was made after the checkpoint of its step was saved, so it is
/// made again. Until then it counts as it was logged.
pub(super) struct Again {
    /// Its row.
    pub(super) row: EarlierRow,
    /// Its loss, with the digits of the log.
    logged: f32,
}

impl Again {
    /// The evaluation of this step in the log of a run that goes on from it, if it is there, or in the run's `record`,
    /// where a session that was killed before it had made it again has left it.
    pub(super) fn find(run: &RunDir, step: u64, record: &RunRecord) -> Result<Option<Self>, RunError> {
        let logged = row_at(run.open_dir(), dir::VAL_CSV, step)?.map(|cells| EarlierRow { step, cells });
        let row = logged.or_else(|| record.evaluated_before.clone().filter(|row| row.step == step));
        let loss_at = ValRow::COLUMNS.iter().position(|column| column.name == "val_loss");
        Ok(row.and_then(|row| {
            let logged = row.cells.get(loss_at?)?.parse().ok()?;
            Some(Self { row, logged })
        }))
    }

    /// Its loss, with all digits where the run's record has them.
    pub(super) fn val_loss(&self, record: &RunRecord) -> f64 {
        let recorded = record.results.get("best_val_loss").and_then(serde_json::Value::as_f64);
        recorded.filter(|known| *known as f32 == self.logged).unwrap_or_else(|| self.logged())
    }

    /// Its loss as the log has it.
    pub(super) fn logged(&self) -> f64 {
        f64::from(self.logged)
    }
}

/// The first evaluation in a run's log, up to a step, that reaches the target: of a run that went on beyond it under
/// another one.
pub(super) fn reached_before(run: &Path, step: u64, target: Option<f64>) -> Result<Option<Best>, RunError> {
    let log = run.join(dir::VAL_CSV);
    if target.is_none() || !log.exists() {
        return Ok(None);
    }
    // whose last row may be torn where it has not been cut yet
    let rows = read_val(&log)?.map_while(Result::ok).take_while(|row| row.step <= step);
    Ok(rows.filter_map(|row| train::reached(target, row.step, f64::from(row.val_loss))).next())
}

/// The lower of two losses; one that is no number is none.
pub(super) fn lower(a: Option<f64>, b: Option<f64>) -> Option<f64> {
    let known = [a, b].into_iter().flatten().filter(|loss| !loss.is_nan());
    known.reduce(f64::min).or(a)
}
