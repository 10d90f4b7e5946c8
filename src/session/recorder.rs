//! What a run leaves behind while it trains: rows of the logs, samples, checkpoints, its record, and what the audience
//! is told.
//!
//! The loop in [`crate::train`] only says what happens; everything that is written because of it is written here.

mod conclusion;

use super::audience::Event;
use super::best::BestKept;
use super::continued::Again;
use super::data_watch::DataWatch;
use super::job::Job;
use super::machine;
use super::measured;
use super::pulse::{Course, Pulse};
use super::requests::Held;
use super::saved;
use super::saver::Saver;
use super::step_times::StepTimes;
use super::tensorboard::Tensorboard;
use super::watching::Watching;
use crate::engine::{Engine, EngineError};
use crate::model::init::random_bits;
use crate::run::samples::Samples;
use crate::run::{RunError, RunRecord, TrainLog, TrainRow, ValLog, ValRow, dir, fault};
use crate::train::sample::{Beginning, Sampling, generate};
use crate::train::{Doing, Events, Measured, Progress, StepReport, Stop, Watcher};
use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// What the logits of the samples in a run are divided by.
pub const SAMPLE_TEMPERATURE: f64 = 0.8;
/// How many of the most likely tokens the samples in a run are drawn from.
pub const SAMPLE_TOP_K: usize = 50;

/// What the logs say of the steps before the checkpoint that a run goes on from.
pub(super) struct Before {
    pub(super) elapsed_s: f64,
    pub(super) loss: Option<f64>,
    pub(super) val_loss: Option<f64>,
}

/// Writes down what happens.
pub(super) struct Recorder<'a> {
    job: &'a Job<'a>,
    #[expect(dead_code, reason = "held until the run's end is on record")]
    held: Held<'a>,
    /// The run's recipe, as it lies beside the logs.
    recipe: String,
    train_log: TrainLog,
    val_log: ValLog,
    samples: Samples,
    /// Dropped before the lock of the run is, so that its last checkpoint is written under the lock.
    saver: Saver<'a>,
    /// A checkpoint was asked for from outside.
    asked: bool,
    data: DataWatch<'a>,
    /// When the directory and the logs were last looked at.
    looked: Instant,
    watching: Watching<'a>,
    record: RunRecord,
    start: Instant,
    elapsed_before: f64,
    times: StepTimes,
    last_loss: Option<f64>,
    /// The last validation loss of this session, and that in the log before it.
    last_val_loss: Option<f64>,
    val_loss_before: Option<f64>,
    /// The most memory of a CUDA device that was seen to be taken, in bytes.
    memory_taken: Option<u64>,
    /// The event file of the run, if it is to have one.
    tensorboard: Option<Tensorboard>,
}

impl<'a> Recorder<'a> {
    /// Opens the logs. From here on the first request to stop is noted. `again` is an evaluation that
    /// is made again.
    pub(super) fn new(
        job: &'a Job,
        record: RunRecord,
        best: BestKept,
        before: Before,
        again: Option<Again>,
    ) -> anyhow::Result<Self> {
        let (dir, plan) = (&job.dir, &job.plan);
        let course = Course {
            steps: plan.steps,
            first_step: plan.before.steps,
            sizes: plan.sizes.clone(),
            eval_every: if plan.eval_rows > 0 { job.recipe().eval.every } else { 0 },
            checkpoint_bytes: plan.bytes.saved as u64,
            prediction: job.prediction,
        };
        let val_loss_before = again.as_ref().map(Again::logged).or(before.val_loss);
        let earlier = again.map(|again| again.row);
        let pulse = Arc::new(Pulse::new(course, record.steps_done));
        // before the first request may be heeded
        job.call.requests.concern(pulse.clone());
        let recorder = Self {
            train_log: TrainLog::open(dir.open_dir())?,
            val_log: ValLog::open_with(dir.open_dir(), &measured::columns(job.data), earlier)?,
            samples: Samples::open(dir.open_dir())?,
            held: job.call.requests.hold(),
            recipe: dir.read_recipe()?,
            saver: Saver::new(
                job.call.audience,
                Arc::clone(dir.open_dir()),
                plan.memory.dims,
                job.data.tokenizer.clone(),
                job.recipe().checkpoint.keep,
                plan.bytes.snapshot,
                best,
            ),
            asked: false,
            data: DataWatch::new(job.data, plan.steps),
            looked: Instant::now(),
            watching: Watching { requests: job.call.requests, pulse },
            job,
            record,
            start: Instant::now(),
            elapsed_before: before.elapsed_s,
            times: StepTimes::new(plan.batch.rows_per_step),
            last_loss: before.loss,
            last_val_loss: None,
            val_loss_before,
            memory_taken: None,
            tensorboard: job.recipe().log.tensorboard.then(|| Tensorboard::follow(dir.open_dir())),
        };
        job.call.audience.tell(Event::Started { pulse: &recorder.watching.pulse });
        Ok(recorder)
    }

    fn elapsed_s(&self) -> f64 {
        self.elapsed_before + self.start.elapsed().as_secs_f64()
    }

    /// Tokens per second of a step of so many rows.
    fn tokens_per_s(&self, rows: u64, step_ms: f64) -> f64 {
        (rows * self.job.plan.sizes.block_size()) as f64 / step_ms * 1e3
    }
}

/// The directory and the logs are looked at this often while steps are taken.
const LOOK: Duration = Duration::from_secs(1);

impl Recorder<'_> {
    /// Puts a better checkpoint on record once it is whole; the one before may go then.
    fn settle_best(&mut self) -> anyhow::Result<()> {
        let written = self.saver.last().map(|(step, _)| step);
        if !self.saver.is_writing() && self.saver.best.settle(&mut self.record, written) {
            self.job.dir.write_record(&self.record)?;
            self.saver.rotate()?;
        }
        Ok(())
    }

    /// Tells the audience that the event file lags behind, once.
    fn tell_of_tensorboard(&self) {
        if let Some(error) = self.tensorboard.as_ref().and_then(Tensorboard::failed) {
            self.job.call.audience.tell(Event::NotExported(&error));
        }
    }

    /// Checks that what was written is still where it was written to. A log, samples or a recipe that
    /// are gone are written again.
    fn check_written(&mut self) -> Result<(), RunError> {
        self.looked = Instant::now();
        let dir = &self.job.dir;
        dir.check()?;
        let files = [
            (dir.recipe(), dir.keep_recipe(&self.recipe)?),
            (dir.train_csv(), self.train_log.check()?),
            (dir.val_csv(), self.val_log.check()?),
            (dir.samples(), self.samples.check()?),
        ];
        for (file, _) in files.iter().filter(|(_, again)| *again) {
            self.job.call.audience.tell(Event::Rewritten { file });
        }
        Ok(())
    }
}

impl Events for Recorder<'_> {
    type Error = anyhow::Error;

    fn step(&mut self, report: &StepReport, progress: &Progress) -> anyhow::Result<()> {
        let plan = &self.job.plan;
        let step_ms = report.time.as_secs_f64() * 1e3;
        let rows = plan.sizes.rows(report.step);
        let tokens_per_s = self.tokens_per_s(rows, step_ms);
        let peak = self.record.peak.as_ref().map(|peak| peak.flops);
        let row = TrainRow {
            step: report.step,
            tokens: plan.sizes.tokens_before(progress.step),
            loss: report.loss as f32,
            lr: report.lr,
            grad_norm: report.grad_norm,
            epoch: plan.epochs_at(progress.step),
            loss_scale: report.loss_scale,
            skipped: report.skipped,
            step_ms,
            tokens_per_s,
            mfu: peak.map(|peak| plan.flops_per_token as f64 * tokens_per_s / peak),
            memory_bytes: machine::memory_bytes(plan),
            elapsed_s: self.elapsed_s(),
        };
        self.saver.poll()?;
        self.settle_best()?;
        self.data.step(progress)?;
        if self.looked.elapsed() >= LOOK {
            self.check_written()?;
            self.tell_of_tensorboard();
        }
        self.watching.pulse.saved(self.saver.last());
        self.train_log.append(&row)?;
        self.record.steps_done = progress.step;
        // as the log has it, from which a run that is resumed after its last step takes it
        self.last_loss = Some(f64::from(report.loss as f32));
        self.times.push(rows, step_ms);
        self.watching.pulse.stepped(progress.step, report.time);
        let (step, steps) = (progress.step, plan.steps);
        self.job.call.audience.tell(Event::Step { report, step, steps, row: &row });
        Ok(())
    }

    fn micro_step(&mut self, _tokens: usize) {
        self.job.call.audience.tell(Event::MicroStep);
        fault::between("step", "micro_step");
    }

    fn evaluated(&mut self, measured: &Measured, progress: &Progress) -> anyhow::Result<()> {
        let tokens = self.job.plan.sizes.tokens_before(progress.step);
        let (val_loss, also) = (measured.val_loss(), &measured::values(self.job.data, measured));
        let row = ValRow { step: progress.step, tokens, val_loss: val_loss as f32 };
        if measured::note_tasks(self.job.data, &mut self.record.digests) {
            // before a log has scores whose examples nobody knows
            self.job.dir.write_record(&self.record)?;
        }
        self.val_log.append_with(&row, &measured::cells(also))?;
        self.last_val_loss = Some(val_loss);
        self.saver.best.evaluated(progress.kept);
        self.watching.pulse.evaluated();
        self.record.results["best_val_loss"] = progress.best_val_loss.into();
        let (step, steps) = (progress.step, self.job.plan.steps);
        self.job.call.audience.tell(Event::Evaluated { step, steps, tokens, val_loss, also });
        Ok(())
    }

    fn reached(&mut self, step: u64) {
        self.data.ends_at(step);
    }

    fn sample(&mut self, engine: &mut dyn Engine, progress: &Progress) -> anyhow::Result<()> {
        let recipe = self.job.recipe();
        let pulse = &self.watching.pulse;
        pulse.begin(Doing::Sample);
        let tokenizer = &self.job.data.tokenizer;
        let prompt = tokenizer.prompt(&recipe.sample.prompt, recipe.model.vocab_size)?;
        let sampling = Sampling {
            tokens: recipe.sample.tokens,
            temperature: SAMPLE_TEMPERATURE,
            top_k: SAMPLE_TOP_K,
            top_p: 1.0,
        };
        let beginning = Beginning { prompt, seed: random_bits(recipe.seed, progress.step) };
        let mut stopped = false;
        let beginnings = [beginning];
        let texts = generate(engine, recipe.model.block_size, &beginnings, &sampling, |_, _| {
            pulse.look();
            stopped = self.job.call.requests.is_stopping();
            if stopped { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        });
        let texts = match texts {
            // whether a run that diverged ends is for its losses to say
            Err(EngineError::NotFinite) => beginnings.map(|beginning| beginning.prompt).into(),
            texts => texts?,
        };
        if stopped {
            // the resumed run makes this sample again, whole
            return Ok(());
        }
        let text = tokenizer.decode(&texts[0]);
        self.samples.append(progress.step, &text)?;
        let is_last = self.data.is_last(progress);
        self.job.call.audience.tell(Event::Sampled { step: progress.step, text: &text, is_last });
        Ok(())
    }

    fn checkpoint(&mut self, engine: &mut dyn Engine, progress: &Progress) -> anyhow::Result<()> {
        self.watching.pulse.begin(Doing::Checkpoint);
        if self.data.is_last(progress) {
            self.train_log.check_contents()?;
            self.val_log.check_contents()?;
            self.samples.check_contents()?;
        }
        // a checkpoint that outlives a power cut needs the rows that led to it
        self.train_log.sync()?;
        self.val_log.sync()?;
        let mut logs = BTreeMap::from([
            (dir::TRAIN_CSV.to_owned(), self.train_log.digest_before(progress.step)),
            (dir::VAL_CSV.to_owned(), self.val_log.digest_before(progress.step)),
        ]);
        let samples = self.samples.digest_before(progress.step);
        // an earlier session may have sampled where this one does not
        if self.job.recipe().sample.every > 0 || samples.bytes > 0 {
            logs.insert(dir::SAMPLES.to_owned(), samples);
        }
        let state = saved::state(self.job, progress, self.elapsed_s(), logs);
        self.saver.wait()?;
        self.settle_best()?;
        self.saver.best.seek(progress.kept);
        self.saver.save(engine, state)?;
        self.record.fast_paths = engine.fast_paths();
        self.memory_taken = self.memory_taken.max(engine.memory_taken());
        self.watching.pulse.saved(self.saver.last());
        self.job.dir.write_record(&self.record)?;
        if std::mem::take(&mut self.asked) {
            // the next thing that happens may be a power cut
            self.saver.wait()?;
            self.job.call.audience.tell(Event::SavedAsAsked { step: progress.step });
        }
        Ok(())
    }

    fn save_now(&mut self) -> bool {
        let asked = self.job.call.requests.save_asked();
        self.asked |= asked;
        asked
    }

    fn check(&mut self, progress: &Progress) -> anyhow::Result<()> {
        self.check_written()?;
        Ok(self.data.check(progress)?)
    }

    fn skipped(&mut self, step: u64, why: &str) {
        self.job.call.audience.tell(Event::Skipped { step, why });
    }

    fn stop(&mut self) -> Option<Stop> {
        self.watching.pulse.look();
        self.watching.requests.stop_asked()
    }

    fn watcher(&self) -> Option<&dyn Watcher> {
        Some(&self.watching)
    }
}
