//! Cutting a log back to a checkpoint: a resumed run takes the steps behind it again.

use super::digest::FileDigest;
use super::error::Context;
use super::files;
use super::records::Table;
use super::{RunError, seal};
use crate::regular::{self, OpenDir};
use std::path::Path;

/// What [`cut_back`] kept of a log.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Kept {
    /// Number of rows.
    pub rows: u64,
    /// `step` of the last row.
    pub last_step: Option<u64>,
    /// `elapsed_s` of the last row; 0 without rows or without the column.
    pub elapsed_s: f64,
}

/// Removes the rows of a run's log whose step is `first_step_to_drop` or later, and a torn last line. What stands
/// behind the part that has the digest `written` goes as well, whatever it says. The file is replaced atomically, and
/// not touched if it is as it should be. A missing file has no rows.
///
/// Errors: [`RunError::Malformed`] for a malformed row, unless the rows before it reach up to `first_step_to_drop`.
pub fn cut_back(
    run: &OpenDir,
    log: &str,
    first_step_to_drop: u64,
    written: Option<&FileDigest>,
) -> Result<Kept, RunError> {
    let path = &run.join(log);
    let bytes = run.read(log, regular::LOG).context("read", path)?;
    let known = written.and_then(|written| seal::beginning(&bytes, written)).unwrap_or(&bytes);
    let (kept, output) = cut(path, known, first_step_to_drop)?;
    if output != bytes {
        files::write_in(run, log, &output, "csv_cut")?;
    }
    Ok(kept)
}

/// The cells of the row of this step, the last one of a run's log up to there, in the order of its header. A log that
/// cannot be read so far has none.
///
/// Errors: [`RunError::Io`].
pub fn row_at(run: &OpenDir, log: &str, step: u64) -> Result<Option<Vec<String>>, RunError> {
    let path = &run.join(log);
    let bytes = run.read(log, regular::LOG).context("read", path)?;
    let Ok((kept, text)) = cut(path, &bytes, step + 1) else { return Ok(None) };
    let last = text.trim_ascii_end().rsplit(|byte| *byte == b'\n').next();
    let last = last.filter(|_| kept.last_step == Some(step));
    Ok(last.map(|row| String::from_utf8_lossy(row).split(',').map(str::to_owned).collect()))
}

/// The part of [`cut_back`] that touches no file: the rows kept of a log with the contents `bytes`, and the new
/// contents. `path` is used in messages.
///
/// Errors: [`RunError::Malformed`] for a malformed row, unless the rows before it reach up to `first_step_to_drop`.
pub fn cut(path: &Path, bytes: &[u8], first_step_to_drop: u64) -> Result<(Kept, Vec<u8>), RunError> {
    let whole = files::whole_lines(bytes);
    let mut table = Table::new(path, whole)?;
    let mut kept = Kept::default();
    let mut output = whole[..table.offset()].to_vec();
    loop {
        let start = table.offset();
        let row = table.next_record().and_then(|record| {
            let Some(record) = record else { return Ok(None) };
            let step: u64 = table.parse(&record, |cells| cells.required("step"))?;
            Ok(Some((step, table.parse(&record, |cells| cells.get("elapsed_s"))?)))
        });
        match row {
            Ok(None) => break,
            Ok(Some((step, _))) if step >= first_step_to_drop => {}
            Ok(Some((step, elapsed_s))) => {
                let (rows, elapsed_s) = (kept.rows + 1, elapsed_s.unwrap_or(0.0));
                kept = Kept { rows, last_step: Some(step), elapsed_s };
                output.extend_from_slice(&whole[start..table.offset()]);
            }
            // A power cut may leave anything in what was not synced; here it would be dropped in any case.
            Err(_) if kept.last_step.map_or(0, |step| step + 1) >= first_step_to_drop => break,
            Err(error) => return Err(error),
        }
    }
    Ok((kept, output))
}
