//! A directory of this process for temporary files, best put on a file system in memory by `TMPDIR`, and the readers,
//! which the tests of the main build call too.

use std::path::{Path, PathBuf};
use std::sync::OnceLock;

#[allow(dead_code, reason = "a target calls one of them")]
#[path = "../../../tests/untrusted/readers.rs"]
pub(crate) mod readers;

/// The directory of this process.
pub(crate) fn dir() -> &'static Path {
    static DIR: OnceLock<PathBuf> = OnceLock::new();
    DIR.get_or_init(|| {
        let dir = std::env::temp_dir().join(format!("runner-fuzz-{}", std::process::id()));
        std::fs::create_dir_all(&dir).expect("a directory for temporary files");
        dir
    })
}
