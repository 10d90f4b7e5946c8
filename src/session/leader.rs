//! Training a run on rank 0: from the newest checkpoint, or the beginning, to the end or a request to stop.

use super::audience::Event;
use super::call::plan;
use super::ending::Ending;
use super::job::Job;
use super::member::Member;
use super::ranks::{self, Order};
use super::recorder::Recorder;
use super::{follower, machine};
use crate::comm::{Comm, Solo, Threads};
use crate::plan::lints::{Subject, lints};
use crate::plan::predict::Prediction;
use crate::recipe::MicroBatch;
use crate::run::checkpoint::{self, Newest, Rejected};
use crate::run::record::{Peak, Session as RecordedSession};
use crate::run::{RunError, RunRecord, RunStatus, cut_back, facts, read_train, samples};
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::Arc;
use std::thread;
use std::time::Duration;

/// Trains a run to its end.
pub(super) fn train(mut job: Job) -> anyhow::Result<Ending> {
    let start = job.newest_checkpoint()?;
    if let Some(reader) = &start {
        // a run that began with "auto" keeps its micro-batch, unless other ranks than before cannot divide by it
        let is_auto = job.recipe().batch.micro_batch == MicroBatch::Auto;
        let kept = Some(reader.state().micro_batch).filter(|_| is_auto);
        let kept = kept.filter(|rows| job.plan.batch.rows_per_rank.is_multiple_of(*rows));
        job.plan = plan(job.resolved, job.data, kept)?;
    }
    let peak = machine::peak(&job.plan);
    job.prediction = job.predict();
    job.announce(start.as_ref().map_or(0, |reader| reader.state().step));
    // ranks may have another current directory
    let checkpoint = start.as_ref().map(|reader| std::path::absolute(reader.path())).transpose()?;
    match &job.call.joined {
        Some(comm) => {
            let micro_batch = job.plan.batch.micro_batch;
            Order::Start { micro_batch, checkpoint }.give(comm.as_ref())?;
            job.lead(comm.clone(), start, peak)
        }
        None if job.plan.ranks.world_size == 1 => job.lead(Arc::new(Solo), start, peak),
        None => {
            let timeout = Duration::from_secs(job.plan.ranks.timeout_s);
            let mut ranks = Threads::group(job.plan.ranks.world_size, timeout).into_iter();
            let first = ranks.next().expect("a world has a rank");
            let (resolved, data, plan) = (job.resolved, job.data, &job.plan);
            thread::scope(|scope| {
                for comm in ranks {
                    let plan = plan.of_rank(comm.rank());
                    let member = Member { resolved, data, plan, comm: Arc::new(comm) };
                    let checkpoint = checkpoint.clone();
                    // what goes wrong reaches rank 0, which says it
                    scope.spawn(move || follower::train(&member, checkpoint.as_deref(), None));
                }
                job.lead(Arc::new(first), start, peak).inspect_err(|error| {
                    if ranks::is_hung(error) {
                        job.call.audience.tell(Event::Hung(error));
                    }
                })
            })
        }
    }
}

impl Job<'_> {
    /// How long the run will take, from a small step of its shapes; nothing for a CUDA device, where such a step takes
    /// longer to prepare than it is worth.
    fn predict(&self) -> Option<Prediction> {
        let recipe = self.recipe();
        let rates = match self.plan.cuda {
            Some(_) => None,
            None => machine::calibration::rates(&self.plan, recipe.compute.engine).ok(),
        };
        rates.map(|(rates, _)| self.plan.predict(&rates, &recipe.eval))
    }

    /// Says what is about to be trained, and what may be unwise about it.
    fn announce(&self, step: u64) {
        let (recipe, plan, run) = (self.recipe(), &self.plan, self.dir.path());
        let prediction = self.prediction.as_ref();
        let shards = self.data.shards();
        let lints = machine::hardware(recipe).map_or_else(
            |_| Vec::new(),
            |hardware| {
                let (hardware, shards) = (&hardware, Some(&shards));
                lints(&Subject { recipe, plan, hardware, shards, prediction })
            },
        );
        self.call.audience.tell(Event::Planned { run, step, plan, prediction, lints: &lints });
    }

    /// Rank 0: trains as the others do, and writes down what happens.
    fn lead(
        &self,
        comm: Arc<dyn Comm>,
        start: Option<checkpoint::Reader>,
        peak: (f64, String),
    ) -> anyhow::Result<Ending> {
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
    ) -> anyhow::Result<Ending> {
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
        let audience = self.call.audience;
        for Rejected { path: checkpoint, reason } in &newest.rejected {
            audience.tell(Event::Damaged { checkpoint, reason });
        }
        let Some(reader) = newest.reader else {
            return if newest.rejected.is_empty() {
                Ok(None)
            } else {
                Err(self.only_damaged(&newest).into())
            };
        };
        for rejected in &newest.rejected {
            let aside = &checkpoint::set_aside(&rejected.path)?;
            audience.tell(Event::SetAside { aside, instead: reader.path() });
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

    /// Damage that the user has to decide about.
    fn only_damaged(&self, newest: &Newest) -> RunError {
        RunError::Malformed {
            path: self.dir.path().to_owned(),
            problem: format!(
                "none of its {} checkpoints is intact; start over with --fresh, or bring one back from a backup",
                newest.rejected.len()
            ),
        }
    }

    /// Cuts the logs back to a checkpoint; the seconds trained up to there and the last loss.
    fn cut_logs_back(&self, step: u64) -> anyhow::Result<(f64, Option<f64>)> {
        let kept = cut_back(&self.dir.train_csv(), step)?;
        if kept.rows != step {
            let (log, rows) = (&self.dir.train_csv(), kept.rows);
            self.call.audience.tell(Event::RowsMissing { log, rows, steps: step });
        }
        // the evaluation and the sample at this step are made again
        cut_back(&self.dir.val_csv(), step)?;
        samples::cut_back(&self.dir.samples(), step)?;
        let last = read_train(&self.dir.train_csv())?.last().transpose()?;
        Ok((kept.elapsed_s, last.map(|row| f64::from(row.loss))))
    }

    /// The name of the run's directory.
    fn id(&self) -> std::io::Result<String> {
        let path = self.dir.path();
        // of `.` the path does not tell
        let path = if path.file_name().is_some() { path.to_owned() } else { path.canonicalize()? };
        Ok(path.file_name().unwrap_or_default().to_string_lossy().into_owned())
    }

    /// The run's record, begun or continued.
    fn record(&self) -> anyhow::Result<RunRecord> {
        let recipe = &self.resolved.recipe;
        let mut record = match self.dir.record()? {
            Some(record) => record,
            None => RunRecord::new(&self.id()?, &recipe.name, self.hash),
        };
        record.digests = self.data.digests.by_name();
        record.started.get_or_insert_with(facts::now);
        record.ended = None;
        record.total_steps = self.plan.steps;
        record.device.clone_from(&self.plan.device);
        record.engine = recipe.compute.engine.as_str().to_owned();
        record.precision = recipe.compute.precision.as_str().to_owned();
        record.emulated = self.plan.emulated;
        record.threads = self.plan.threads;
        record.git_commit = self.resolved.files.last().and_then(|file| facts::git_commit(file.parent()?));
        record.plan = serde_json::to_value(self.plan.document())?;
        Ok(record)
    }
}
