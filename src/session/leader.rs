//! Training a run on rank 0: from the newest checkpoint, or the beginning, to the end or a request to stop.

use super::audience::Event;
use super::best::{self, BestKept};
use super::call::Call;
use super::continued::{Again, check_logs, keep_choices, lower, reached_before, usable};
use super::ending::Ending;
use super::follower;
use super::inputs::Data;
use super::job::Job;
use super::machine::{self, calibration};
use super::meaning;
use super::measured;
use super::member::Member;
use super::ranks::{self, Order};
use super::recorder::{Before, Recorder};
use super::start::Start;
use crate::comm::{Comm, Solo, Threads};
use crate::engine::cpu;
use crate::plan::lints::{Subject, lints};
use crate::plan::predict::Prediction;
use crate::plan::{Plan, fixed};
use crate::recipe::{EngineKind, Resolved, changeable};
use crate::report::own::note_values;
use crate::run::checkpoint::{self, CheckpointState, FileDigest, TrainedOn};
use crate::run::record::{Parent, Peak, Session as RecordedSession, TrainedBefore};
use crate::run::{RunRecord, RunStatus, cut_back, dir, facts, read_train, read_val, samples};
use anyhow::Context;
use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, UNIX_EPOCH};

/// A run that takes longer than this many seconds at the machine's peak rate begins with a prediction, whatever
/// it costs.
const LONG_S: f64 = 10.0;

/// Trains a run to its end.
pub(super) fn train(mut job: Job) -> anyhow::Result<Ending> {
    let start = job.newest_checkpoint()?;
    if let Some(reader) = &start {
        check_logs(job.dir.path(), job.data, reader.state())?;
        let CheckpointState { trained_before, trained_files, .. } = reader.state();
        job.trained_before = TrainedOn { sets: trained_before.clone(), files: trained_files.clone() };
    }
    job.trained_files = job.data.files_seen(&job.trained_before.files);
    let record = job.dir.record()?;
    measured::check_tasks(job.dir.path(), record.as_ref(), job.data)?;
    meaning::check(job.dir.path(), record.as_ref(), job.data)?;
    job.chosen = keep_choices(&mut job.plan, job.resolved, job.data, record.as_ref(), start.as_ref())?;
    job.call.tell_of_another(job.dir.path());
    let peak = machine::peaks::peak(&job.plan, &job.call.cache);
    job.prediction = predict(job.call, job.resolved, &job.plan, &peak);
    announce(
        job.call,
        job.resolved,
        job.data,
        (job.dir.path(), start.as_ref()),
        (&job.plan, job.prediction.as_ref()),
    );
    // ranks may have another current directory
    let checkpoint = start.as_ref().map(|reader| std::path::absolute(reader.path())).transpose()?;
    match &job.call.joined {
        Some(comm) => {
            let begun = job.plan.begun();
            Order::Start { begun, checkpoint }.give(comm.as_ref())?;
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

/// How long a run will take, from earlier runs of its kind. Where there was none, a small step of its shapes is
/// timed, if the run takes long enough to be worth it; not on a CUDA device, where such a step takes long to
/// prepare.
pub(super) fn predict(call: &Call, resolved: &Resolved, plan: &Plan, peak: &Peak) -> Option<Prediction> {
    let (recipe, cache) = (&resolved.recipe, &call.cache);
    let engine = recipe.compute.engine;
    let is_long = plan.cuda.is_none() && plan.flops > LONG_S * peak.flops;
    let timed = || is_long.then(|| calibration::measured(plan, engine, cache).ok()).flatten();
    let (rates, _) = calibration::remembered(plan, engine, cache).or_else(timed)?;
    Some(plan.predict(&rates, &recipe.eval))
}

/// The step from which a run goes on: that of its newest checkpoint, else that of the state which it begins
/// from, else 0.
pub(super) fn first_step(data: &Data, newest: Option<&checkpoint::Reader>) -> u64 {
    newest.map_or_else(|| data.start.parent().map_or(0, Parent::steps), |reader| reader.state().step)
}

/// Says what is about to be trained from the newest checkpoint on, and what may be unwise about it.
pub(super) fn announce(
    call: &Call,
    resolved: &Resolved,
    data: &Data,
    (run, newest): (&Path, Option<&checkpoint::Reader>),
    (plan, prediction): (&Plan, Option<&Prediction>),
) {
    let recipe = &resolved.recipe;
    let shards = data.shards();
    let lints = machine::hardware(recipe).map_or_else(
        |_| Vec::new(),
        |hardware| {
            let (hardware, shards) = (&hardware, Some(&shards));
            lints(&Subject { recipe, plan, hardware, shards, prediction })
        },
    );
    let step = first_step(data, newest);
    call.audience.tell(Event::Planned { run, step, plan, prediction, lints: &lints });
    // what a run has begun from is said when it begins, and that it goes on instead of another, when it does
    if newest.is_none() || matches!(data.start, Start::Own { .. }) {
        for line in data.start.lines() {
            call.audience.tell(Event::Begins(&line));
        }
    }
}

impl Job<'_> {
    /// Rank 0: trains as the others do, and writes down what happens.
    fn lead(
        &self,
        comm: Arc<dyn Comm>,
        start: Option<checkpoint::Reader>,
        peak: Peak,
    ) -> anyhow::Result<Ending> {
        let result = catch_unwind(AssertUnwindSafe(|| self.record_training(&comm, start, peak)));
        match &result {
            Ok(Ok(_)) => {}
            Ok(Err(error)) => comm.abandon(&format!("{error:#}")),
            Err(_) => comm.abandon("it panicked"),
        }
        result.unwrap_or_else(|panic| resume_unwind(panic))
    }

    /// How several ranks are joined, as [`RecordedSession::ranks`] has it.
    fn how_joined(&self) -> Option<String> {
        let ranks = &self.plan.ranks;
        (ranks.world_size > 1).then(|| match self.call.joined() {
            None => "threads".to_owned(),
            Some(_) => format!("processes, {} on one machine", ranks.here),
        })
    }

    fn record_training(
        &self,
        comm: &Arc<dyn Comm>,
        start: Option<checkpoint::Reader>,
        peak: Peak,
    ) -> anyhow::Result<Ending> {
        comm.set_working(true);
        let member =
            Member { resolved: self.resolved, data: self.data, plan: self.plan.clone(), comm: comm.clone() };
        let is_new = start.is_none();
        let logs = start.as_ref().map(|start| start.state().logs.clone()).unwrap_or_default();
        let (mut engine, mut progress) = member.begin(start)?;
        if let Some(record) = self.dir.record()?.filter(|_| !is_new) {
            self.tell_other_rounding(&record);
        }
        let mut record = self.record()?;
        let is_open = fixed(self.recipe().compute.recompute).is_none();
        let recompute = is_open.then(|| self.plan.memory.recompute().as_str().to_owned());
        // a session that died before it had made the row again has left the checkpoint on record
        let was_best = record.best_checkpoint.as_ref().is_some_and(|best| best.step == progress.step);
        let again = if is_new { None } else { Again::find(&self.dir, progress.step, &record)? };
        // a process that is killed before it is made again leaves it to the next one
        record.evaluated_before = again.as_ref().map(|again| again.row.clone());
        progress.evaluated = !is_new && was_best || again.is_some();
        let peak = machine::peaks::of_run(record.peak.take(), peak);
        // a process that was killed has said no end
        if let Some(killed) = record.sessions.last_mut().filter(|last| last.ended.is_none()) {
            let written = self.dir.train_csv().metadata().and_then(|found| found.modified()).ok();
            let since_1970 = written.and_then(|written| written.duration_since(UNIX_EPOCH).ok());
            let last_written = since_1970.map(|since| facts::rfc3339(since.as_secs()));
            killed.last_written = killed.last_written.take().or(last_written);
        }
        record.begin_session(RecordedSession {
            started: facts::now(),
            from_step: progress.step,
            overrides: self.overrides.to_vec(),
            settings: Some(changeable(self.recipe())),
            tasks: Some(self.data.tasks.found.iter().map(|task| task.name.clone()).collect()),
            device: Some(self.plan.device.clone()),
            host: Some(facts::host()),
            processor: self.plan.cuda.is_none().then(machine::cpu_model),
            threads: Some(self.plan.threads),
            peak_flops: Some(peak.flops),
            simd: record.simd.clone(),
            recompute,
            ranks: self.how_joined(),
            recipes_before: self.call.recipes_before,
            ..RecordedSession::default()
        });
        record.peak = Some(peak);
        record.status = RunStatus::Running;
        record.steps_done = progress.step;
        record.error = None;
        record.data_changed = false;
        record.reached_target = None;
        if !record.results.is_object() {
            record.results = serde_json::json!({});
        }
        let at_step = again.as_ref().map(|again| again.val_loss(&record));
        record.results["best_val_loss"] = lower(progress.best_val_loss, at_step).into();
        let keeps_best = self.recipe().checkpoint.keep_best;
        if let Some(best) = record.best_checkpoint.as_ref().filter(|_| !keeps_best) {
            let checkpoint = &checkpoint::path_of(self.dir.path(), best.step);
            self.call.audience.tell(Event::BestCeased { checkpoint });
        }
        let best = BestKept::new(self.dir.path(), keeps_best, &mut record, &progress);
        if let Some(best) = &record.best_checkpoint {
            best::look_after(self.dir.path(), best.step, self.call.audience);
        }
        // a record that calls the run finished must not stand beside logs that were cut
        self.dir.write_record(&record)?;
        let before = self.cut_logs_back(progress.step, is_new, &logs)?;
        let target = self.recipe().schedule.stop_at_val_loss;
        progress.reached = reached_before(self.dir.path(), progress.step, target)?;

        let mut recorder = Recorder::new(self, record, best, before, again)?;
        comm.set_working(false);
        let result = member.run(engine.as_mut(), progress, is_new, &mut recorder);
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
        let damaged: Vec<PathBuf> = newest.rejected.iter().map(|rejected| rejected.path.clone()).collect();
        let reader = usable(self.call, self.dir.path(), (self.hash, self.plan.steps), newest)?;
        if let Some(reader) = &reader {
            for path in damaged {
                let aside = &checkpoint::set_aside(self.dir.open_dir(), &path)?;
                self.call.audience.tell(Event::SetAside { aside, instead: reader.path() });
            }
        }
        Ok(reader)
    }

    /// Cuts the logs back to a checkpoint, which states their digests. Returns what they say up to there.
    fn cut_logs_back(
        &self,
        step: u64,
        is_new: bool,
        logs: &BTreeMap<String, FileDigest>,
    ) -> anyhow::Result<Before> {
        let run = self.dir.open_dir();
        let kept = cut_back(run, dir::TRAIN_CSV, step, logs.get(dir::TRAIN_CSV))?;
        // the evaluation and the sample at this step are made again
        cut_back(run, dir::VAL_CSV, step, logs.get(dir::VAL_CSV))?;
        samples::cut_back(run, (!is_new).then_some(step), logs.get(dir::SAMPLES))?;
        let trained = read_train(&self.dir.train_csv())?.last().transpose()?;
        let evaluated = read_val(&self.dir.val_csv())?.last().transpose()?;
        Ok(Before {
            elapsed_s: kept.elapsed_s,
            loss: trained.map(|row| f64::from(row.loss)),
            val_loss: evaluated.map(|row| f64::from(row.val_loss)),
        })
    }

    /// The name of the run's directory.
    fn id(&self) -> anyhow::Result<String> {
        let path = self.dir.path();
        // of `.` the path does not tell
        let path = if path.file_name().is_some() {
            path.to_owned()
        } else {
            path.canonicalize().with_context(|| format!("could not read `{}`", path.display()))?
        };
        Ok(path.file_name().unwrap_or_default().to_string_lossy().into_owned())
    }

    /// Says where a run that is continued goes on with other kernels, whose sums have other last digits.
    fn tell_other_rounding(&self, record: &RunRecord) {
        if self.plan.engine == EngineKind::Dfdx {
            // which has kernels of one kind only
            return;
        }
        let (began, here) = (record.simd.as_deref(), cpu::level());
        let is_same = match (began.and_then(cpu::Level::of_word), self.plan.cuda) {
            (Some(began), None) => began.is_fused() == here.is_fused(),
            (Some(_), Some(_)) => false,
            // devices are not told apart, and the level of an earlier version's record is not known
            (None, cuda) => (record.device == "cpu") == cuda.is_none(),
        };
        if !is_same {
            let on = |device: &str, level: Option<&str>| match level {
                Some(level) => format!("{device} with {level} instructions"),
                None => device.to_owned(),
            };
            let here = self.plan.cuda.is_none().then(|| here.word());
            self.call.audience.tell(Event::OtherRounding(&format!(
                "the run began on {} and goes on on {}, which rounds in another way: from here on its numbers agree \
                 with those of an undisturbed run in their first digits only",
                on(&record.device, began),
                on(&self.plan.device, here)
            )));
        }
    }

    /// The run's record, begun or continued.
    fn record(&self) -> anyhow::Result<RunRecord> {
        let recipe = &self.resolved.recipe;
        let mut record = match self.dir.record()? {
            Some(record) => record,
            None => RunRecord::new(&self.id()?, &recipe.name, self.hash),
        };
        // whatever somebody has made of it
        self.hash.clone_into(&mut record.hash);
        record.name.clone_from(&recipe.name);
        let tasks = measured::digests(&record.digests);
        record.digests = self.data.digests.by_name();
        record.digests.extend(tasks);
        record.digests.extend(measured::digests_of_sets(self.data));
        meaning::note(&mut record, self.data);
        note_values(&mut record, &self.dir.read_recipe()?);
        if let Some(parent) = self.data.start.parent() {
            // what the record of that run no longer says
            let with_weights = record.parent.as_ref().is_some_and(|known| known.with_weights);
            record.parent =
                Some(Parent { with_weights: parent.with_weights || with_weights, ..parent.clone() });
        }
        let shared = self.data.shared();
        record.trains_on_validation = !shared.is_empty();
        record.trains_on_sets = shared.into_iter().filter_map(|shard| shard.set).collect();
        record.trains_on_sets.dedup();
        // what was known at the start may be too much for a checkpoint
        let is_known = record.trained_before == Some(TrainedBefore::ValidationData);
        if !is_known {
            let found = self.data.trained_before(&self.trained_before);
            if found.0.is_some() || record.trained_before.is_none() {
                (record.trained_before, record.trained_before_sets) = found;
            }
        }
        record.by_row = measured::by_row(self.data, &self.plan);
        record.train_files = self.data.files_seen(&[]);
        record.started.get_or_insert_with(facts::now);
        record.ended = None;
        record.total_steps = self.plan.steps;
        record.device.clone_from(&self.plan.device);
        record.engine = recipe.compute.engine.as_str().to_owned();
        record.precision = recipe.compute.precision.as_str().to_owned();
        record.emulated = self.plan.emulated;
        record.threads = self.plan.threads;
        let has_levels = self.plan.cuda.is_none() && self.plan.engine == EngineKind::Fused;
        record.simd = has_levels.then(|| cpu::level().word().to_owned());
        // a recipe that the program carries is in no directory
        let file = self.resolved.files.last().filter(|file| file.is_file());
        record.git_commit = file.and_then(|file| facts::git_commit(file.parent()?));
        record.plan = serde_json::to_value(self.plan.document())?;
        record.files = BTreeMap::from([(dir::RECIPE.to_owned(), self.dir.recipe_digest()?)]);
        Ok(record)
    }
}
