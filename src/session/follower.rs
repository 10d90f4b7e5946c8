//! The ranks other than rank 0: they train as rank 0 tells them, and write nothing.

use super::data_watch::DataWatch;
use super::ending::Ending;
use super::inputs::Data;
use super::machine;
use super::member::Member;
use super::ranks::Order;
use super::requests::Requests;
use crate::comm::Comm;
use crate::engine::{Engine, State};
use crate::plan::{Begun, Plan, PlanError};
use crate::recipe::Resolved;
use crate::run::checkpoint;
use crate::train::{Events, Measured, Outcome, Progress, StepReport, Stop, TrainError};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::sync::Arc;

/// Takes part in what all ranks do together, and writes nothing.
struct Follower<'a> {
    /// Whether the optimizer's states are sharded, so that a checkpoint needs this rank's.
    sharded: bool,
    /// What is asked of a process of its own.
    requests: Option<&'a Requests>,
    data: DataWatch<'a>,
}

impl Events for Follower<'_> {
    type Error = anyhow::Error;

    fn step(&mut self, _report: &StepReport, progress: &Progress) -> anyhow::Result<()> {
        Ok(self.data.step(progress)?)
    }

    fn micro_step(&mut self, _tokens: usize) {}

    fn evaluated(&mut self, _measured: &Measured, _progress: &Progress) -> anyhow::Result<()> {
        Ok(())
    }

    fn reached(&mut self, step: u64) {
        self.data.ends_at(step);
    }

    fn sample(&mut self, _engine: &mut dyn Engine, _progress: &Progress) -> anyhow::Result<()> {
        Ok(())
    }

    fn checkpoint(&mut self, engine: &mut dyn Engine, _progress: &Progress) -> anyhow::Result<()> {
        // as rank 0 reads them
        for state in engine.saved_states() {
            if self.sharded && state != State::Parameters {
                engine.read(state)?;
            }
        }
        Ok(())
    }

    fn check(&mut self, progress: &Progress) -> anyhow::Result<()> {
        // a thread shares the data of rank 0, which looks after them
        if self.requests.is_some() { Ok(self.data.check(progress)?) } else { Ok(()) }
    }

    fn stop(&mut self) -> Option<Stop> {
        self.requests?.stop_asked()
    }

    fn save_now(&mut self) -> bool {
        self.requests.is_some_and(Requests::save_asked)
    }
}

/// Trains as one of the ranks. If it fails or panics, the others are told.
pub(super) fn train(
    member: &Member,
    start: Option<&Path>,
    requests: Option<&Requests>,
) -> anyhow::Result<()> {
    let trained = catch_unwind(AssertUnwindSafe(|| -> anyhow::Result<Outcome> {
        member.comm.set_working(true);
        let start = start.map(checkpoint::Reader::open).transpose()?;
        let is_new = start.is_none();
        let (mut engine, progress) = member.begin(start)?;
        member.comm.set_working(false);
        let data = DataWatch::new(member.data, member.plan.steps);
        let mut events = Follower { sharded: member.plan.shard.count > 1, requests, data };
        member.run(engine.as_mut(), progress, is_new, &mut events).map_err(|error| match error {
            TrainError::Engine(error) => error.into(),
            TrainError::Events(error) => error,
        })
    }));
    let why = match &trained {
        Ok(Ok(_)) => return Ok(()),
        Ok(Err(error)) => format!("{error:#}"),
        Err(_) => "it panicked".to_owned(),
    };
    member.comm.abandon(&why);
    trained.unwrap_or_else(|_| Err(anyhow::anyhow!("rank {} {why}", member.comm.rank()))).map(drop)
}

/// Follows the orders of rank 0, in a process that a launcher started. Returns how the run ended.
pub(super) fn follow(
    comm: &Arc<dyn Comm>,
    requests: &Requests,
    resolved: &Resolved,
    data: &Data,
) -> anyhow::Result<Ending> {
    // until rank 0 ends the run: a launcher's signal may reach this process after the others have acted on it
    let _held = requests.hold();
    loop {
        match Order::receive(comm.as_ref())? {
            Order::End(ending) => return Ok(ending),
            Order::Start { begun, checkpoint } => {
                let plan = plan_of(resolved, data, begun);
                let plan = plan.inspect_err(|error| comm.abandon(&format!("{error}; {}", error.help)))?;
                let plan = plan.of_launched_rank(comm.rank());
                let member = Member { resolved, data, plan, comm: comm.clone() };
                train(&member, checkpoint.as_deref(), Some(requests))?;
            }
        }
    }
}

/// The plan of this rank for what rank 0 does.
fn plan_of(resolved: &Resolved, data: &Data, begun: Begun) -> Result<Plan, PlanError> {
    let hardware = machine::hardware(&resolved.recipe)?;
    let plan = Plan::derive(&resolved.recipe, &hardware, data.size(), Some(begun))?;
    // the memory of a host is shared, and was asked for before any rank had allocated anything
    if plan.cuda.is_some() {
        plan.check_fit(&hardware)?;
    }
    Ok(plan)
}
