//! What a call would do with a run: everything up to its first step, without writing anything but caches.

use super::audience::Event;
use super::call::Call;
use super::ending::Ending;
use super::inputs::Data;
use super::standing::Standing;
use super::{continued, leader, machine, meaning, measured};
use crate::plan::Plan;
use crate::recipe::Resolved;
use crate::run::dir::check_discarded;
use crate::run::{RunError, RunRecord, checkpoint, usable};
use std::path::Path;

/// Finds what a call would find before the first step of a run, and tells the audience. The caller has looked for runs
/// that have ended.
///
/// # Errors
/// Those that the call would end with: a live process that writes the run, checkpoints that cannot be gone on from.
pub(super) fn rehearse(
    call: &Call,
    resolved: &Resolved,
    data: &Data,
    (run, hash): (&Path, &str),
    mut plan: Plan,
) -> anyhow::Result<Ending> {
    // what is discarded need not be readable
    let standing = match Standing::of(run, resolved.recipe.schedule.stop_at_val_loss) {
        Err(_) if call.fresh => Ok(Standing::damaged(run)),
        standing => standing,
    };
    if let Ok(Standing::Live { holder, .. }) = standing {
        return Err(RunError::Locked { path: run.to_owned(), holder }.into());
    }
    let dir = usable::check_directory(run, call.runs_dir)?;
    // the call names the directory before it reads the logs in it
    call.audience.result(run)?;
    match dir {
        Some(dir) if call.fresh => check_discarded(&dir)?,
        Some(dir) => usable::check_files(&dir)?,
        None => {}
    }
    call.tell_of_another(run);
    let standing = standing?;
    let start = if call.fresh || standing == Standing::NotBegun {
        None
    } else {
        let newest = checkpoint::newest_intact(run)?;
        continued::usable(call, run, (hash, plan.steps), newest)?
    };
    if let Some(reader) = &start {
        continued::check_logs(run, data, reader.state())?;
    }
    let record = if call.fresh { None } else { RunRecord::read(run)? };
    if !call.fresh {
        measured::check_tasks(run, record.as_ref(), data)?;
        meaning::check(run, record.as_ref(), data)?;
    }
    continued::keep_choices(&mut plan, resolved, data, record.as_ref(), start.as_ref())?;
    let step = leader::first_step(data, start.as_ref());
    let peak = machine::peaks::peak(&plan, &call.cache);
    let prediction = leader::predict(call, resolved, &plan, &peak);
    leader::announce(call, resolved, data, (run, start.as_ref()), (&plan, prediction.as_ref()));
    let discarded = Some(&standing).filter(|standing| call.fresh && **standing != Standing::NotBegun);
    let checkpoint = start.as_ref().map(checkpoint::Reader::path);
    let target = resolved.recipe.schedule.stop_at_val_loss;
    let goes_on = start.as_ref().filter(|_| step < plan.steps);
    let reached = goes_on.map_or(Ok(None), |_| continued::reached_before(run, step, target))?;
    call.audience.tell(Event::Rehearsed { run, step, steps: plan.steps, reached, checkpoint, discarded });
    Ok(Ending::Finished)
}
