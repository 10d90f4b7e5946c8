//! Whether a run could be begun or gone on with in a directory, found out without writing anything.

use super::dir::{CHECKPOINTS, RECIPE, SAMPLES, TRAIN_CSV, VAL_CSV};
use super::error::Context;
use super::{RunError, lock, samples};
use crate::regular::{self, OFlags, OpenDir};
use std::io::{self, ErrorKind};
use std::path::Path;

/// Checks what [`create_or_open`](super::RunDir::create_or_open) would stumble over. The directory; `None` for nothing
/// at `path`.
///
/// Errors: [`RunError::Io`] names the file; those of [`lock::check_may_take`].
pub fn check_directory(path: &Path, runs_dir: &Path) -> Result<Option<OpenDir>, RunError> {
    let dir = match regular::open_followed(path, runs_dir) {
        Err(error) if error.kind() == ErrorKind::NotFound && !path.is_symlink() => return Ok(None),
        dir => dir.context("begin a run in", path)?,
    };
    if path.is_symlink() && !dir.has(RECIPE) {
        regular::refuse_link(path).context("begin a run in", path)?;
    }
    lock::check_may_take(&dir)?;
    if dir.has(CHECKPOINTS) {
        dir.own(CHECKPOINTS).context("use", &dir.join(CHECKPOINTS))?;
    }
    Ok(Some(dir))
}

/// Checks what a run that goes on would stumble over: links, pipes and directories in the place of its files, what may
/// not be written, and samples that no run has written.
///
/// Errors: [`RunError::Io`] and [`RunError::Log`] name the file.
pub fn check_files(dir: &OpenDir) -> Result<(), RunError> {
    for name in [TRAIN_CSV, VAL_CSV, SAMPLES].into_iter().filter(|name| dir.has(name)) {
        dir.open_file(name, OFlags::RDWR).context("open", &dir.join(name))?;
    }
    let checkpoints = dir.has(CHECKPOINTS).then(|| dir.own(CHECKPOINTS)).transpose();
    let checkpoints = checkpoints.context("use", &dir.join(CHECKPOINTS))?;
    if let Some(closed) = checkpoints.iter().chain([dir]).find(|dir| !dir.may_write()) {
        return Err(io::Error::from(ErrorKind::PermissionDenied)).context("write into", closed.path());
    }
    if dir.has(RECIPE) {
        // which may be a link
        regular::open(&dir.join(RECIPE)).context("read", &dir.join(RECIPE))?;
    }
    samples::read(dir).map(drop)
}
