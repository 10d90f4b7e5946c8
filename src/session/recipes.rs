//! From recipe files to runs: each recipe becomes a run that is trained, continued or found finished.

use super::audience::{Event, Silence};
use super::begun::Begun;
use super::call::{Call, plan};
use super::ending::{Ending, UsageError};
use super::inputs::{self, Data};
use super::job::Job;
use super::rehearsal::rehearse;
use super::standing::run_id;
use super::start::{Start, whole};
use super::{leader, ranks, supported};
use crate::plan::hardware::forget_peak_resident_bytes;
use crate::recipe::keys::INIT_FROM;
use crate::recipe::{self, DataDigests, Diagnostics, InitFrom, Overrides, Recipe, Resolved};
use crate::regular;
use crate::report::own::{forget_recipe, is_own, note_recipe};
use crate::run::{RunDir, RunRecord, RunStatus, dir, ensure_writable, record, status_and_record};
use crate::weights::checkpoint_name;
use crate::wording::count;
use anyhow::Context;
use std::fs::DirEntry;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

impl Call<'_> {
    /// Trains the recipes in order. All are read and checked before the first one starts; one that fails does not keep
    /// the others from being trained, and the first failure is how the call ends.
    ///
    /// # Errors
    /// Where no recipe could be started.
    pub fn train(self, recipes: &[PathBuf], overrides: &Overrides) -> anyhow::Result<Ending> {
        let task = format!("train {}", count(recipes.len(), "recipe"));
        self.with_ranks(&task, |call| train(call, recipes, overrides))
    }
}

fn train(call: &Call, paths: &[PathBuf], overrides: &Overrides) -> anyhow::Result<Ending> {
    let mut problems = Diagnostics::default();
    let mut resolved = Vec::new();
    for path in paths {
        let checked = recipe::load_among(path, overrides, call.runs_dir)
            .and_then(|resolved| supported::check(&resolved, call.audience).map(|()| resolved));
        match checked {
            Ok(recipe) => resolved.push(recipe),
            Err(found) => problems.append(found),
        }
    }
    let ready = || -> anyhow::Result<()> {
        if !problems.is_empty() {
            return Err(problems.into());
        }
        // one that has ended is found in an archive as well, which takes reading the data
        let may_be_found = |resolved: &Resolved| may_have_ended(call.runs_dir, &resolved.recipe);
        let writable = if call.leads() { ensure_writable(call.runs_dir) } else { Ok(()) };
        match writable {
            Err(error) if call.fresh || !resolved.iter().all(may_be_found) => Err(error.into()),
            _ => Ok(()),
        }
    };
    ranks::agree(call.joined(), ready())?;
    // a single one is checked where it is trained
    if resolved.len() > 1 {
        let timeouts = resolved.iter().map(|resolved| resolved.recipe.distributed.timeout_s);
        call.in_turn(timeouts.max().unwrap_or_default(), || check(call, &resolved))?;
    }
    let mut ending = Ending::Finished;
    let several = resolved.len() > 1;
    for (i, resolved) in resolved.iter().enumerate() {
        let call = &Call { recipes_before: i as u64, ..call.clone() };
        if several {
            // what the runs before took is none of this one's
            forget_peak_resident_bytes();
        }
        let one = one(call, resolved).unwrap_or_else(|error| {
            call.audience.tell(Event::Failed(&error));
            Ending::of(&error)
        });
        if call.joined().is_some_and(|comm| comm.check().is_err()) {
            // which has been said; without them the other recipes cannot be trained
            return Ok(if ending == Ending::Finished { one } else { ending });
        }
        // a signal that came too late to interrupt this recipe was not meant for it alone
        let more = i + 1 < paths.len();
        if let Some(stop) = call.stop_asked()?.filter(|_| more) {
            return Ok(stop.into());
        }
        if ending == Ending::Finished {
            ending = one;
        }
    }
    Ok(ending)
}

/// Whether a run that has ended may be that of a recipe, whose data are not looked at yet: they may be those on record.
fn may_have_ended(runs_dir: &Path, recipe: &Recipe) -> bool {
    let is_its = |record: &RunRecord| {
        let hash = || recipe::identity(recipe, &DataDigests::from_names(&record.digests));
        // what it begins from decides of keys that it leaves out
        recipe.model.init_from.is_some() || hash() == record.hash
    };
    let ended = |run: &DirEntry| match status_and_record(&run.path()) {
        Ok((RunStatus::Finished | RunStatus::Diverged, Some(record))) => is_its(&record),
        _ => false,
    };
    let is_called = |run: &DirEntry| {
        let name = run.file_name();
        name.to_str()
            .and_then(|name| name.strip_prefix(&*recipe.name))
            .is_some_and(|rest| rest.starts_with('-'))
    };
    std::fs::read_dir(runs_dir).into_iter().flatten().flatten().any(|run| is_called(&run) && ended(&run))
}

/// Opens the data of all recipes and makes their plans, so that a mistake in the last one shows before the first has
/// been trained for a day. What one of these runs may yet make need not be there.
fn check(call: &Call, resolved: &[Resolved]) -> anyhow::Result<()> {
    let mut problems = Diagnostics::default();
    let mut runs = Vec::new();
    for resolved in resolved {
        let from = resolved.recipe.model.init_from.as_ref().map(InitFrom::path);
        let mut nowhere = from.filter(|from| is_nowhere(from, call.runs_dir));
        let checked = inputs::open_sets(resolved, call.runs_dir, call.audience.progress()).and_then(|data| {
            // what goes on may need less than what begins, and which run it is takes reading all that it began from
            let is_named = call.fresh || plan(resolved, &data, None).is_err();
            nowhere = nowhere.filter(|_| call.fresh || Begun::find(resolved, &data, call.runs_dir).is_none());
            // what it begins from counts by its contents, and by its name where an earlier recipe has yet to make it
            let begins =
                is_named.then(|| Start::find(resolved, Some(&data), call.runs_dir, &Silence).ok()).flatten();
            let pinned = begins.as_ref().map(|(start, _)| start.pinned(resolved.clone()).recipe);
            let digests =
                DataDigests { init_from: begins.and_then(|(_, digest)| digest), ..data.digests.clone() };
            let from = resolved.recipe.model.init_from.as_ref().filter(|_| digests.init_from.is_none());
            let recipe = pinned.as_ref().unwrap_or(&resolved.recipe);
            let run = run_id(recipe, &recipe::identity(recipe, &digests));
            call.plan(resolved, &data, &call.runs_dir.join(&run))?;
            Ok((from, run))
        });
        match checked {
            // the second one would discard what the first has trained
            Ok(run) if call.fresh && runs.contains(&run) => {
                let message = format!("two recipes of this call are of one run, `{}`", run.1);
                let help =
                    "--fresh would discard it between them: name one of them, or give one another `name`";
                problems.append(resolved.complain("name", &message, help));
            }
            Ok(run) => runs.push(run),
            Err(error) => problems.append(error.downcast()?),
        }
        if let Some(from) = nowhere {
            let from = inputs::relative(&from.display().to_string());
            let message = format!("`model.init_from`: there is no `{from}`");
            problems.append(resolved.complain(INIT_FROM, &message, ""));
        }
    }
    if problems.is_empty() { Ok(()) } else { Err(problems.into()) }
}

/// Whether weights or a run are not there and cannot come to be in the directory of runs.
fn is_nowhere(from: &Path, runs_dir: &Path) -> bool {
    let from = checkpoint_name(from).map_or(from, |(run, _)| run);
    let lies_in = |dir: PathBuf| whole(from).is_ok_and(|from| from.starts_with(dir));
    !from.exists() && !whole(runs_dir).is_ok_and(lies_in) && !runs_dir.canonicalize().is_ok_and(lies_in)
}

fn one(call: &Call, resolved: &Resolved) -> anyhow::Result<Ending> {
    let data = call.open(resolved, call.runs_dir, None)?;
    // what encoding a text took is none of the run's: another one finds it encoded
    forget_peak_resident_bytes();
    let resolved = &data.start.pinned(resolved.clone());
    let hash = recipe::identity(&resolved.recipe, &data.digests);
    let run = call.runs_dir.join(run_id(&resolved.recipe, &hash));
    call.together(resolved, &data, (&run, &hash), || lead(call, resolved, &data, &hash))
}

/// The run of a recipe, on rank 0.
fn lead(call: &Call, resolved: &Resolved, data: &Data, hash: &str) -> anyhow::Result<Ending> {
    let recipe = &resolved.recipe;
    let id = run_id(recipe, hash);
    let path = call.runs_dir.join(&id);
    let toml = recipe::to_toml(recipe, &std::path::absolute(&path)?);
    check_length(&path, &toml)?;
    RunDir::check_id(&path, &id)?;
    let has_recipe = path.join(dir::RECIPE).symlink_metadata().is_ok();
    let is_run = dir::is_run(&path);
    if is_run && !call.fresh && !call.dry {
        restore_recipe(call, &path, &toml, data, hash)?;
    }
    // a record alone is asked again behind the lock, which a rehearsal does not take
    let may_have_ended = is_run || call.dry && path.join(record::FILE).is_file();
    if may_have_ended
        && !call.fresh
        && let Some(ending) = ended(call, &path, recipe, data)?
    {
        return Ok(ending);
    }
    ensure_writable(call.runs_dir)?;
    let plan = call.plan(resolved, data, &path)?;
    if call.dry {
        return rehearse(call, resolved, data, (&path, hash), plan);
    }
    let dir = RunDir::create_or_open(call.runs_dir, &id, &toml, call.fresh)?;
    if !call.fresh && !has_recipe && dir.record()?.is_some() {
        // one that was removed may have said something else of what is kept
        write_own(&dir, &toml)?;
    }
    // another process may have finished it since
    if !call.fresh
        && let Some(ending) = ended(call, &path, recipe, data)?
    {
        return Ok(ending);
    }
    follow(&dir, resolved, &toml)?;
    call.audience.result(&path)?;
    leader::train(Job::new(call, (resolved, data), (dir, hash), plan))
}

/// Refuses a recipe that could not be read again from its run: the paths in it lead from there, and may be longer.
fn check_length(run: &Path, toml: &str) -> Result<(), UsageError> {
    if toml.len() as u64 <= regular::RECIPE {
        return Ok(());
    }
    Err(UsageError(format!(
        "{}: its recipe would have {} KiB, and may have {}: name the files of its data by a pattern instead of one \
         by one",
        run.display(),
        toml.len().div_ceil(1 << 10),
        regular::RECIPE >> 10
    )))
}

/// Writes a run's recipe again where it was edited into another one or damaged, before anything trusts it.
fn restore_recipe(call: &Call, run: &Path, toml: &str, data: &Data, hash: &str) -> anyhow::Result<()> {
    let mut record = RunRecord::read(run)?.unwrap_or_default();
    record.hash = hash.to_owned();
    record.digests.extend(data.digests.by_name());
    let recipe = run.join(dir::RECIPE);
    // what is no text, or is too large, is no recipe either
    let text = match regular::read_within(&recipe, regular::RECIPE) {
        Err(error) if error.kind() == ErrorKind::FileTooLarge => String::new(),
        read => {
            let text = read.with_context(|| format!("could not read `{}`", recipe.display()))?;
            String::from_utf8_lossy(&text).into_owned()
        }
    };
    if text != toml && is_own(run, &text, &record) != Some(true) {
        ensure_writable(call.runs_dir)?;
        write_own(&RunDir::open(run, call.runs_dir)?, toml)?;
        call.audience.tell(Event::RecipeRestored { recipe: &recipe });
    }
    Ok(())
}

/// Makes a run's recipe say what this call asks for, where that is another value of a key that a run may change: when
/// the run is resumed from its own recipe, it goes on as it does now.
fn follow(dir: &RunDir, resolved: &Resolved, toml: &str) -> anyhow::Result<()> {
    // what cannot be read has just been written again, or was written by another version
    let Ok(before) = recipe::load(&dir.recipe(), &Overrides::default()) else { return Ok(()) };
    if dir.read_recipe()? != toml && !recipe::diff(&before.recipe, &resolved.recipe).is_empty() {
        write_own(dir, toml)?;
    }
    Ok(())
}

/// Replaces a run's recipe, and notes it in the run's record.
fn write_own(dir: &RunDir, toml: &str) -> anyhow::Result<()> {
    // a process that dies in between leaves no digest of another recipe on record
    let mut record = dir.record()?;
    if let Some(record) = &mut record {
        forget_recipe(record);
        dir.write_record(record)?;
    }
    dir.write_recipe(toml)?;
    if let Some(record) = &mut record {
        note_recipe(record, toml);
        dir.write_record(record)?;
    }
    Ok(())
}

/// How a run has ended that needs no training, after saying why.
fn ended(call: &Call, run: &Path, recipe: &Recipe, data: &Data) -> anyhow::Result<Option<Ending>> {
    let (status, record) = status_and_record(run)?;
    let ending = match status {
        RunStatus::Finished => {
            if record.as_ref().is_some_and(|record| record.goes_on(recipe.schedule.stop_at_val_loss)) {
                return Ok(None);
            }
            call.finished(run, record.as_ref(), data, true)?;
            Ending::Finished
        }
        RunStatus::Diverged => {
            let error = record.and_then(|record| record.error).unwrap_or_default();
            call.audience.tell(Event::AlreadyDiverged { run, error: &error });
            Ending::Diverged
        }
        _ => return Ok(None),
    };
    call.audience.result(run)?;
    Ok(Some(ending))
}
