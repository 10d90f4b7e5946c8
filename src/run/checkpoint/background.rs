//! Writing a checkpoint while training goes on.
//!
//! Parameters and optimizer states are copied between two steps, which takes a small part of a step; hashing,
//! writing and syncing them, a thread of its own does. It writes as the foreground would ([`Writer`]): nothing
//! has the checkpoint's name before it is whole and synced, and older checkpoints go after that. Each copy is
//! given back once it is written.

use super::{CheckpointState, Writer, rotate};
use crate::engine::State;
use crate::model::{Dims, ParamLayout};
use crate::regular::OpenDir;
use crate::run::RunError;
use crate::run::error::Context;
use crate::run::fault;
use std::io;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

/// Copies of everything that a checkpoint holds.
#[derive(Debug)]
pub struct Snapshot {
    /// The model.
    pub dims: Dims,
    /// The layout of the buffers.
    pub layout: ParamLayout,
    /// Buffers as `Engine::read` gives them, in the order of `Engine::saved_states`.
    pub buffers: Vec<(State, Vec<f32>)>,
    /// Everything else.
    pub state: CheckpointState,
    /// Small files that go with the model, by name.
    pub companions: Vec<(&'static str, String)>,
}

/// A checkpoint being written by a thread. Dropped, it is waited for: the holder of the run's lock must outlive it.
#[derive(Debug)]
pub struct Background {
    target: PathBuf,
    writing: Option<Writing>,
}

/// How long it takes to write a checkpoint, or what keeps it from being written.
type Written = Result<Duration, RunError>;

#[derive(Debug)]
enum Writing {
    Thread(JoinHandle<Written>),
    /// It was written at once.
    Over(Written),
}

impl Background {
    /// Starts to write a snapshot into a run directory, and then to [`rotate`] its checkpoints with `keep` and
    /// `besides`. Only for the holder of the run's lock, and one at a time. Where the system starts no thread, it is
    /// written before this returns.
    ///
    /// Fault point: `checkpoint.thread`.
    pub fn begin(run: Arc<OpenDir>, snapshot: Snapshot, keep: usize, besides: Vec<u64>) -> Self {
        let target = super::path_of(run.path(), snapshot.state.step);
        let work = Arc::new(Mutex::new(Some((run, snapshot, besides))));
        let of_thread = Arc::clone(&work);
        let write = move |work: &Mutex<Option<_>>| {
            let work = work.lock().unwrap_or_else(PoisonError::into_inner).take();
            work.map_or(Ok(Duration::ZERO), |(run, snapshot, besides)| timed(run, snapshot, keep, besides))
        };
        let thread = fault::point("checkpoint", "thread").and_then(|()| {
            thread::Builder::new().name("checkpoint".to_owned()).spawn(move || write(&of_thread))
        });
        let writing = thread.map_or_else(|_| Writing::Over(write(&work)), Writing::Thread);
        Self { target, writing: Some(writing) }
    }

    /// Whether it is written or has failed: [`end`](Self::end) would not wait.
    pub fn is_over(&self) -> bool {
        match &self.writing {
            Some(Writing::Thread(thread)) => thread.is_finished(),
            Some(Writing::Over(_)) | None => true,
        }
    }

    /// Waits for the end. Returns the time that it took to write. Errors: what kept the checkpoint from being written;
    /// none of it has its name then.
    pub fn end(mut self) -> Written {
        let panicked = || io::Error::other("the thread that wrote it panicked");
        match self.writing.take() {
            Some(Writing::Thread(thread)) => {
                thread.join().map_err(|_| panicked()).context("write", &self.target)?
            }
            Some(Writing::Over(written)) => written,
            None => Ok(Duration::ZERO),
        }
    }
}

impl Drop for Background {
    fn drop(&mut self) {
        if let Some(Writing::Thread(thread)) = self.writing.take() {
            // Only where another error is on its way already.
            let _ = thread.join();
        }
    }
}

fn timed(run: Arc<OpenDir>, snapshot: Snapshot, keep: usize, besides: Vec<u64>) -> Written {
    let start = Instant::now();
    // a busy machine may let a thread wait while somebody moves the run away
    if !run.is_in_place().context("read", run.path())? {
        return Err(RunError::Gone { path: run.path().to_owned() });
    }
    write(&run, snapshot, keep, &besides).map(|()| start.elapsed())
}

fn write(run: &OpenDir, snapshot: Snapshot, keep: usize, besides: &[u64]) -> Result<(), RunError> {
    let Snapshot { dims, layout, buffers, state, companions } = snapshot;
    let states = buffers.iter().map(|(which, _)| *which).collect();
    let mut writer = Writer::begin(run, &dims, &layout, states, state, &companions)?;
    for (which, values) in buffers {
        writer.put(which, &values)?;
    }
    let written = writer.finish()?;
    rotate(run, keep, besides, Some(&written)).map(drop)
}
