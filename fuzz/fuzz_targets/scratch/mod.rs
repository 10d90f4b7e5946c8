//! Files for what reads files: in a directory of this process, best put on a file system in memory by `TMPDIR`.

use std::path::{Path, PathBuf};
use std::sync::OnceLock;

/// The directory of this process.
pub fn dir() -> &'static Path {
    static DIR: OnceLock<PathBuf> = OnceLock::new();
    DIR.get_or_init(|| {
        let dir = std::env::temp_dir().join(format!("runner-fuzz-{}", std::process::id()));
        std::fs::create_dir_all(&dir).expect("a directory for temporary files");
        dir
    })
}

/// Writes a file there and returns its path.
pub fn write(name: &str, bytes: &[u8]) -> PathBuf {
    let path = dir().join(name);
    std::fs::write(&path, bytes).expect("a temporary file");
    path
}
