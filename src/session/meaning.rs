//! What the tokens of a run stand for. Shards are numbers alone: what lies beside them says which text a number is, and
//! may change while the numbers stay, so the identity of the data does not tell.

use super::ending::UsageError;
use super::inputs::Data;
use crate::data::Tokenizer;
use crate::run::RunRecord;
use std::path::Path;

/// What the digest of the vocabulary is called among [`RunRecord::digests`].
const TOKENIZER: &str = "tokenizer";

/// Notes in a run's record what the tokens of its data stand for.
pub(super) fn note(record: &mut RunRecord, data: &Data) {
    record.digests.insert(TOKENIZER.to_owned(), digest(&data.tokenizer));
}

/// Checks that the tokens of the data stand for what they did when the run began. The records of earlier versions do
/// not say it.
///
/// # Errors
/// [`UsageError`] says what they are now.
pub(super) fn check(run: &Path, record: Option<&RunRecord>, data: &Data) -> Result<(), UsageError> {
    let began = record.and_then(|record| record.digests.get(TOKENIZER));
    if began.is_none_or(|began| *began == digest(&data.tokenizer)) {
        return Ok(());
    }
    Err(UsageError(format!(
        "{}: the tokens of its data stand for another text than when it began (now they are {}): bring back what \
         describes them (`dataset.json` or `meta.pkl` beside the shards), or start over with --fresh",
        run.display(),
        data.tokenizer.kind()
    )))
}

/// The word of a tokenizer's kind, or the digest of its characters.
fn digest(tokenizer: &Tokenizer) -> String {
    match tokenizer.characters() {
        Some(characters) => blake3::hash(characters.text().as_bytes()).to_hex().to_string(),
        None => tokenizer.kind().to_string(),
    }
}
