//! A call of the program that trains: what all its recipes share, and what all ranks do for each of them.

use super::audience::{Audience, Event};
use super::ending::Ending;
use super::inputs::{self, Data};
use super::machine::Cache;
use super::ranks::{self, Order};
use super::requests::Requests;
use super::standing::begun;
use super::supported::at_its_key;
use super::{follower, machine, meaning, measured};
use crate::comm::Comm;
use crate::plan::{Begun, Plan};
use crate::recipe::{Diagnostics, Resolved};
use crate::regular;
use crate::run::{RunRecord, seal};
use crate::train::Stop;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

/// What all recipes of one call share, and how many this process has turned to before.
#[derive(Clone)]
pub struct Call<'a> {
    pub(super) audience: &'a dyn Audience,
    pub(super) requests: &'a Requests,
    pub(super) runs_dir: &'a Path,
    pub(super) fresh: bool,
    /// Whether nothing is trained and nothing written but caches.
    pub(super) dry: bool,
    /// Where what is found out about this machine is remembered.
    pub(super) cache: Cache,
    /// The other ranks, if a launcher started them.
    pub(super) joined: Option<Arc<dyn Comm>>,
    /// How many recipes this process has turned to before the one that it trains.
    pub(super) recipes_before: u64,
}

impl<'a> Call<'a> {
    /// A call that keeps its runs in `runs_dir`. With `fresh`, runs of the same recipes are discarded first.
    pub fn new(audience: &'a dyn Audience, requests: &'a Requests, runs_dir: &'a Path, fresh: bool) -> Self {
        Self {
            audience,
            requests,
            runs_dir,
            fresh,
            dry: false,
            cache: Cache::default(),
            joined: None,
            recipes_before: 0,
        }
    }

    /// A call that trains nothing if `dry`: it does everything up to the first step and tells what would follow
    /// ([`Event::Rehearsed`](super::Event::Rehearsed)). It ends as the call would end by then, and writes only caches.
    #[must_use]
    pub fn rehearsing(self, dry: bool) -> Self {
        Self { dry, ..self }
    }

    /// Remembers in `cache` what is found out about this machine: its peak rate, and how long a step takes. A call that
    /// is not told of a cache remembers nothing.
    #[must_use]
    pub fn remembering(self, cache: Cache) -> Self {
        Self { cache, ..self }
    }

    /// Meets the ranks that a launcher has started, and parts from them in a way that all of them end alike. `task` is
    /// what this call is asked for, which all ranks must agree on.
    pub(super) fn with_ranks(
        mut self,
        task: &str,
        work: impl FnOnce(&Self) -> anyhow::Result<Ending>,
    ) -> anyhow::Result<Ending> {
        self.joined = ranks::join(&|text| self.audience.tell(Event::TurnedAway(text)))?;
        if self.leads() && !self.dry {
            // of processes that were killed while they encoded a text or checked a file
            inputs::cache(self.runs_dir).sweep(regular::STALE);
        }
        let result = self.agree_on(task).and_then(|()| work(&self));
        ranks::part(self.joined(), result, |error| self.audience.tell(Event::Failed(error)))
    }

    fn agree_on(&self, task: &str) -> anyhow::Result<()> {
        let Some(comm) = self.joined() else { return Ok(()) };
        let options = [(self.fresh, " with --fresh"), (self.dry, " with --dry-run")];
        let options = options.into_iter().filter(|(asked, _)| *asked).map(|(_, option)| option);
        ranks::same_task(comm, &(task.to_owned() + &options.collect::<String>()))
    }

    pub(super) fn joined(&self) -> Option<&dyn Comm> {
        self.joined.as_deref()
    }

    /// Whether this process writes: it is alone, or rank 0.
    pub(super) fn leads(&self) -> bool {
        self.joined().is_none_or(|comm| comm.rank() == 0)
    }

    /// The request to stop that any rank has received.
    pub(super) fn stop_asked(&self) -> anyhow::Result<Option<Stop>> {
        let own = self.requests.stop_asked();
        let Some(comm) = self.joined() else { return Ok(own) };
        let all = comm.exchange(&[Stop::code(own)])?;
        Ok(all.iter().flatten().find_map(|code| Stop::of_code(*code)))
    }

    /// Says that a run with this record needs no training, once what it has finished with is found to be there.
    pub(super) fn finished(
        &self,
        run: &Path,
        record: Option<&RunRecord>,
        data: &Data,
        by_recipe: bool,
    ) -> anyhow::Result<()> {
        if let Some(record) = record {
            seal::verify_finished(run, record)?;
        }
        measured::check_tasks(run, record, data)?;
        meaning::check(run, record, data)?;
        let reached = record.and_then(RunRecord::reached);
        self.audience.tell(Event::AlreadyFinished { run, by_recipe, reached });
        self.tell_of_another(run);
        let tasks = record.map_or_else(Vec::new, |record| measured::unscored(record, data));
        if !tasks.is_empty() {
            self.audience.tell(Event::NotScored { run, tasks: &tasks });
        }
        Ok(())
    }

    /// Says whose a run is that another user has begun: where several share a directory of runs, each can be the first
    /// to make the directory of a recipe's run, and write there what he likes.
    pub(super) fn tell_of_another(&self, run: &Path) {
        if let Some(user) = regular::another_owner(run) {
            self.audience.tell(Event::OfAnother { run, user });
        }
    }

    /// Opens the data of a recipe on all ranks: first on rank 0, so that a text is encoded once where they share a
    /// disk.
    ///
    /// `begun` is the digest on record of what the run began from, if it goes on from a checkpoint of its own.
    pub(super) fn open(
        &self,
        resolved: &Resolved,
        runs_dir: &Path,
        begun: Option<&str>,
    ) -> anyhow::Result<Data> {
        let open = || match begun {
            None => inputs::open(resolved, runs_dir, self.fresh, self.audience),
            Some(digest) => {
                let data = inputs::open_sets(resolved, runs_dir, self.audience.progress())?;
                Ok(data.resumed(digest.to_owned()))
            }
        };
        let data = self.in_turn(resolved.recipe.distributed.timeout_s, open)?;
        if self.leads() {
            inputs::tell_of_discrepancies(&resolved.recipe.data, self.audience);
            inputs::tell_of_neighbours(resolved, self.runs_dir, self.audience);
        }
        Ok(data)
    }

    /// The plan of a run in this directory as if it began. Where that does not fit and the run goes on, it is the plan
    /// for what the run keeps of earlier choices, which may need less.
    pub(super) fn plan(&self, resolved: &Resolved, data: &Data, run: &Path) -> Result<Plan, Diagnostics> {
        plan(resolved, data, None).or_else(|refusal| match begun(run, &resolved.recipe) {
            Some(begun) if !self.fresh => plan(resolved, data, Some(begun)),
            _ => Err(refusal),
        })
    }

    /// Does what opens data on all ranks: first on rank 0, then on the others. A rank that works at it is waited for;
    /// one that is silent for `timeout_s` seconds is lost.
    pub(super) fn in_turn<T>(
        &self,
        timeout_s: u64,
        work: impl Fn() -> anyhow::Result<T>,
    ) -> anyhow::Result<T> {
        let Some(comm) = self.joined() else { return work() };
        comm.set_timeout(Duration::from_secs(timeout_s));
        let work = || {
            comm.set_working(true);
            let done = work();
            comm.set_working(false);
            done
        };
        let first = ranks::agree(Some(comm), if self.leads() { work().map(Some) } else { Ok(None) })?;
        ranks::agree(Some(comm), first.map_or_else(work, Ok))
    }

    /// Runs `lead` in a process that is alone and on rank 0; the other ranks do what rank 0 tells them. The result of a
    /// recipe whose run another process trains is that run, too.
    pub(super) fn together(
        &self,
        resolved: &Resolved,
        data: &Data,
        (run, hash): (&Path, &str),
        lead: impl FnOnce() -> anyhow::Result<Ending>,
    ) -> anyhow::Result<Ending> {
        let lead = || {
            let led = lead();
            if led.as_ref().is_err_and(|error| Ending::of(error) == Ending::Locked) {
                self.audience.result(run)?;
            }
            led
        };
        let Some(comm) = &self.joined else { return lead() };
        ranks::same(Some(comm.as_ref()), &resolved.recipe, ("the data", &format!("digest {hash}")))?;
        // while no rank has allocated anything
        ranks::agree(self.joined(), self.plan(resolved, data, run).map(drop).map_err(Into::into))?;
        let device =
            machine::hardware(&resolved.recipe).map_or_else(|_| "cpu".to_owned(), |here| here.device());
        let tell = |text: &str| self.audience.tell(Event::OtherRounding(text));
        ranks::look_at_rounding(comm.as_ref(), &device, tell)?;
        if comm.rank() > 0 {
            return follower::follow(comm, self.requests, resolved, data);
        }
        comm.set_working(true);
        let result = lead();
        comm.set_working(false);
        let ending = result.as_ref().map_or_else(Ending::of, |ending| *ending);
        // everything is written: a rank that no longer hears of it has lost nothing
        let _ = Order::End(ending).give(comm.as_ref());
        result
    }
}

/// The plan of a recipe on this machine, for a run that keeps what it has `begun` with.
pub(super) fn plan(resolved: &Resolved, data: &Data, begun: Option<Begun>) -> Result<Plan, Diagnostics> {
    let blame = at_its_key(resolved);
    let hardware = machine::hardware(&resolved.recipe).map_err(&blame)?;
    Plan::new(&resolved.recipe, &hardware, data.size(), begun).map_err(&blame)
}
