//! One process's share of a run: from the newest checkpoint, or the beginning, to the end or a signal.

use super::super::build::{self, Data};
use super::super::device;
use super::super::exit::Exit;
use super::super::ranks::{self, Order};
use super::super::terminal::say;
use super::follower;
use super::member::Member;
use super::recorder::Recorder;
use super::summary::plan_lines;
use super::{Call, only_damaged, plan, shown};
use crate::comm::{Comm, Solo, Threads};
use crate::plan::Plan;
use crate::recipe::{Recipe, Resolved};
use crate::run::checkpoint;
use crate::run::record::{Peak, Session as RecordedSession};
use crate::run::{RunDir, RunError, RunRecord, RunStatus, cut_back, facts, read_train, samples};
use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::Arc;
use std::thread;
use std::time::Duration;

/// Everything that is settled before the first step.
pub(super) struct Session<'a> {
    pub(super) call: &'a Call<'a>,
    pub(super) resolved: &'a Resolved,
    pub(super) data: &'a Data,
    pub(super) dir: RunDir,
    pub(super) hash: &'a str,
    pub(super) plan: Plan,
    /// What `--set` changed of the run's own recipe, as `key=value`.
    pub(super) overrides: &'a [String],
}

impl Session<'_> {
    pub(super) fn train(mut self) -> anyhow::Result<Exit> {
        let recipe = &self.resolved.recipe;
        let start = self.newest_checkpoint()?;
        if let Some(reader) = &start {
            // which the rows of a rank need not divide by, if there are other ranks than before
            let kept = build::kept_micro_batch(recipe, reader.state().micro_batch);
            let kept = kept.filter(|rows| self.plan.batch.rows_per_rank.is_multiple_of(*rows));
            self.plan = plan(self.resolved, self.data, kept)?;
        }
        let (peak, how) = device::peak(&self.plan);
        let step = start.as_ref().map_or(0, |reader| reader.state().step);
        say(&format!(
            "{}: step {step} of {}\n{}",
            shown(self.dir.path()),
            self.plan.steps,
            plan_lines(&self.plan)
        ));
        if let Ok(hardware) = device::hardware(recipe) {
            super::super::plan::warn(recipe, &self.plan, &hardware, self.data);
        }

        let checkpoint = start.as_ref().map(|reader| reader.path().to_owned());
        match &self.call.joined {
            Some(comm) => {
                let micro_batch = self.plan.batch.micro_batch;
                Order::Start { micro_batch, checkpoint }.give(comm.as_ref())?;
                self.lead(comm.clone(), start, (peak, how))
            }
            None if self.plan.ranks.world_size == 1 => self.lead(Arc::new(Solo), start, (peak, how)),
            None => {
                let timeout = Duration::from_secs(self.plan.ranks.timeout_s);
                let mut ranks = Threads::group(self.plan.ranks.world_size, timeout).into_iter();
                let first = ranks.next().expect("a world has a rank");
                let (resolved, data, plan) = (self.resolved, self.data, &self.plan);
                thread::scope(|scope| {
                    for comm in ranks {
                        let plan = plan.of_rank(comm.rank());
                        let member = Member { resolved, data, plan, comm: Arc::new(comm) };
                        let checkpoint = checkpoint.clone();
                        // what goes wrong reaches rank 0, which says it
                        scope.spawn(move || follower::train(&member, checkpoint.as_deref(), None));
                    }
                    self.lead(Arc::new(first), start, (peak, how)).inspect_err(ranks::end_if_hung)
                })
            }
        }
    }

    /// Rank 0: trains as the others do, and writes down what happens.
    fn lead(
        &self,
        comm: Arc<dyn Comm>,
        start: Option<checkpoint::Reader>,
        peak: (f64, String),
    ) -> anyhow::Result<Exit> {
        let result = catch_unwind(AssertUnwindSafe(|| self.record_training(&comm, start, peak)));
        match &result {
            Ok(Ok(_)) => {}
            Ok(Err(error)) => comm.abandon(&format!("{error:#}")),
            Err(_) => comm.abandon("it panicked"),
        }
        result.unwrap_or_else(|panic| resume_unwind(panic))
    }

    fn record_training(
        &self,
        comm: &Arc<dyn Comm>,
        start: Option<checkpoint::Reader>,
        (peak, how): (f64, String),
    ) -> anyhow::Result<Exit> {
        comm.set_working(true);
        let member =
            Member { resolved: self.resolved, data: self.data, plan: self.plan.clone(), comm: comm.clone() };
        let (mut engine, progress) = member.begin(start)?;
        let (elapsed_before, last_loss) = self.cut_logs_back(progress.step)?;
        let mut record = self.record()?;
        record.peak = Some(Peak { flops: peak, how });
        record.sessions.push(RecordedSession {
            started: facts::now(),
            from_step: progress.step,
            overrides: self.overrides.to_vec(),
            ..RecordedSession::default()
        });
        record.status = RunStatus::Running;
        record.steps_done = progress.step;
        record.error = None;
        if !record.results.is_object() {
            record.results = serde_json::json!({});
        }
        record.results["best_val_loss"] = progress.best_val_loss.into();
        self.dir.write_record(&record)?;

        let mut recorder = Recorder::new(self, record, elapsed_before, last_loss)?;
        comm.set_working(false);
        let result = member.run(engine.as_mut(), progress, &mut recorder);
        comm.set_working(true);
        if let Err(error) = &result {
            // before the end is written down: the others wait
            comm.abandon(&error.to_string());
        }
        recorder.conclude(result)
    }

    /// The newest intact checkpoint. Damaged ones are set aside with a word; if there are only such, it is an error.
    fn newest_checkpoint(&self) -> anyhow::Result<Option<checkpoint::Reader>> {
        let newest = checkpoint::newest_intact(self.dir.path())?;
        for rejected in &newest.rejected {
            say(&format!("warning: {} cannot be used: {}", shown(&rejected.path), rejected.reason));
        }
        let Some(reader) = newest.reader else {
            return match newest.rejected.is_empty() {
                true => Ok(None),
                false => {
                    let paths: Vec<_> = newest.rejected.into_iter().map(|r| r.path).collect();
                    Err(only_damaged(&paths, self.dir.path()).into())
                }
            };
        };
        for rejected in &newest.rejected {
            let aside = checkpoint::set_aside(&rejected.path)?;
            say(&format!("  set aside as {}; going on from {}", shown(&aside), shown(reader.path())));
        }
        if reader.state().recipe_hash != self.hash {
            let problem = format!(
                "it belongs to an experiment with hash {}, this run has {}; start over with --fresh",
                reader.state().recipe_hash,
                self.hash
            );
            return Err(RunError::Malformed { path: reader.path().to_owned(), problem }.into());
        }
        Ok(Some(reader))
    }

    /// Cuts the logs back to a checkpoint; the seconds trained up to there and the last loss.
    fn cut_logs_back(&self, step: u64) -> anyhow::Result<(f64, Option<f64>)> {
        let kept = cut_back(&self.dir.train_csv(), step)?;
        if kept.rows != step {
            let path = shown(&self.dir.train_csv());
            say(&format!(
                "warning: {path} has {} rows for {step} steps; earlier ones were removed",
                kept.rows
            ));
        }
        // the evaluation and the sample at this step are made again
        cut_back(&self.dir.val_csv(), step)?;
        samples::cut_back(&self.dir.samples(), step)?;
        let last = read_train(&self.dir.train_csv())?.last().transpose()?;
        Ok((kept.elapsed_s, last.map(|row| f64::from(row.loss))))
    }

    /// The run's record, begun or continued.
    fn record(&self) -> anyhow::Result<RunRecord> {
        let recipe = &self.resolved.recipe;
        let id = self.dir.path().file_name().unwrap_or_default().to_string_lossy();
        let mut record = self.dir.record()?.unwrap_or_else(|| RunRecord::new(&id, &recipe.name, self.hash));
        let digests = &self.data.digests;
        record.digests = BTreeMap::from([
            ("train".to_owned(), digests.train.clone()),
            ("val".to_owned(), digests.val.clone()),
        ]);
        record.digests.extend(digests.init_from.iter().map(|d| ("init_from".to_owned(), d.clone())));
        record.started.get_or_insert_with(facts::now);
        record.ended = None;
        record.total_steps = self.plan.steps;
        record.device.clone_from(&self.plan.device);
        record.engine = format!("{:?}", recipe.compute.engine).to_lowercase();
        record.precision = format!("{:?}", recipe.compute.precision).to_lowercase();
        record.emulated = self.plan.emulated;
        record.threads = self.plan.threads;
        record.git_commit = self.resolved.files.last().and_then(|file| facts::git_commit(file.parent()?));
        record.plan = serde_json::to_value(self.plan.document())?;
        Ok(record)
    }

    pub(super) fn recipe(&self) -> &Recipe {
        &self.resolved.recipe
    }
}
