//! `--target`: values that runs are to reach.

use super::unknown;
use crate::report::metrics::{self, metrics};
use crate::report::target::{Target, parse};
use crate::session::UsageError;
use std::path::PathBuf;

/// The targets that the arguments spell, each once.
pub(super) fn targets(texts: &[String], paths: &[PathBuf]) -> anyhow::Result<Vec<Target>> {
    let mut targets: Vec<Target> = Vec::new();
    for text in texts {
        let (name, value) = parse(text).map_err(UsageError)?;
        let metric = match metrics::find(name) {
            Some(metric) => Some(metric.clone()),
            None => metrics::further(paths, name),
        };
        let known = || metrics().iter().map(|metric| metric.name.as_str());
        let metric = metric.ok_or_else(|| unknown(name, known()))?;
        let target = Target::new(paths, &metric, value).map_err(UsageError)?;
        if !targets.contains(&target) {
            targets.push(target);
        }
    }
    Ok(targets)
}
