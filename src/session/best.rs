//! The checkpoint of the best evaluation: what is kept for it besides the newest checkpoints, and when a run's record
//! may name it.
//!
//! A better one takes over in this order: it is whole on the disk, the record names it, the one before may go. So the
//! record never names a checkpoint that is not there, whenever the process dies. One that is lost or damaged otherwise
//! stays named until an evaluation is better: a worse one is not the best, and what is left of it is not deleted.

use super::audience::{Audience, Event};
use crate::run::checkpoint::{self, Reader};
use crate::run::record::BestCheckpoint;
use crate::run::{RunRecord, dir};
use crate::train::{Best, Progress};
use std::path::{Path, PathBuf};

/// Which checkpoints of a run are the best one, or are about to be.
pub(super) struct BestKept {
    run_dir: PathBuf,
    /// The step of the one that the record names.
    named: Option<u64>,
    /// The best evaluation so far.
    sought: Option<Best>,
    /// Whether the evaluation of the one that the record names is yet to be made again. Until then, what the run's
    /// checkpoint says was best before it is not.
    is_pending: bool,
}

impl BestKept {
    /// For a run that goes on from `progress`, whose record is made to name what is there; nothing unless
    /// `checkpoint.keep_best` is `on`.
    pub(super) fn new(run_dir: &Path, on: bool, record: &mut RunRecord, progress: &Progress) -> Self {
        let sought = progress.kept.filter(|_| on);
        // the evaluation of this step is made again, and finds the same: what was best before it may be gone
        let here = record.best_checkpoint.take().filter(|best| on && best.step == progress.step);
        let here = here.filter(|best| !is_lost(run_dir, best.step));
        let is_pending = here.is_some();
        let sought = here.as_ref().map(|here| Best { step: here.step, val_loss: here.val_loss }).or(sought);
        record.best_checkpoint = here.or_else(|| sought.map(entry));
        let named = record.best_checkpoint.as_ref().map(|best| best.step);
        Self { run_dir: run_dir.to_owned(), named, sought, is_pending }
    }

    /// Takes note of the best evaluation so far.
    pub(super) fn seek(&mut self, best: Option<Best>) {
        if !self.is_pending {
            self.sought = best.or(self.sought);
        }
    }

    /// Takes note of the best evaluation so far, after one was made.
    pub(super) fn evaluated(&mut self, best: Option<Best>) {
        self.is_pending = false;
        self.seek(best);
    }

    /// The steps of the checkpoints that stay.
    pub(super) fn steps(&self) -> Vec<u64> {
        self.named.into_iter().chain(self.sought.map(|best| best.step)).collect()
    }

    /// Whether the record is to name another checkpoint from now on, which is whole; then it does. The one of the step
    /// `written` is known to be: this process has just written it.
    pub(super) fn settle(&mut self, record: &mut RunRecord, written: Option<u64>) -> bool {
        let Some(best) = self.sought.filter(|best| self.named != Some(best.step)) else { return false };
        let settled = match Reader::open(&checkpoint::path_of(&self.run_dir, best.step)) {
            Ok(_) => true,
            Err(error) => written == Some(best.step) && error.is_of_the_look(),
        };
        if settled {
            self.named = Some(best.step);
            record.best_checkpoint = Some(entry(best));
        }
        settled
    }
}

/// Says so if the checkpoint of the best evaluation, which is of this step, is lost or damaged.
pub(super) fn look_after(run_dir: &Path, step: u64, audience: &dyn Audience) {
    let checkpoint = &checkpoint::path_of(run_dir, step);
    if let Err(reason) = Reader::open(checkpoint).and_then(|mut reader| reader.verify()) {
        audience.tell(Event::BestDamaged { checkpoint, reason: &reason });
    }
}

/// Whether a run has no checkpoint of a step that is written to its end, as far as can be told.
fn is_lost(run_dir: &Path, step: u64) -> bool {
    Reader::open(&checkpoint::path_of(run_dir, step)).is_err_and(|error| !error.is_of_the_look())
}

fn entry(best: Best) -> BestCheckpoint {
    let path = checkpoint::path_of(Path::new(""), best.step);
    debug_assert!(path.starts_with(dir::CHECKPOINTS));
    // as on every system
    let path = path.iter().map(|part| part.to_string_lossy()).collect::<Vec<_>>().join("/");
    BestCheckpoint { step: best.step, val_loss: best.val_loss, path }
}
