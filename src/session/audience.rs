//! What a session tells its listener: a terminal, a test, another program.

use super::ending::End;
use super::pulse::Pulse;
use super::standing::Standing;
use crate::cuda::CudaMissing;
use crate::data::vocabulary::Discrepant;
use crate::data::{self, NoProgress};
use crate::plan::Plan;
use crate::plan::lints::Lint;
use crate::plan::predict::Prediction;
use crate::run::RunError;
use crate::run::checkpoint::Rejected;
use crate::run::columns::TrainRow;
use crate::run::record::ReachedTarget;
use crate::train::{Best, StepReport};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

/// Listens to a session. Of several ranks only rank 0 tells what becomes of the run; every launched rank tells what it
/// prepares: a CUDA device that is passed over, processes that it turns away, long passes over data.
pub trait Audience {
    /// Something has happened.
    fn tell(&self, event: Event);

    /// The directory of the run that a recipe stands for: the result of a call, once for each recipe that has a run.
    ///
    /// # Errors
    /// Where the result cannot be handed on; the call ends with this error.
    fn result(&self, run: &Path) -> anyhow::Result<()>;

    /// Told about long passes over data before training begins.
    fn progress(&self) -> &dyn data::Progress {
        &NoProgress
    }
}

/// Tells of damaged checkpoints that are passed over.
pub(super) fn of_damage(audience: &dyn Audience) -> impl FnMut(&Rejected) {
    move |Rejected { path: checkpoint, reason }| audience.tell(Event::Damaged { checkpoint, reason })
}

/// What happens in a session, in about this order.
#[derive(Debug)]
pub enum Event<'a> {
    /// `compute.device = "auto"` has chosen the CPU although the machine has a CUDA device, for this reason.
    CudaPassedOver(&'a CudaMissing),
    /// Ranks that are processes cannot meet as they should: a process that cannot take part was turned away, or
    /// something else than rank 0 answers. A sentence; the ranks go on waiting for each other.
    TurnedAway(&'a str),
    /// Files of tokens are not those of the finished set beside them: some are read as well, or are gone.
    Discrepant(&'a Discrepant),
    /// The run needs no training: all its steps were taken before, or it has reached its target.
    AlreadyFinished {
        /// The run's directory.
        run: &'a Path,
        /// Whether the recipe was given, which may start over, and not the run itself.
        by_recipe: bool,
        /// The evaluation that ended the run before its last step, the steps that it took and was to take.
        reached: Option<(ReachedTarget, u64, u64)>,
    },
    /// The run's directory is another user's, neither this process's nor root's: its figures are what that user says.
    OfAnother {
        /// The run's directory.
        run: &'a Path,
        /// The number of the user.
        user: u32,
    },
    /// The directory of runs, which nobody has named, is another user's.
    RunsOfAnother {
        /// The directory.
        path: &'a Path,
        /// The number of the user.
        user: u32,
    },
    /// A recipe that the program carries names data that nobody has placed and finds those of another user.
    DataOfAnother {
        /// The directory or file.
        path: &'a Path,
        /// The number of the user.
        user: u32,
    },
    /// The run has finished before, and was not scored on tasks that its recipe names now.
    NotScored {
        /// The run's directory.
        run: &'a Path,
        /// The names of the tasks.
        tasks: &'a [&'a str],
    },
    /// The run is not trained: its recipe has diverged before.
    AlreadyDiverged {
        /// The run's directory.
        run: &'a Path,
        /// What its record says about it.
        error: &'a str,
    },
    /// A checkpoint is damaged and will not be used.
    Damaged {
        /// The checkpoint's directory.
        checkpoint: &'a Path,
        /// What is wrong with it.
        reason: &'a RunError,
    },
    /// The checkpoint of the best evaluation is lost or damaged. It stays where it is, and the best one, until an
    /// evaluation is better.
    BestDamaged {
        /// The checkpoint's directory.
        checkpoint: &'a Path,
        /// What is wrong with it.
        reason: &'a RunError,
    },
    /// The run keeps its best checkpoint no longer, for its recipe says so now: the next checkpoints take its place.
    BestCeased {
        /// The checkpoint's directory.
        checkpoint: &'a Path,
    },
    /// A damaged checkpoint was renamed, because an older one is intact and will be used.
    SetAside {
        /// Its new path.
        aside: &'a Path,
        /// The checkpoint that is used instead.
        instead: &'a Path,
    },
    /// Everything is settled, and a run is about to be trained.
    Planned {
        /// The run's directory.
        run: &'a Path,
        /// Optimizer steps taken before.
        step: u64,
        /// What will be done.
        plan: &'a Plan,
        /// How long the whole run is expected to take, where that can be told.
        prediction: Option<&'a Prediction>,
        /// What may be unwise about it.
        lints: &'a [Lint],
    },
    /// What a new run begins from, where that is more than random weights: a sentence.
    Begins(&'a str),
    /// A call that only rehearses would train a run now.
    Rehearsed {
        /// The run's directory.
        run: &'a Path,
        /// Optimizer steps taken before.
        step: u64,
        /// Optimizer steps of the run.
        steps: u64,
        /// The evaluation that has reached the target before, so that the run would end without another step.
        reached: Option<Best>,
        /// The checkpoint that it would go on from.
        checkpoint: Option<&'a Path>,
        /// How the run stands that would be discarded first.
        discarded: Option<&'a Standing>,
    },
    /// A run's `recipe.toml` was not the recipe that the run is trained by, and has been written again.
    RecipeRestored {
        /// The file.
        recipe: &'a Path,
    },
    /// Sums are rounded in another way than where a run began, or on other ranks. A sentence.
    OtherRounding(&'a str),
    /// A log or the recipe was removed from a run while it trains, and has been written again.
    Rewritten {
        /// The file.
        file: &'a Path,
    },
    /// The event file that `log.tensorboard` asks for could not be written. Training goes on, and so do the attempts to
    /// write it.
    NotExported(&'a RunError),
    /// The first step follows.
    Started {
        /// Where the run is at any moment from now on, for threads that look while it works.
        pulse: &'a Arc<Pulse>,
    },
    /// A forward and backward pass was done.
    MicroStep,
    /// An optimizer step was done.
    Step {
        /// What it was like.
        report: &'a StepReport,
        /// Optimizer steps taken, of [`steps`](Self::Step::steps).
        step: u64,
        /// Optimizer steps of the run.
        steps: u64,
        /// Its row in `train.csv`.
        row: &'a TrainRow,
    },
    /// The watchdog has left a step's update out.
    Skipped {
        /// The step, from 0.
        step: u64,
        /// What stood out.
        why: &'a str,
    },
    /// The validation loss was computed.
    Evaluated {
        /// Optimizer steps taken.
        step: u64,
        /// Optimizer steps of the run.
        steps: u64,
        /// Tokens trained on.
        tokens: u64,
        /// Nats per token, of the set that decides what is best.
        val_loss: f64,
        /// What was measured besides, by the names of the columns of `val.csv`.
        also: &'a [(String, f64)],
    },
    /// The model has generated a text.
    Sampled {
        /// Optimizer steps taken.
        step: u64,
        /// The text, with its prompt.
        text: &'a str,
        /// Whether it is the run's last one.
        is_last: bool,
    },
    /// A copy of the training state does not fit in memory, so training waits while a checkpoint is written.
    CopyDoesNotFit {
        /// Bytes of the copy.
        needed: usize,
        /// Bytes that are free.
        free: usize,
    },
    /// A checkpoint is on the disk.
    Saved {
        /// Optimizer steps taken.
        step: u64,
        /// Its directory.
        checkpoint: &'a Path,
        /// How long it was written, beside training where a copy of the state fits in memory.
        took: Duration,
    },
    /// A checkpoint that was asked for is on the disk.
    SavedAsAsked {
        /// Its step.
        step: u64,
    },
    /// A run has ended, in one way or another; nothing more is said about it.
    Ended(&'a End<'a>),
    /// Something failed, and the call goes on, or ends for another reason.
    Failed(&'a anyhow::Error),
    /// A rank that is a thread of this process hangs. A thread cannot be ended and the session has to wait for it, so
    /// a listener that owns the process should end it now.
    Hung(&'a anyhow::Error),
}

/// An audience that listens to nothing.
#[derive(Debug, Clone, Copy, Default)]
pub struct Silence;

impl Audience for Silence {
    fn tell(&self, _event: Event) {}

    fn result(&self, _run: &Path) -> anyhow::Result<()> {
        Ok(())
    }
}
