//! What a run leaves behind while it trains: rows of the logs, samples, checkpoints, its record, and lines for people.
//!
//! The loop in [`crate::train`] only says what happens; everything that is written because of it is written here.

use super::super::build;
use super::super::device;
use super::super::exit::Exit;
use super::super::signals::Held;
use super::super::terminal::{Board, say, tame};
use super::saver::Saver;
use super::session::Session;
use super::shown;
use super::summary::{duration, thousands};
use crate::data::Tokenizer;
use crate::engine::Engine;
use crate::model::init::random_bits;
use crate::run::checkpoint::{CheckpointState, Scaler, WatchdogState};
use crate::run::{RunRecord, RunStatus, TrainLog, TrainRow, ValLog, ValRow, facts, samples};
use crate::train::sample::{Sampling, generate};
use crate::train::{Events, Outcome, Progress, StepReport, Stop, TrainError};
use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::time::Instant;

/// Writes down what happens.
pub(super) struct Recorder<'a> {
    session: &'a Session<'a>,
    #[expect(dead_code, reason = "held until the run's end is on record")]
    held: Held<'a>,
    train_log: TrainLog,
    val_log: ValLog,
    board: Board,
    /// Before the lock of the run goes, its last checkpoint is written.
    saver: Saver,
    /// A checkpoint was asked for by a signal.
    asked: bool,
    record: RunRecord,
    start: Instant,
    elapsed_before: f64,
    step_ms: Vec<f64>,
    last_loss: Option<f64>,
    last_val_loss: Option<f64>,
}

impl<'a> Recorder<'a> {
    /// Opens the logs. From here on the first signal is noted instead of ending the process.
    pub(super) fn new(
        session: &'a Session,
        record: RunRecord,
        elapsed_before: f64,
        last_loss: Option<f64>,
    ) -> anyhow::Result<Self> {
        let (dir, plan) = (&session.dir, &session.plan);
        Ok(Self {
            train_log: TrainLog::open(&dir.train_csv())?,
            val_log: ValLog::open(&dir.val_csv())?,
            board: Board::new(plan.steps, plan.batch.micro_steps as u64, record.steps_done),
            held: session.call.signals.hold(),
            saver: Saver::new(
                dir.path().to_owned(),
                plan.memory.dims,
                session.recipe().checkpoint.keep,
                plan.bytes.snapshot,
            ),
            asked: false,
            session,
            record,
            start: Instant::now(),
            elapsed_before,
            step_ms: Vec::new(),
            last_loss,
            last_val_loss: None,
        })
    }

    fn elapsed_s(&self) -> f64 {
        self.elapsed_before + self.start.elapsed().as_secs_f64()
    }

    fn tokens_per_s(&self, step_ms: f64) -> f64 {
        self.session.plan.batch.tokens_per_step as f64 / step_ms * 1e3
    }

    /// Puts the outcome on record and says it.
    pub(super) fn conclude(
        mut self,
        result: Result<Outcome, TrainError<anyhow::Error>>,
    ) -> anyhow::Result<Exit> {
        let written = self.saver.wait();
        // a run whose last checkpoint is not there has not finished; what ended it before matters more
        let result = match (result, written) {
            (Ok(Outcome::Finished | Outcome::Stopped(_)), Err(error)) => Err(TrainError::Events(error)),
            (result, written) => {
                if let Err(error) = written {
                    self.board.line(&format!("error: {error:#}"));
                }
                result
            }
        };
        self.board.clear();
        let path = shown(self.session.dir.path());
        let (status, exit, error) = match &result {
            Ok(Outcome::Finished) => (RunStatus::Finished, Exit::Finished, None),
            Ok(Outcome::Stopped(Stop::Interrupt)) => (RunStatus::Interrupted, Exit::Interrupted, None),
            Ok(Outcome::Stopped(Stop::Terminate)) => (RunStatus::Interrupted, Exit::Terminated, None),
            Ok(Outcome::Stopped(Stop::HangUp)) => (RunStatus::Interrupted, Exit::HungUp, None),
            Ok(Outcome::Diverged { step, what }) => {
                (RunStatus::Diverged, Exit::Diverged, Some(format!("at step {step} {what}")))
            }
            Err(error) => (RunStatus::Failed, Exit::Failure, Some(error.to_string())),
        };
        let median = median(&mut self.step_ms);
        let (elapsed, speed) = (self.elapsed_s(), median.map(|ms| self.tokens_per_s(ms)));
        self.record.status = status;
        self.record.error = error;
        self.record.ended = Some(facts::now());
        if let Some(session) = self.record.sessions.last_mut() {
            session.ended.clone_from(&self.record.ended);
            session.to_step = Some(self.record.steps_done);
        }
        let entropy =
            self.session.data.val.as_ref().filter(|d| d.tokens() < 10_000_000).map(|d| d.unigram_entropy());
        let results = &mut self.record.results;
        results["final_loss"] = self.last_loss.into();
        results["final_val_loss"] = self.last_val_loss.into();
        results["val_unigram_entropy"] = entropy.into();
        results["peak_memory_bytes"] = device::memory_bytes(&self.session.plan).into();
        results["elapsed_s"] = elapsed.into();
        // a session that came only for the last evaluation has measured no step
        if speed.is_some() || results.get("tokens_per_s").is_none() {
            results["tokens_per_s"] = speed.into();
        }
        let recorded = self.session.dir.write_record(&self.record);
        let time = duration(std::time::Duration::from_secs_f64(elapsed));
        match &result {
            Ok(Outcome::Finished) => {
                let loss =
                    self.last_loss.map_or_else(String::new, |loss| format!(", training loss {loss:.4}"));
                let speed = speed.map_or_else(String::new, |s| format!(", {} tokens/s", thousands(s as u64)));
                say(&format!("{path}: finished in {time}{loss}{speed}"));
                if let (Some(val), Some(entropy)) = (self.last_val_loss, entropy) {
                    say(&format!(
                        "validation loss {val:.4} nats per token; knowing only how often each token occurs would give {entropy:.4}"
                    ));
                }
            }
            Ok(Outcome::Stopped(_)) => say(&format!(
                "{path}: interrupted after {} of {} steps; the same command{} resumes",
                self.record.steps_done,
                self.session.plan.steps,
                if self.session.call.fresh { " without --fresh" } else { "" }
            )),
            Ok(Outcome::Diverged { step, what }) => say(&format!(
                "{path}: diverged at step {step}: {what}; nothing is saved of it, the last checkpoint is kept \
                 and --resume goes on from it. Try a lower optimizer.lr, a longer schedule.warmup_steps or a smaller optimizer.clip_norm"
            )),
            Err(_) => {}
        }
        // what ended the run matters more than that it could not be recorded
        match result {
            Ok(Outcome::Finished) => Ok(recorded.map(|()| exit)?),
            Ok(_) => {
                if let Err(error) = recorded {
                    say(&format!("error: {error}"));
                }
                Ok(exit)
            }
            Err(TrainError::Engine(error)) => Err(error.into()),
            Err(TrainError::Events(error)) => Err(error),
        }
    }
}

fn median(values: &mut [f64]) -> Option<f64> {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied()
}

impl Events for Recorder<'_> {
    type Error = anyhow::Error;

    fn step(&mut self, report: &StepReport, progress: &Progress) -> anyhow::Result<()> {
        let plan = &self.session.plan;
        let step_ms = report.time.as_secs_f64() * 1e3;
        let tokens_per_s = self.tokens_per_s(step_ms);
        let peak = self.record.peak.as_ref().map(|peak| peak.flops);
        let row = TrainRow {
            step: report.step,
            tokens: progress.step * plan.batch.tokens_per_step as u64,
            loss: report.loss as f32,
            lr: report.lr,
            grad_norm: report.grad_norm,
            epoch: (progress.step * plan.batch.rows_per_step as u64) as f64 / plan.data.train_rows as f64,
            loss_scale: report.loss_scale,
            skipped: report.skipped,
            step_ms,
            tokens_per_s,
            mfu: peak.map(|peak| plan.flops_per_token as f64 * tokens_per_s / peak),
            memory_bytes: device::memory_bytes(&self.session.plan),
            elapsed_s: self.elapsed_s(),
        };
        self.saver.poll()?;
        self.train_log.append(&row)?;
        self.record.steps_done = progress.step;
        self.last_loss = Some(report.loss);
        self.step_ms.push(step_ms);
        let line = format!(
            "loss {:.4} lr {:.2e} norm {:.3} {} tok/s{}",
            report.loss,
            report.lr,
            report.grad_norm,
            thousands(tokens_per_s as u64),
            if report.skipped { " skipped" } else { "" }
        );
        let always = report.step == 0 || progress.step == plan.steps;
        self.board.step(progress.step, plan.steps, &line, always);
        Ok(())
    }

    fn micro_step(&mut self, _tokens: usize) {
        self.board.tick();
    }

    fn evaluated(&mut self, val_loss: f64, progress: &Progress) -> anyhow::Result<()> {
        let tokens = progress.step * self.session.plan.batch.tokens_per_step as u64;
        self.val_log.append(&ValRow { step: progress.step, tokens, val_loss: val_loss as f32 })?;
        self.last_val_loss = Some(val_loss);
        self.record.results["best_val_loss"] = progress.best_val_loss.into();
        self.board.line(&format!(
            "step {}/{} validation loss {val_loss:.4}",
            progress.step, self.session.plan.steps
        ));
        Ok(())
    }

    fn sample(&mut self, engine: &mut dyn Engine, progress: &Progress) -> anyhow::Result<()> {
        let recipe = self.session.recipe();
        let prompt = build::prompt(&recipe.sample.prompt, recipe.model.vocab_size)?;
        let sampling = Sampling {
            tokens: recipe.sample.tokens,
            temperature: 0.8,
            top_k: 50,
            seed: random_bits(recipe.seed, progress.step),
        };
        let mut stopped = false;
        let tokens = generate(engine, recipe.model.block_size, &prompt, &sampling, |_| {
            stopped = self.session.call.signals.received().is_some();
            if stopped { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        })?;
        if stopped {
            // the resumed run makes this sample again, whole
            return Ok(());
        }
        let text = Tokenizer::gpt2().decode(&tokens);
        samples::append(&self.session.dir.samples(), progress.step, &text)?;
        if progress.step == self.session.plan.steps {
            self.board.line(&format!("sample: {}", tame(&text)));
        }
        Ok(())
    }

    fn checkpoint(&mut self, engine: &mut dyn Engine, progress: &Progress) -> anyhow::Result<()> {
        let Session { plan, data, hash, dir, .. } = self.session;
        let window = progress.watchdog.window();
        // a checkpoint that outlives a power cut needs the rows that led to it
        self.train_log.sync()?;
        self.val_log.sync()?;
        let state = CheckpointState {
            step: progress.step,
            tokens: progress.step * plan.batch.tokens_per_step as u64,
            updates_applied: progress.updates,
            rows_consumed: progress.step * plan.batch.rows_per_step as u64,
            scaler: Scaler { scale: progress.scaler.scale(), good_steps: progress.scaler.good_steps() },
            watchdog: WatchdogState {
                losses: window.losses.iter().copied().collect(),
                grad_norms: window.grad_norms.iter().copied().collect(),
                skipped: window.skipped,
            },
            elapsed_s: self.elapsed_s(),
            recipe_hash: (*hash).to_owned(),
            data_digests: BTreeMap::from([
                ("train".to_owned(), data.digests.train.clone()),
                ("val".to_owned(), data.digests.val.clone()),
            ]),
            micro_batch: plan.batch.micro_batch,
            best_val: progress.best_val_loss,
            ..CheckpointState::default()
        };
        self.saver.save(engine, state)?;
        dir.write_record(&self.record)?;
        if std::mem::take(&mut self.asked) {
            // whoever asks may be about to pull the plug
            self.saver.wait()?;
            self.board
                .line(&format!("checkpoint of step {} as asked by SIGUSR1 is on the disk", progress.step));
        }
        Ok(())
    }

    fn save_now(&mut self) -> bool {
        let asked = self.session.call.signals.save_asked();
        self.asked |= asked;
        asked
    }

    fn skipped(&mut self, step: u64, why: &str) {
        self.board.line(&format!("warning: step {step} is skipped by the watchdog: {why}"));
    }

    fn stop(&mut self) -> Option<Stop> {
        self.session.call.signals.received()
    }
}
