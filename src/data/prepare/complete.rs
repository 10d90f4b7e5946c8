//! What a preparation goes on from: files that are still what they were when its state listed them.

use super::shards::Shards;
use super::spool;
use super::state::{State, Workplace};
use super::{Hooks, Options, PrepareError, pipeline};
use crate::data::DataError;
use crate::data::progress::Task;
use crate::regular::OFlags;
use std::io::{self, ErrorKind};

/// The shards of a state that are complete.
pub(super) fn shards<'a>(
    options: &Options,
    place: &Workplace,
    state: &State,
    hooks: &'a Hooks,
) -> Result<Shards<'a>, PrepareError> {
    let total = state.is_read.then(|| state.tokens());
    let (tokens, validation) = (options.shard_tokens, options.validation);
    let mut shards = Shards::new(&place.inside, place.dir.path(), tokens, validation, total, hooks.fault);
    match shards.pass(&state.shards) {
        true => Ok(shards),
        false => Err(place.unfinished("whose state lists shards of other sizes")),
    }
}

/// Takes over what a state lists: checks that it is all there as it was written, that nothing else is, removes what was
/// given up, and gives the last shards their names where a killed process has not come to that.
pub(super) fn take_over(
    place: &Workplace,
    state: &mut State,
    shards: &Shards,
    hooks: &Hooks,
) -> Result<(), PrepareError> {
    check(place, state, shards, hooks)?;
    let mut known = shards.names.clone();
    known.extend(state.dropped.iter().map(|(name, _)| name.clone()));
    if !state.lists_first {
        known.extend([false, true].map(|is_val| shards.name(is_val)));
    }
    if let Some(name) = place.stranger(&known)? {
        return Err(place.occupied_by(&name));
    }
    place.remove(&std::mem::take(&mut state.dropped))?;
    for (name, made) in shards.names.iter().zip(&shards.made) {
        if place.inside.has(name) {
            place.publish(name, made)?;
        }
    }
    Ok(())
}

/// Checks that the files of a state are what they were when they were written.
fn check(place: &Workplace, state: &State, shards: &Shards, hooks: &Hooks) -> Result<(), PrepareError> {
    let runs = state.runs.iter().map(|run| run.tokens).sum::<u64>();
    let task = Task::start(hooks.progress, "checking what is complete", 2 * (runs + shards.tokens()));
    let at = |name: &str| if place.inside.has(name) { &place.inside } else { &place.dir }.join(name);
    for part in [&shards.train, &shards.val] {
        if let Some(damage) = part.damage(&at, &|by| task.advance(by))? {
            return Err(place.unfinished(&format!("but {damage}")));
        }
    }
    for (number, run) in state.runs.iter().enumerate() {
        let name = spool::name(number);
        let path = place.inside.join(&name);
        let found = match place.inside.open_file(&name, OFlags::RDONLY) {
            Err(error) if is_none_of_ours(&error) => None,
            open => Some(pipeline::digest(&path, &mut open.map_err(DataError::read(&path))?)?),
        };
        if found.is_none_or(|found| found.to_hex().as_str() != run.blake3) {
            return Err(place.unfinished(&format!("but not its {} as it was written", path.display())));
        }
        task.advance(2 * run.tokens);
    }
    Ok(())
}

/// Whether a name stands for nothing, or for what no preparation has written.
fn is_none_of_ours(error: &io::Error) -> bool {
    matches!(error.kind(), ErrorKind::NotFound | ErrorKind::InvalidInput | ErrorKind::IsADirectory)
}
