//! One process's share of a run: from the newest checkpoint, or the beginning, to the end or a signal.

use super::super::build::{self, Data};
use super::super::device;
use super::super::exit::Exit;
use super::super::terminal::say;
use super::recorder::Recorder;
use super::summary::plan_lines;
use super::{Call, only_damaged, plan, shown};
use crate::data::Stream;
use crate::engine::{Engine, State};
use crate::model::init::initialize;
use crate::plan::Plan;
use crate::recipe::{Recipe, Resolved};
use crate::run::checkpoint;
use crate::run::record::{Peak, Session as RecordedSession};
use crate::run::{RunDir, RunError, RunRecord, RunStatus, cut_back, facts, read_train, samples};
use crate::train::scaler::LossScaler;
use crate::train::schedule::Schedule;
use crate::train::watchdog::{Watchdog, Window};
use crate::train::{self, Outcome, Progress, TrainConfig, TrainError};
use std::collections::BTreeMap;

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

        let mut engine = build::engine(recipe, &self.plan)?;
        let progress = self.load(engine.as_mut(), start)?;
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

        let mut recorder = Recorder::new(&self, record, elapsed_before, last_loss)?;
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
            let watchdog = Watchdog::new(recipe.watchdog.clone(), Window::default());
            return Ok(Progress { step: 0, updates: 0, scaler, watchdog, best_val_loss: None });
        };
        for state in [State::Parameters, State::FirstMoment, State::SecondMoment] {
            reader.fill(state, dims, &layout, &mut buffer)?;
            engine.write(state, &buffer)?;
        }
        let state = reader.state();
        let window = Window {
            losses: state.watchdog.losses.iter().copied().collect(),
            grad_norms: state.watchdog.grad_norms.iter().copied().collect(),
            skipped: state.watchdog.skipped,
        };
        Ok(Progress {
            step: state.step,
            updates: state.updates_applied,
            scaler: LossScaler::restore(precision, state.scaler.scale, state.scaler.good_steps),
            watchdog: Watchdog::new(recipe.watchdog.clone(), window),
            best_val_loss: state.best_val,
        })
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
        record.plan = serde_json::to_value(&self.plan)?;
        Ok(record)
    }

    pub(super) fn recipe(&self) -> &Recipe {
        &self.resolved.recipe
    }
}
