//! `runner RECIPE...`: each recipe becomes a run that is trained, resumed or found finished.

mod follower;
mod member;
mod recorder;
mod resume;
mod saver;
mod session;
pub(super) mod summary;

use super::build::{self, Data};
use super::device;
use super::exit::Exit;
use super::ranks::{self, Order};
use super::signals::Signals;
use super::terminal::{report, say};
use crate::cli::TrainArgs;
use crate::comm::Comm;
use crate::plan::{Plan, PlanError};
use crate::recipe::{self, Diagnostics, Resolved};
use crate::run::{RunDir, RunError, RunStatus, dir, ensure_writable, files};
use crate::train::Stop;
use anyhow::Context;
use session::Session;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

/// How long a temporary file of the cache must have been left alone to count as nobody's.
const STALE: Duration = Duration::from_secs(3600);

/// What all recipes of one call share.
struct Call<'a> {
    runs_dir: &'a Path,
    fresh: bool,
    signals: Signals,
    /// The other ranks, if a launcher started them.
    joined: Option<Arc<dyn Comm>>,
}

impl Call<'_> {
    fn joined(&self) -> Option<&dyn Comm> {
        self.joined.as_deref()
    }

    /// Whether this process writes: it is alone, or rank 0.
    fn leads(&self) -> bool {
        self.joined().is_none_or(|comm| comm.rank() == 0)
    }

    /// The signal that any rank has received.
    fn received(&self) -> anyhow::Result<Option<Stop>> {
        let own = self.signals.received();
        let Some(comm) = self.joined() else { return Ok(own) };
        let stops = [Stop::Interrupt, Stop::Terminate, Stop::HangUp];
        let mine = stops.iter().position(|stop| Some(*stop) == own).map_or(0, |place| place as u8 + 1);
        let all = comm.exchange(&[mine])?;
        Ok(all.iter().flatten().find_map(|word| stops.get(usize::from(*word).checked_sub(1)?).copied()))
    }
}

/// Trains the recipes in order. All are read and checked before the first one starts; one that fails does not keep the
/// others from being trained, and the first failure is the exit code.
pub(super) fn run(args: &TrainArgs) -> anyhow::Result<Exit> {
    let signals = Signals::install().context("could not install signal handlers")?;
    let runs_dir = build::absolute(&args.runs.runs_dir)?;
    let joined = ranks::join()?;
    let result = run_joined(args, &runs_dir, signals, joined.clone());
    if let Some(comm) = joined {
        match &result {
            // who fails alone must not leave the others waiting
            Err(error) if !error.is::<ranks::Elsewhere>() && comm.rank() > 0 => {
                comm.abandon(&format!("{error:#}"));
            }
            // launchers end the other ranks as soon as one has failed: rank 0, which says why, goes first
            _ if comm.rank() > 0 => drop(comm.broadcast(&mut Vec::new())),
            _ => {}
        }
    }
    result
}

fn run_joined(
    args: &TrainArgs,
    runs_dir: &Path,
    signals: Signals,
    joined: Option<Arc<dyn Comm>>,
) -> anyhow::Result<Exit> {
    let call = Call { runs_dir, fresh: args.fresh, signals, joined };
    if call.leads() {
        // of processes that were killed while they encoded a text or checked a file
        files::sweep_stale(&runs_dir.join(".cache"), STALE);
    }
    let overrides = super::overrides(&args.overrides);
    if let Some(run) = &args.resume {
        let run = ranks::agree(call.joined(), super::find_run(runs_dir, run))?;
        return resume::run(&call, &run, &overrides);
    }
    let mut problems = Diagnostics::default();
    let mut resolved = Vec::new();
    for path in &args.recipes {
        let checked = recipe::load(path, &overrides)
            .and_then(|resolved| build::check_supported(&resolved).map(|()| resolved));
        match checked {
            Ok(recipe) => resolved.push(recipe),
            Err(found) => problems.append(found),
        }
    }
    let ready = || -> anyhow::Result<()> {
        if !problems.is_empty() {
            return Err(problems.into());
        }
        if call.leads() {
            ensure_writable(runs_dir)?;
        }
        Ok(())
    };
    ranks::agree(call.joined(), ready())?;
    // a single one is checked where it is trained
    if resolved.len() > 1 {
        ranks::agree(call.joined(), check(&call, &resolved))?;
    }
    let mut exit = Exit::Finished;
    for (i, resolved) in resolved.iter().enumerate() {
        let one = one(&call, resolved).unwrap_or_else(|error| {
            report(&error);
            Exit::of(&error)
        });
        if call.joined().is_some_and(|comm| comm.check().is_err()) {
            // which has been said; there is nobody left to train the others with
            return Ok(if exit == Exit::Finished { one } else { exit });
        }
        // a signal that came too late to interrupt this recipe was not meant for it alone
        let more = i + 1 < args.recipes.len();
        match call.received()? {
            Some(Stop::Interrupt) if more => return Ok(Exit::Interrupted),
            Some(Stop::Terminate) if more => return Ok(Exit::Terminated),
            Some(Stop::HangUp) if more => return Ok(Exit::HungUp),
            _ => {}
        }
        if exit == Exit::Finished {
            exit = one;
        }
    }
    Ok(exit)
}

/// Opens the data of all recipes and makes their plans, so that a mistake in the last one shows before the first has been
/// trained for a day.
fn check(call: &Call, resolved: &[Resolved]) -> anyhow::Result<()> {
    let mut problems = Diagnostics::default();
    for resolved in resolved {
        let checked = Data::open_sets(resolved, call.runs_dir)
            .and_then(|data| Ok(plan(resolved, &data, None).map(drop)?));
        if let Err(error) = checked {
            problems.append(error.downcast()?);
        }
    }
    if problems.is_empty() { Ok(()) } else { Err(problems.into()) }
}

fn one(call: &Call, resolved: &Resolved) -> anyhow::Result<Exit> {
    let data = open(call, resolved, call.runs_dir)?;
    let hash = recipe::identity(&resolved.recipe, &data.digests);
    together(call, resolved, &data, &hash, || lead(call, resolved, &data, &hash))
}

/// Opens the data of a recipe on all ranks: first on rank 0, so that a text is encoded once where they share a disk.
fn open(call: &Call, resolved: &Resolved, runs_dir: &Path) -> anyhow::Result<Data> {
    let Some(comm) = call.joined() else { return Data::open(resolved, runs_dir) };
    comm.set_timeout(Duration::from_secs(resolved.recipe.distributed.timeout_s));
    let open = || {
        comm.set_working(true);
        let data = Data::open(resolved, runs_dir);
        comm.set_working(false);
        data
    };
    let first = ranks::agree(Some(comm), if call.leads() { open().map(Some) } else { Ok(None) })?;
    let data = ranks::agree(Some(comm), first.map_or_else(open, Ok))?;
    // while no rank has allocated anything
    ranks::agree(Some(comm), plan(resolved, &data, None).map_err(Into::into).map(|_| data))
}

/// Runs `lead` where nobody has started other ranks, and on rank 0; the others do what it tells them.
fn together(
    call: &Call,
    resolved: &Resolved,
    data: &Data,
    hash: &str,
    lead: impl FnOnce() -> anyhow::Result<Exit>,
) -> anyhow::Result<Exit> {
    let Some(comm) = &call.joined else { return lead() };
    ranks::same(Some(comm.as_ref()), &resolved.recipe, &format!("the data (digest {hash})"))?;
    if comm.rank() > 0 {
        return follower::follow(comm, &call.signals, resolved, data);
    }
    comm.set_working(true);
    let result = lead();
    comm.set_working(false);
    let exit = result.as_ref().map_or_else(Exit::of, |exit| *exit);
    // everything is written: who does not hear of it any more has lost nothing
    let _ = Order::End(exit as u8).give(comm.as_ref());
    result
}

/// The run of a recipe, on rank 0.
fn lead(call: &Call, resolved: &Resolved, data: &Data, hash: &str) -> anyhow::Result<Exit> {
    let recipe = &resolved.recipe;
    let id = format!("{}-{}", recipe.name, &hash[..8]);
    let path = call.runs_dir.join(&id);
    if !call.fresh
        && dir::is_run(&path)
        && let Some(exit) = ended(&path)?
    {
        return Ok(exit);
    }
    let plan = plan(resolved, data, None)?;
    let toml = recipe::to_toml(recipe, &path);
    let dir = RunDir::create_or_open(call.runs_dir, &id, &toml, call.fresh)?;
    // another process may have finished it since
    if !call.fresh
        && let Some(exit) = ended(&path)?
    {
        return Ok(exit);
    }
    super::print(&format!("{}\n", shown(&path)))?;
    Session { call, resolved, data, dir, hash, plan, overrides: &[] }.train()
}

/// The exit code of a run that needs no training, after saying why.
fn ended(path: &Path) -> anyhow::Result<Option<Exit>> {
    let exit = match crate::run::status(path)? {
        RunStatus::Finished => {
            say(&format!("{}: already finished; --fresh starts over", shown(path)));
            Exit::Finished
        }
        RunStatus::Diverged => {
            let error =
                crate::run::RunRecord::read(path)?.and_then(|record| record.error).unwrap_or_default();
            say(&format!(
                "{}: diverged: {error}\nthe same recipe would diverge again: change it, start over with --fresh, or retry \
                 from the last checkpoint with --resume",
                shown(path)
            ));
            Exit::Diverged
        }
        _ => return Ok(None),
    };
    super::print(&format!("{}\n", shown(path)))?;
    Ok(Some(exit))
}

fn plan(resolved: &Resolved, data: &Data, micro_batch: Option<usize>) -> Result<Plan, Diagnostics> {
    let blame = |error: PlanError| resolved.complain(error.key, &error.message, &error.help);
    let hardware = device::hardware(&resolved.recipe).map_err(blame)?;
    Plan::new(&resolved.recipe, &hardware, data.size(), micro_batch).map_err(blame)
}

/// A path as people would write it: relative where it lies below the current directory.
fn shown(path: &Path) -> String {
    let here = std::env::current_dir().unwrap_or_default();
    path.strip_prefix(&here).unwrap_or(path).display().to_string()
}

/// A checkpoint problem that a user has to decide about.
fn only_damaged(rejected: &[PathBuf], run: &Path) -> RunError {
    RunError::Malformed {
        path: run.to_owned(),
        problem: format!(
            "none of its {} checkpoints is intact; start over with --fresh, or bring one back from a backup",
            rejected.len()
        ),
    }
}
