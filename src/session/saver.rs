//! Checkpoints of a training run: from a copy while training goes on, or between two steps where the copy does not
//! fit.

use super::audience::{Audience, Event};
use super::best::BestKept;
use crate::data::Tokenizer;
use crate::engine::{Engine, EngineError, State};
use crate::model::Dims;
use crate::plan::hardware::Hardware;
use crate::regular::OpenDir;
use crate::run::checkpoint::{self, Background, CheckpointState, Snapshot, Writer};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Writes the checkpoints of one run, at most one at a time.
pub(super) struct Saver<'a> {
    audience: &'a dyn Audience,
    run: Arc<OpenDir>,
    dims: Dims,
    tokenizer: Tokenizer,
    keep: usize,
    /// What is kept besides.
    pub(super) best: BestKept,
    /// Bytes of a copy; 0 if none is to be made.
    snapshot_bytes: usize,
    /// Whether it was said that a copy does not fit.
    told: bool,
    /// The checkpoint that is being written, and its step.
    pending: Option<(u64, Background)>,
    /// The step of the last checkpoint that this session has on the disk, and what it took to write.
    last: Option<(u64, Duration)>,
}

impl<'a> Saver<'a> {
    /// For a run directory whose lock the caller holds for longer than this.
    pub(super) fn new(
        audience: &'a dyn Audience,
        run: Arc<OpenDir>,
        dims: Dims,
        tokenizer: Tokenizer,
        keep: usize,
        snapshot_bytes: usize,
        best: BestKept,
    ) -> Self {
        Self {
            audience,
            run,
            dims,
            tokenizer,
            keep,
            best,
            snapshot_bytes,
            told: false,
            pending: None,
            last: None,
        }
    }

    /// Saves, or begins to. Waits for the checkpoint before, which would otherwise not be older than this one.
    pub(super) fn save(&mut self, engine: &mut dyn Engine, state: CheckpointState) -> anyhow::Result<()> {
        self.wait()?;
        let step = state.step;
        let (layout, states) = (engine.layout().clone(), engine.saved_states());
        let companions = self.tokenizer.companions(self.dims.vocab_size, self.dims.block_size);
        if self.snapshot_fits() {
            let copy = |which: State| Ok((which, engine.read(which)?.into_owned()));
            let buffers = states.into_iter().map(copy).collect::<Result<_, EngineError>>()?;
            let snapshot = Snapshot { dims: self.dims, layout, buffers, state, companions };
            let writing = Background::begin(Arc::clone(&self.run), snapshot, self.keep, self.best.steps());
            self.pending = Some((step, writing));
            return Ok(());
        }
        let start = Instant::now();
        let mut writer = Writer::begin(&self.run, &self.dims, &layout, states.clone(), state, &companions)?;
        for which in states {
            writer.put(which, &engine.read(which)?)?;
        }
        let written = writer.finish()?;
        checkpoint::rotate(&self.run, self.keep, &self.best.steps(), Some(&written))?;
        self.saved(step, start.elapsed());
        Ok(())
    }

    /// Deletes what is to be kept no longer. Not while a checkpoint is being written, which does the same at its end.
    pub(super) fn rotate(&self) -> anyhow::Result<()> {
        checkpoint::rotate(&self.run, self.keep, &self.best.steps(), None)?;
        Ok(())
    }

    /// Whether a checkpoint is being written.
    pub(super) fn is_writing(&self) -> bool {
        self.pending.is_some()
    }

    /// Whether there is memory for a copy now, with a tenth to spare for what others may want meanwhile.
    fn snapshot_fits(&mut self) -> bool {
        let (needed, free) = (self.snapshot_bytes, Hardware::detect().free_memory);
        let fits = needed > 0 && needed + needed / 10 <= free;
        if !fits && needed > 0 && !self.told {
            self.told = true;
            self.audience.tell(Event::CopyDoesNotFit { needed, free });
        }
        fits
    }

    /// Reports a failed checkpoint as soon as it is known; does not wait for one that is still being written.
    pub(super) fn poll(&mut self) -> anyhow::Result<()> {
        if self.pending.as_ref().is_some_and(|(_, writing)| writing.is_over()) { self.wait() } else { Ok(()) }
    }

    /// Waits until everything that was saved is on the disk.
    pub(super) fn wait(&mut self) -> anyhow::Result<()> {
        if let Some((step, writing)) = self.pending.take() {
            let took = writing.end()?;
            self.saved(step, took);
        }
        Ok(())
    }

    /// A checkpoint is on the disk.
    fn saved(&mut self, step: u64, took: Duration) {
        self.last = Some((step, took));
        let checkpoint = checkpoint::path_of(self.run.path(), step);
        self.audience.tell(Event::Saved { step, checkpoint: &checkpoint, took });
    }

    /// The step of the last checkpoint that this session has on the disk, and the time that it took to write.
    pub(super) fn last(&self) -> Option<(u64, Duration)> {
        self.last
    }
}
