//! Reading a checkpoint back.

use super::super::digest::{self, FileDigest};
use super::super::error::{Context, RunError};
use super::super::fault;
use super::super::tensors::{Found, TensorFile, stored_len, unfit};
use super::state::{self, CheckpointState};
use super::{CONFIG, MODEL, OPTIMIZER, file_of, of_weights, run_of, stated_step, tensor_name, tensors};
use crate::engine::State;
use crate::model::{Dims, ParamLayout};
use crate::regular;
use std::collections::BTreeMap;
use std::fs::{File, Metadata};
use std::io::Seek;
use std::path::{Path, PathBuf};

/// A checkpoint open for reading. Each file is checked against its digest before anything in it is used, through the
/// handle that is then read, so a rotation in the meantime does no harm; one that is written to meanwhile is refused.
#[derive(Debug)]
pub struct Reader {
    path: PathBuf,
    state: CheckpointState,
    /// Files that have been checked, by name, with what the system said of them before.
    intact: BTreeMap<String, (File, Metadata)>,
}

impl Reader {
    /// Reads a checkpoint's state and checks that its files are there in full length.
    ///
    /// Errors: those of [`CheckpointState::read`], [`RunError::Io`] naming a missing file, [`RunError::Corrupted`].
    pub fn open(checkpoint: &Path) -> Result<Self, RunError> {
        let state = CheckpointState::read(checkpoint)?;
        for name in [CONFIG, MODEL, OPTIMIZER] {
            if !state.files.contains_key(name) {
                return Err(RunError::malformed(checkpoint, format!("its state does not list {name}")));
            }
        }
        for (name, expected) in &state.files {
            let path = checkpoint.join(name);
            let found = std::fs::metadata(&path).context("read", &path)?.len();
            check(&path, &format!("{} bytes", expected.bytes), &format!("{found} bytes"))?;
        }
        Ok(Self { path: checkpoint.to_owned(), state, intact: BTreeMap::new() })
    }

    /// The checkpoint's directory.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Everything that is not a tensor.
    pub fn state(&self) -> &CheckpointState {
        &self.state
    }

    /// Checks every file against its digest.
    ///
    /// Errors: [`RunError::Corrupted`] naming the file and both digests; [`RunError::Io`].
    pub fn verify(&mut self) -> Result<(), RunError> {
        let names: Vec<_> = self.state.files.keys().cloned().collect();
        names.iter().try_for_each(|name| self.intact_file(name).map(drop))
    }

    /// Fills the buffer of a state, with elements as `Engine::write` takes them. Padding rows and gaps become zero, and
    /// so do gradients, which are zero between two steps. A file that is written to or touched meanwhile is checked and
    /// read again, a few times.
    ///
    /// Panics if the buffer has another length.
    ///
    /// Errors: [`RunError::Corrupted`]; [`RunError::Malformed`] naming a state of the optimizer that the
    /// checkpoint does not have; [`RunError::Tensors`] listing every missing, misshapen or unknown tensor.
    pub fn fill(
        &mut self,
        state: State,
        dims: &Dims,
        layout: &ParamLayout,
        out: &mut [f32],
    ) -> Result<(), RunError> {
        const ATTEMPTS: usize = 4;
        for _ in 1..ATTEMPTS {
            let file = self.read_into(state, dims, layout, out)?;
            if file.is_none_or(|file| file.check_unchanged().is_ok()) {
                return Ok(());
            }
            self.intact.remove(file_of(state));
        }
        self.read_into(state, dims, layout, out)?.map_or(Ok(()), |file| file.check_unchanged())
    }

    /// Reads what [`fill`](Self::fill) does, and returns the file that it was read from, if there is one.
    fn read_into(
        &mut self,
        state: State,
        dims: &Dims,
        layout: &ParamLayout,
        out: &mut [f32],
    ) -> Result<Option<TensorFile>, RunError> {
        assert_eq!(out.len(), state.len_in(layout), "a buffer has what its state covers");
        out.fill(0.0);
        if state == State::Gradients {
            return Ok(None);
        }
        let path = self.path.join(file_of(state));
        let (file, before) = self.intact_file(file_of(state))?;
        let mut file = TensorFile::new(&path, file.try_clone().context("open", &path)?, before.clone())?;
        let prefix = tensor_name(state, "");
        let names = file.names().filter_map(|name| name.strip_prefix(&prefix));
        let places = tensors(state, layout);
        let tensors: Vec<_> = places.iter().map(|(tensor, _)| *tensor).collect();
        if let State::Optimizer(state) = state
            && names.clone().next().is_none()
            && !tensors.is_empty()
        {
            let problem =
                format!("it has no `{}`, {} that the optimizer goes on from", state.name, state.label);
            return Err(RunError::malformed(&path, problem));
        }
        let info = |name: &str| {
            let place = file.info(&tensor_name(state, name))?;
            Some(Found { elements: &place.elements, shape: place.shape.clone() })
        };
        let problems = unfit(dims, &tensors, names, info, |_, _| false).all();
        if !problems.is_empty() {
            return Err(RunError::Tensors { path, problems });
        }
        for (tensor, place) in places {
            let name = tensor_name(state, &tensor.name);
            file.read(&name, 0, &mut out[place..][..stored_len(dims, tensor)])?;
        }
        Ok(Some(file))
    }

    fn intact_file(&mut self, name: &str) -> Result<&(File, Metadata), RunError> {
        if !self.intact.contains_key(name) {
            let file = intact_file(&self.path.join(name), &self.state.files[name])?;
            self.intact.insert(name.to_owned(), file);
        }
        Ok(&self.intact[name])
    }
}

/// Checks that the model which a checkpoint holds is the one that was saved: every file but the optimizer's, which a
/// model does without, against its digest. `path` is the checkpoint or its model; of weights from elsewhere there is
/// nothing to check.
///
/// Errors: [`RunError::Damaged`] naming what is wrong; those of [`CheckpointState::read`] that are no damage.
pub fn verify_model(path: &Path) -> Result<(), RunError> {
    let Some(checkpoint) = of_weights(path) else { return Ok(()) };
    let is_in_run = run_of(checkpoint).is_some();
    if !is_in_run && checkpoint.join(state::FILE).symlink_metadata().is_err() {
        return Ok(());
    }
    let verified = CheckpointState::read(checkpoint).and_then(|state| {
        if is_in_run {
            check_step(checkpoint, &state)?;
        }
        let mut model = state.files.iter().filter(|(name, _)| *name != OPTIMIZER);
        model.try_for_each(|(name, expected)| intact_file(&checkpoint.join(name), expected).map(drop))
    });
    // a run that trains may have removed it meanwhile
    let is_there = checkpoint.symlink_metadata().is_ok();
    verified.map_err(|reason| match is_there && reason.is_damage() {
        true => RunError::Damaged { checkpoint: checkpoint.to_owned(), reason: Box::new(reason) },
        false => reason,
    })
}

/// Opens a file that has the digest on record. Returns what the system said of it before, too.
fn intact_file(path: &Path, expected: &FileDigest) -> Result<(File, Metadata), RunError> {
    let mut file = regular::open(path).context("open", path)?;
    let before = regular::dated(&file, || file.metadata()).context("read", path)?;
    check(path, &format!("{} bytes", expected.bytes), &format!("{} bytes", before.len()))?;
    let found = fault::point("checkpoint", "read").and_then(|()| digest::of_weights(&file));
    let found = found.context("read", path)?;
    check(path, &spelled(expected), &spelled(&found))?;
    file.rewind().context("read", path)?;
    Ok((file, before))
}

/// Refuses the state of another step than the one that the directory's name states.
pub(super) fn check_step(checkpoint: &Path, state: &CheckpointState) -> Result<(), RunError> {
    match stated_step(checkpoint).filter(|step| *step != state.step) {
        None => Ok(()),
        Some(_) => Err(RunError::malformed(checkpoint, format!("its state is that of step {}", state.step))),
    }
}

fn spelled(digest: &FileDigest) -> String {
    format!("{} bytes with digest {}", digest.bytes, digest.blake3)
}

fn check(path: &Path, expected: &str, found: &str) -> Result<(), RunError> {
    if expected == found {
        return Ok(());
    }
    Err(RunError::Corrupted { path: path.to_owned(), expected: expected.to_owned(), found: found.to_owned() })
}
