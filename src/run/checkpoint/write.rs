//! Writing a checkpoint.

use super::super::digest::{FileDigest, HashedFile};
use super::super::dir::CHECKPOINTS;
use super::super::error::{Context, RunError};
use super::super::files::NewDir;
use super::super::tensors::{TensorWriter, stored_len, stored_shape};
use super::super::{fault, hf_config};
use super::state::{self, CheckpointState};
use super::{CONFIG, MODEL, OPTIMIZER, file_of, name_of, tensor_name, tensors};
use crate::engine::State;
use crate::model::{Dims, ParamLayout, Tensor};
use crate::regular::OpenDir;
use std::path::{Path, PathBuf};

/// A checkpoint whose buffers are all at hand.
#[derive(Debug)]
pub struct CheckpointData<'a> {
    /// The model.
    pub dims: &'a Dims,
    /// The layout of the buffers.
    pub layout: &'a ParamLayout,
    /// Buffers as `Engine::read` gives them: parameters, then the optimizer's states in the rule's order.
    pub buffers: &'a [(State, &'a [f32])],
    /// Everything else.
    pub state: CheckpointState,
}

/// Writes a checkpoint into a run directory and returns its path. See [`Writer`].
pub fn write(run_dir: &Path, data: &CheckpointData) -> Result<PathBuf, RunError> {
    let run = OpenDir::open(run_dir).context("open", run_dir)?;
    let states = data.buffers.iter().map(|(which, _)| *which).collect();
    let mut writer = Writer::begin(&run, data.dims, data.layout, states, data.state.clone(), &[])?;
    for (which, values) in data.buffers {
        writer.put(*which, values)?;
    }
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
    /// The buffers that are still to come, the next one last.
    remaining: Vec<State>,
    /// The file that is being written.
    open: Option<TensorWriter>,
}

impl<'a> Writer<'a> {
    /// Begins the checkpoint of `state.step`, with these buffers in this order: parameters, then the
    /// optimizer's states. `companions` are small files that go with the model, by name.
    ///
    /// Panics if other buffers are to be written, or these in another order.
    pub fn begin(
        run: &OpenDir,
        dims: &'a Dims,
        layout: &'a ParamLayout,
        mut buffers: Vec<State>,
        mut state: CheckpointState,
        companions: &[(&'static str, String)],
    ) -> Result<Self, RunError> {
        let [State::Parameters, states @ ..] = &buffers[..] else {
            panic!("a checkpoint begins with the parameters")
        };
        let are_states = states.iter().all(|state| matches!(state, State::Optimizer(_)));
        assert!(are_states, "parameters are followed by optimizer states, not by {states:?}");
        state.format_version = state::FORMAT_VERSION;
        state.files.clear();
        let above = run.join(CHECKPOINTS);
        // none above that: what was moved away must not come into being again
        if run.make(CHECKPOINTS).context("create", &above)? {
            run.sync().context("sync", run.path())?;
        }
        let checkpoints = run.own(CHECKPOINTS).context("use", &above)?;
        let name = name_of(state.step);
        let target = checkpoints.join(&name);
        let dir = NewDir::create(checkpoints, &name)?;
        buffers.reverse();
        let mut writer = Self { dir, target, dims, layout, state, remaining: buffers, open: None };
        let config = writer.write_small(CONFIG, &hf_config::to_json(dims))?;
        writer.state.files.insert(CONFIG.to_owned(), config);
        for (name, text) in companions {
            let digest = writer.write_small(name, text)?;
            writer.state.files.insert((*name).to_owned(), digest);
        }
        Ok(writer)
    }

    /// Writes one buffer, with its elements as `Engine::read` gives them.
    ///
    /// Panics if it is another one's turn or the length is wrong.
    pub fn put(&mut self, state: State, values: &[f32]) -> Result<(), RunError> {
        assert_eq!(Some(&state), self.remaining.last(), "buffers of a checkpoint come in a fixed order");
        assert_eq!(values.len(), state.len_in(self.layout), "a buffer has what its state covers");
        let name = file_of(state);
        let mut file = match self.open.take() {
            Some(file) => file,
            None => self.create(name)?,
        };
        let moments = match name {
            MODEL => ["mid_model", "after_model"],
            _ => ["mid_optimizer", "after_optimizer"],
        };
        for (tensor, place) in tensors(state, self.layout) {
            self.fault(moments[0])?;
            file.put(&values[place..][..stored_len(self.dims, tensor)])?;
        }
        self.remaining.pop();
        if self.remaining.last().is_some_and(|next| file_of(*next) == name) {
            self.open = Some(file);
            return Ok(());
        }
        self.state.files.insert(name.to_owned(), file.finish()?);
        self.fault(moments[1])
    }

    /// A file for all the remaining buffers that go there.
    fn create(&self, name: &str) -> Result<TensorWriter, RunError> {
        let states = self.remaining.iter().rev().filter(|state| file_of(**state) == name);
        let shapes = states.flat_map(|&state| {
            let shape =
                move |(t, _): (&Tensor, usize)| (tensor_name(state, &t.name), stored_shape(self.dims, t));
            tensors(state, self.layout).into_iter().map(shape)
        });
        TensorWriter::create(self.dir.dir(), name, shapes.collect())
    }

    /// Writes the state, makes everything durable and gives the checkpoint its name, replacing one of the same step.
    ///
    /// Panics unless all buffers have been [`put`](Writer::put).
    pub fn finish(mut self) -> Result<PathBuf, RunError> {
        assert!(self.remaining.is_empty(), "{:?} are not in the checkpoint", self.remaining);
        if !self.state.files.contains_key(OPTIMIZER) {
            // an optimizer without states
            let digest = self.create(OPTIMIZER)?.finish()?;
            self.state.files.insert(OPTIMIZER.to_owned(), digest);
        }
        debug_assert!([CONFIG, MODEL].iter().all(|name| self.state.files.contains_key(*name)));
        self.write_small(state::FILE, &self.state.to_json())?;
        self.dir.publish("checkpoint")?;
        Ok(self.target)
    }

    fn write_small(&self, name: &str, text: &str) -> Result<FileDigest, RunError> {
        let dir = self.dir.dir();
        let write = || {
            let mut file = HashedFile::new(dir.create_file(name)?);
            file.write(text.as_bytes())?;
            file.finish()
        };
        write().context("write", &dir.join(name))
    }

    fn fault(&self, moment: &str) -> Result<(), RunError> {
        fault::point("checkpoint", moment).context("write", &self.target)
    }
}
