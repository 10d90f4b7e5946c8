//! Writing a checkpoint.

use super::super::digest::{FileDigest, HashedFile};
use super::super::error::{Context, RunError};
use super::super::files::NewDir;
use super::super::tensors::{TensorWriter, stored_range, stored_shape};
use super::super::{fault, hf_config};
use super::state::{self, CheckpointState};
use super::{CONFIG, MODEL, OPTIMIZER, file_of, path_of, tensor_name};
use crate::engine::State;
use crate::model::{Dims, ParamLayout};
use std::path::{Path, PathBuf};

/// A checkpoint whose buffers are all at hand.
#[derive(Debug)]
pub struct CheckpointData<'a> {
    /// The model.
    pub dims: &'a Dims,
    /// The layout of the buffers.
    pub layout: &'a ParamLayout,
    /// Parameters, `layout.len` elements.
    pub parameters: &'a [f32],
    /// AdamW's first moment, likewise.
    pub first: &'a [f32],
    /// AdamW's second moment, likewise.
    pub second: &'a [f32],
    /// Everything else.
    pub state: CheckpointState,
}

/// Writes a checkpoint into a run directory and returns its path. See [`Writer`].
pub fn write(run_dir: &Path, data: &CheckpointData) -> Result<PathBuf, RunError> {
    let mut writer = Writer::begin(run_dir, data.dims, data.layout, data.state.clone())?;
    writer.put(State::Parameters, data.parameters)?;
    writer.put(State::FirstMoment, data.first)?;
    writer.put(State::SecondMoment, data.second)?;
    writer.finish()
}

/// A checkpoint being written, one buffer at a time, so that a caller needs no more than one of them in memory.
///
/// It has no name until [`finish`](Writer::finish); dropped before, it leaves nothing. Only for the holder of the
/// run's lock.
///
/// Fault points: `checkpoint.mid_model`, `.after_model`, `.mid_optimizer`, `.after_optimizer`, `.before_rename`,
/// `.mid_replace`, `.after_rename`.
#[derive(Debug)]
pub struct Writer<'a> {
    dir: NewDir,
    target: PathBuf,
    dims: &'a Dims,
    layout: &'a ParamLayout,
    state: CheckpointState,
    next: State,
    optimizer: Option<TensorWriter>,
}

impl<'a> Writer<'a> {
    /// Begins the checkpoint of `state.step`.
    pub fn begin(
        run_dir: &Path,
        dims: &'a Dims,
        layout: &'a ParamLayout,
        mut state: CheckpointState,
    ) -> Result<Self, RunError> {
        state.format_version = state::FORMAT_VERSION;
        state.files.clear();
        let target = path_of(run_dir, state.step);
        let dir = NewDir::create(&target)?;
        let mut writer = Self { dir, target, dims, layout, state, next: State::Parameters, optimizer: None };
        let config = writer.write_small(CONFIG, &hf_config::to_json(dims))?;
        writer.state.files.insert(CONFIG.to_owned(), config);
        Ok(writer)
    }

    /// Writes one flat buffer of `layout.len` elements: the parameters, then the first moment, then the second.
    ///
    /// Panics if it is another one's turn or the length is wrong.
    pub fn put(&mut self, state: State, values: &[f32]) -> Result<(), RunError> {
        assert_eq!(state, self.next, "buffers of a checkpoint come in a fixed order");
        assert_eq!(values.len(), self.layout.len, "a buffer has the layout's length");
        let mut file = match self.optimizer.take() {
            Some(file) => file,
            None => {
                let states: &[State] = match state {
                    State::Parameters => &[State::Parameters],
                    _ => &[State::FirstMoment, State::SecondMoment],
                };
                let tensors = states.iter().flat_map(|&state| {
                    self.layout.tensors.iter().map(move |t| (tensor_name(state, &t.name), t))
                });
                let shapes = tensors.map(|(name, t)| (name, stored_shape(self.dims, t))).collect();
                TensorWriter::create(&self.dir.path().join(file_of(state)), shapes)?
            }
        };
        let moments = match state {
            State::Parameters => ["mid_model", "after_model"],
            _ => ["mid_optimizer", "after_optimizer"],
        };
        for tensor in &self.layout.tensors {
            self.fault(moments[0])?;
            file.put(&values[stored_range(self.dims, tensor)])?;
        }
        self.next = match state {
            State::Parameters => State::FirstMoment,
            State::FirstMoment => {
                self.optimizer = Some(file);
                self.next = State::SecondMoment;
                return Ok(());
            }
            // Nothing comes after the second moment: gradients are zero between steps.
            _ => State::Gradients,
        };
        self.state.files.insert(file_of(state).to_owned(), file.finish()?);
        self.fault(moments[1])
    }

    /// Writes the state, makes everything durable and gives the checkpoint its name, replacing one of the same step.
    ///
    /// Panics unless all three buffers have been [`put`](Writer::put).
    pub fn finish(self) -> Result<PathBuf, RunError> {
        assert_eq!(self.next, State::Gradients, "a checkpoint has three buffers");
        debug_assert!([CONFIG, MODEL, OPTIMIZER].iter().all(|name| self.state.files.contains_key(*name)));
        self.write_small(state::FILE, &self.state.to_json())?;
        self.dir.publish("checkpoint")?;
        Ok(self.target)
    }

    fn write_small(&self, name: &str, text: &str) -> Result<FileDigest, RunError> {
        let path = self.dir.path().join(name);
        let write = || {
            let mut file = HashedFile::create(&path)?;
            file.write(text.as_bytes())?;
            file.finish()
        };
        write().context("write", &path)
    }

    fn fault(&self, moment: &str) -> Result<(), RunError> {
        fault::point("checkpoint", moment).context("write", &self.target)
    }
}
