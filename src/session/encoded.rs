//! The place of encoded texts and of the remembered digests of files.

use super::machine;
use crate::data::Cache;
use std::path::Path;

/// Where encoded texts and checksums of files are kept: for all runs of a directory, or below the user's cache where
/// another user's would be believed or none can be written.
#[must_use]
pub fn cache(runs_dir: &Path) -> Cache {
    Cache::new(runs_dir.join(".cache"), machine::own_cache_dir().map(|own| own.join("texts")))
}
