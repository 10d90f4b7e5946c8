//! The end of a run: on record, in the event file, and what the audience is told of it.

use super::Recorder;
use crate::data::Dataset;
use crate::run::{RunError, RunStatus, dir, facts};
use crate::session::audience::Event;
use crate::session::ending::{End, Ending};
use crate::session::machine::{self, calibration};
use crate::session::tensorboard::Tensorboard;
use crate::train::{Outcome, TrainError};
use serde_json::Value as Json;
use std::path::Path;
use std::time::Duration;

/// Validation data of fewer tokens than this are counted at the end of a run.
const QUICK_TOKENS: u64 = 10_000_000;

impl Recorder<'_> {
    /// Puts the end of the run on record, tells the audience, and returns what it is to the caller.
    pub(in crate::session) fn conclude(
        mut self,
        result: Result<Outcome, TrainError<anyhow::Error>>,
    ) -> anyhow::Result<Ending> {
        let audience = self.job.call.audience;
        let written = self.saver.wait().and_then(|()| self.settle_best());
        let written = written.and_then(|()| Ok(self.val_log.put_back()?));
        if written.is_ok() {
            self.record.evaluated_before = None;
        }
        // a run whose last checkpoint is not there has not finished; what ended it before matters more
        let result = match (self.job.dir.check(), result, written) {
            // because of which anything else may have failed
            (Err(gone), ..) => Err(TrainError::Events(gone.into())),
            (_, Ok(Outcome::Finished | Outcome::Reached(_) | Outcome::Stopped(_)), Err(error)) => {
                Err(TrainError::Events(error))
            }
            (_, result, written) => {
                if let Err(error) = written {
                    audience.tell(Event::Failed(&error));
                }
                result
            }
        };
        let job = self.job;
        let end = self.end(&result, job.dir.path());
        let recorded = self.put_on_record(&end);
        if let Some(error) = self.tensorboard.take().and_then(Tensorboard::finish) {
            audience.tell(Event::NotExported(&error));
        }
        self.learn(&end);
        audience.tell(Event::Ended(&end));
        match result {
            Ok(Outcome::Finished | Outcome::Reached(_)) => Ok(recorded.map(|()| end.ending())?),
            Ok(_) => {
                // what ended the run matters more than that it could not be recorded
                if let Err(error) = recorded {
                    audience.tell(Event::Failed(&error.into()));
                }
                Ok(end.ending())
            }
            Err(TrainError::Engine(error)) => Err(error.into()),
            Err(TrainError::Events(error)) => Err(error),
        }
    }

    /// What is known at the end.
    fn end<'r>(&self, result: &Result<Outcome, TrainError<anyhow::Error>>, run: &'r Path) -> End<'r> {
        let val = self.job.data.val.as_ref().filter(|data| data.tokens() < QUICK_TOKENS);
        let full = self.job.plan.batch.rows_per_step as u64;
        let is_of_data = |error: &anyhow::Error| Ending::of(error) == Ending::DataChanged;
        End {
            run,
            data_changed: matches!(result, Err(TrainError::Events(error)) if is_of_data(error)),
            outcome: result.as_ref().map_err(ToString::to_string).cloned(),
            steps_done: self.record.steps_done,
            steps: self.job.plan.steps,
            elapsed: Duration::from_secs_f64(self.elapsed_s()),
            loss: self.last_loss,
            target: self.job.recipe().schedule.stop_at_val_loss,
            tokens_per_s: self.times.median_ms().map(|ms| self.tokens_per_s(full, ms)),
            val_loss: self.last_val_loss,
            val_unigram_entropy: val.map(Dataset::unigram_entropy),
            val_is_part: val.is_some_and(|data| data.rows() > self.job.plan.eval_rows as u64),
        }
    }

    /// Remembers how long a step took, for predictions. Steps that ended badly may have been slow for that reason.
    fn learn(&self, end: &End) {
        let (job, steps) = (self.job, self.times.full_steps());
        let ended_well = !matches!(end.outcome, Ok(Outcome::Diverged { .. }) | Err(_));
        if let Some(ms) = self.times.full_median_ms().filter(|_| ended_well) {
            let engine = job.recipe().compute.engine;
            calibration::learn(&job.plan, engine, &self.record.id, ms / 1e3, steps, &job.call.cache);
        }
    }

    fn put_on_record(&mut self, end: &End) -> Result<(), RunError> {
        let record = &mut self.record;
        record.status = end.status();
        record.error = end.error();
        record.data_changed = end.data_changed;
        record.reached_target = end.reached_target();
        record.ended = Some(facts::now());
        if let Some(session) = record.sessions.last_mut() {
            session.ended.clone_from(&record.ended);
            session.to_step = Some(record.steps_done);
        }
        if record.status == RunStatus::Finished {
            record.files.insert(dir::TRAIN_CSV.to_owned(), self.train_log.digest());
            record.files.insert(dir::VAL_CSV.to_owned(), self.val_log.digest());
        }
        let results = &mut record.results;
        results["final_loss"] = end.loss.into();
        // the log has fewer digits, and what it lacks was cut back with the steps before it
        let recorded = results.get("final_val_loss").and_then(Json::as_f64);
        let exact = |logged: f64| recorded.filter(|known| *known as f32 == logged as f32).unwrap_or(logged);
        results["final_val_loss"] = end.val_loss.or_else(|| self.val_loss_before.map(exact)).into();
        results["val_unigram_entropy"] = end.val_unigram_entropy.into();
        let planned_or_resident = || machine::memory_bytes(&self.job.plan);
        results["peak_memory_bytes"] = self.memory_taken.unwrap_or_else(planned_or_resident).into();
        results["elapsed_s"] = end.elapsed.as_secs_f64().into();
        // a session that came only for the last evaluation has measured no step
        if end.tokens_per_s.is_some() || results.get("tokens_per_s").is_none() {
            results["tokens_per_s"] = end.tokens_per_s.into();
        }
        self.job.dir.write_record(record)
    }
}
