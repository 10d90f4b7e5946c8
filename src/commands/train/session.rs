//! One process's share of a run: from the newest checkpoint, or the beginning, to the end or a signal.

use super::super::build::{self, Data};
use super::super::exit::Exit;
use super::super::signals::Held;
use super::super::terminal::{Board, say};
use super::summary::{duration, plan_lines, thousands};
use super::{Call, only_damaged, plan, shown};
use crate::data::{Stream, Tokenizer};
use crate::engine::{Engine, State, cpu};
use crate::model::init::{initialize, random_bits};
use crate::plan::Plan;
use crate::plan::hardware::peak_resident_bytes;
use crate::recipe::{Recipe, Resolved};
use crate::run::checkpoint::{self, CheckpointState, Scaler, Writer};
use crate::run::record::{Peak, Session as RecordedSession};
use crate::run::{
    RunDir, RunError, RunRecord, RunStatus, TrainLog, TrainRow, ValLog, ValRow, cut_back, facts, samples,
};
use crate::train::sample::{Sampling, generate};
use crate::train::scaler::LossScaler;
use crate::train::schedule::Schedule;
use crate::train::{self, Events, Outcome, Progress, StepReport, Stop, TrainConfig, TrainError};
use std::collections::BTreeMap;
use std::time::Instant;

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
            let kept = build::kept_micro_batch(recipe, reader.state().micro_batch);
            self.plan = plan(self.call, self.resolved, self.data, kept)?;
        }
        let (peak, how) = cpu::peak::measure(self.plan.threads);
        let step = start.as_ref().map_or(0, |reader| reader.state().step);
        say(&format!(
            "{}: step {step} of {}\n{}",
            shown(self.dir.path()),
            self.plan.steps,
            plan_lines(&self.plan)
        ));
        super::super::plan::warn(recipe, &self.plan, &self.call.hardware, self.data);

        let mut engine = build::engine(recipe, &self.plan)?;
        let progress = self.load(engine.as_mut(), start)?;
        let elapsed_before = self.cut_logs_back(progress.step)?;
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
        self.dir.write_record(&record)?;

        let (train_log, val_log) =
            (TrainLog::open(&self.dir.train_csv())?, ValLog::open(&self.dir.val_csv())?);
        let board = Board::new(self.plan.steps, self.plan.micro_steps as u64, progress.step);
        let held = self.call.signals.hold();
        let mut recorder = Recorder {
            session: &self,
            held,
            train_log,
            val_log,
            board,
            record,
            start: Instant::now(),
            elapsed_before,
            step_ms: Vec::new(),
            last_loss: None,
            last_val_loss: None,
        };
        let result = self.run(engine.as_mut(), progress, &mut recorder);
        recorder.conclude(result)
    }

    fn run(
        &self,
        engine: &mut dyn Engine,
        mut progress: Progress,
        recorder: &mut Recorder,
    ) -> Result<Outcome, TrainError<anyhow::Error>> {
        let recipe = &self.resolved.recipe;
        let config = TrainConfig {
            max_steps: self.plan.steps,
            rows_per_step: self.plan.rows_per_step,
            micro_batch: self.plan.micro_batch,
            block_size: recipe.model.block_size,
            optimizer: recipe.optimizer.clone(),
            schedule: Schedule::new(&recipe.schedule, recipe.optimizer.lr),
            eval_every: recipe.eval.every,
            eval_rows: self.plan.eval_rows,
            checkpoint_every: recipe.checkpoint.every,
            sample_every: recipe.sample.every,
        };
        let training = Stream::new(&self.data.train, recipe.seed, recipe.data.shuffle);
        let validation = self.data.val.as_ref().map(|data| Stream::new(data, recipe.seed, false));
        let validation = validation.as_ref().filter(|_| config.eval_rows > 0).map(|v| v as &dyn train::Rows);
        train::train(engine, &training, validation, &config, &mut progress, recorder)
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

    /// Fills the engine from a checkpoint, from `model.init_from`, or with fresh random weights.
    fn load(&self, engine: &mut dyn Engine, start: Option<checkpoint::Reader>) -> anyhow::Result<Progress> {
        let recipe = &self.resolved.recipe;
        let (dims, precision) = (&self.plan.memory.dims, recipe.compute.precision);
        let layout = engine.layout().clone();
        let mut buffer = vec![0.0; layout.len];
        let Some(mut reader) = start else {
            match &recipe.model.init_from {
                Some(path) => crate::run::import(path, dims, &layout, &mut buffer)?,
                None => initialize(dims, &layout, recipe.seed, &mut buffer),
            }
            engine.write(State::Parameters, &buffer)?;
            let scaler = LossScaler::new(precision);
            return Ok(Progress { step: 0, updates: 0, scaler, best_val_loss: None });
        };
        for state in [State::Parameters, State::FirstMoment, State::SecondMoment] {
            reader.fill(state, dims, &layout, &mut buffer)?;
            engine.write(state, &buffer)?;
        }
        let state = reader.state();
        Ok(Progress {
            step: state.step,
            updates: state.updates_applied,
            scaler: LossScaler::restore(precision, state.scaler.scale, state.scaler.good_steps),
            best_val_loss: state.best_val,
        })
    }

    /// Cuts the logs back to a checkpoint; the seconds trained up to there.
    fn cut_logs_back(&self, step: u64) -> anyhow::Result<f64> {
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
        Ok(kept.elapsed_s)
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
        record.plan = serde_json::to_value(&self.plan)?;
        Ok(record)
    }

    fn recipe(&self) -> &Recipe {
        &self.resolved.recipe
    }
}

/// Writes down what happens.
struct Recorder<'a> {
    session: &'a Session<'a>,
    #[expect(dead_code, reason = "held until the run's end is on record")]
    held: Held<'a>,
    train_log: TrainLog,
    val_log: ValLog,
    board: Board,
    record: RunRecord,
    start: Instant,
    elapsed_before: f64,
    step_ms: Vec<f64>,
    last_loss: Option<f64>,
    last_val_loss: Option<f64>,
}

impl Recorder<'_> {
    fn elapsed_s(&self) -> f64 {
        self.elapsed_before + self.start.elapsed().as_secs_f64()
    }

    fn tokens_per_s(&self, step_ms: f64) -> f64 {
        self.session.plan.tokens_per_step as f64 / step_ms * 1e3
    }

    /// Puts the outcome on record and says it.
    fn conclude(mut self, result: Result<Outcome, TrainError<anyhow::Error>>) -> anyhow::Result<Exit> {
        self.board.clear();
        let path = shown(self.session.dir.path());
        let (status, exit, error) = match &result {
            Ok(Outcome::Finished) => (RunStatus::Finished, Exit::Finished, None),
            Ok(Outcome::Stopped(Stop::Interrupt)) => (RunStatus::Interrupted, Exit::Interrupted, None),
            Ok(Outcome::Stopped(Stop::Terminate)) => (RunStatus::Interrupted, Exit::Terminated, None),
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
        let best = self.record.results.get("best_val_loss").cloned().unwrap_or_default();
        self.record.results = serde_json::json!({
            "final_loss": self.last_loss,
            "final_val_loss": self.last_val_loss,
            "best_val_loss": best,
            "val_unigram_entropy": entropy,
            "tokens_per_s": speed,
            "peak_memory_bytes": peak_resident_bytes(),
            "elapsed_s": elapsed,
        });
        self.session.dir.write_record(&self.record)?;
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
                "{path}: interrupted after {} of {} steps; the same command resumes",
                self.record.steps_done, self.session.plan.steps
            )),
            Ok(Outcome::Diverged { step, what }) => say(&format!(
                "{path}: diverged at step {step}: {what}; the update was not applied, the last checkpoint is kept. \
                 Try a lower optimizer.lr, a longer schedule.warmup_steps or a smaller optimizer.clip_norm"
            )),
            Err(_) => {}
        }
        match result {
            Ok(_) => Ok(exit),
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
            tokens: progress.step * plan.tokens_per_step as u64,
            loss: report.loss as f32,
            lr: report.lr,
            grad_norm: report.grad_norm,
            epoch: (progress.step * plan.rows_per_step as u64) as f64 / plan.data.train_rows as f64,
            loss_scale: report.loss_scale,
            skipped: report.skipped,
            step_ms,
            tokens_per_s,
            mfu: peak.map(|peak| plan.flops_per_token as f64 * tokens_per_s / peak),
            memory_bytes: peak_resident_bytes(),
            elapsed_s: self.elapsed_s(),
        };
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
        let tokens = progress.step * self.session.plan.tokens_per_step as u64;
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
        let tokens = generate(engine, recipe.model.block_size, &prompt, &sampling, |_| {})?;
        let text = Tokenizer::gpt2().decode(&tokens);
        samples::append(&self.session.dir.samples(), progress.step, &text)?;
        if progress.step == self.session.plan.steps {
            self.board.line(&format!("sample: {text}"));
        }
        Ok(())
    }

    fn checkpoint(&mut self, engine: &mut dyn Engine, progress: &Progress) -> anyhow::Result<()> {
        let Session { plan, data, hash, dir, .. } = self.session;
        // a checkpoint that outlives a power cut needs the rows that led to it
        self.train_log.sync()?;
        self.val_log.sync()?;
        let state = CheckpointState {
            step: progress.step,
            tokens: progress.step * plan.tokens_per_step as u64,
            updates_applied: progress.updates,
            rows_consumed: progress.step * plan.rows_per_step as u64,
            scaler: Scaler { scale: progress.scaler.scale(), good_steps: progress.scaler.good_steps() },
            elapsed_s: self.elapsed_s(),
            recipe_hash: (*hash).to_owned(),
            data_digests: BTreeMap::from([
                ("train".to_owned(), data.digests.train.clone()),
                ("val".to_owned(), data.digests.val.clone()),
            ]),
            micro_batch: plan.micro_batch,
            best_val: progress.best_val_loss,
            ..CheckpointState::default()
        };
        let layout = engine.layout().clone();
        let mut writer = Writer::begin(dir.path(), &plan.memory.dims, &layout, state)?;
        for state in [State::Parameters, State::FirstMoment, State::SecondMoment] {
            writer.put(state, &engine.read(state)?)?;
        }
        let written = writer.finish()?;
        checkpoint::rotate(dir.path(), self.session.recipe().checkpoint.keep, Some(&written))?;
        dir.write_record(&self.record)?;
        Ok(())
    }

    fn stop(&mut self) -> Option<Stop> {
        self.session.call.signals.received()
    }
}
