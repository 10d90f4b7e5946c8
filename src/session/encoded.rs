//! The place of encoded texts and of the remembered digests of files.

use super::machine;
use crate::regular;
use rustix::fs::{Access, access};
use rustix::process::geteuid;
use std::io::ErrorKind;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// Where encoded texts and checksums of files are kept: for all runs of a directory, or below the user's cache where
/// another user's would be believed or none can be written.
#[must_use]
pub fn cache_dir(runs_dir: &Path) -> PathBuf {
    let usual = runs_dir.join(".cache");
    let may_write = |dir: &Path| access(dir, Access::WRITE_OK | Access::EXEC_OK).is_ok();
    let is_usable = match regular::followed(&usual, runs_dir) {
        Ok(dir) => {
            dir.metadata().is_ok_and(|found| found.is_dir() && found.uid() == geteuid().as_raw())
                && may_write(&dir)
        }
        Err(error) => {
            let is_missing = error.kind() == ErrorKind::NotFound && !usual.is_symlink();
            is_missing && (!runs_dir.exists() || may_write(runs_dir))
        }
    };
    match machine::cache_dir().filter(|_| !is_usable) {
        Some(own) => own.join("texts"),
        None => usual,
    }
}
