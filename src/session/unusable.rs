//! Data that a recipe names and that cannot be used: as problems of its keys.

use super::missing;
use crate::data::{DataError, Tokenizer, TokenizerKind};
use crate::recipe::{Diagnostics, Origin, Resolved};
use crate::run::{dir, record};
use crate::wording::grouped;
use anyhow::bail;
use std::path::Path;

/// Data that cannot be used, with the key that names it.
#[derive(Debug, thiserror::Error)]
#[error("{key}: {error}")]
pub struct InputError {
    /// `data.train`, `data.val` or `data.val_fraction`.
    pub key: &'static str,
    /// What is wrong.
    pub error: DataError,
}

impl InputError {
    /// A problem of the recipe, at the line that names the data. If it is to be `helped`, with what is known about data
    /// that are not there and not `said` before.
    fn at_its_key(&self, resolved: &Resolved, said: &mut Vec<String>, helped: bool) -> Diagnostics {
        // keys of a recipe and options may both name data; what a path is relative to is known here
        let file = resolved.origin(self.key).and_then(|setting| match &setting.origin {
            Origin::File { path, .. } => Some(path),
            _ => None,
        });
        let relative = match (&self.error, file) {
            (DataError::Missing { .. }, Some(_)) => ", which is relative to the file that names it",
            (DataError::Missing { .. }, None) => ", which is relative to the current directory",
            _ => "",
        };
        let mut help = if helped { missing::help(&self.error) } else { Vec::new() };
        if !help.is_empty() && file.is_some_and(|path| is_of_a_run(path)) {
            help.push(format!(
                "if this run was moved without its data: correct the line, or resume with `--set {}=...`",
                self.key
            ));
        }
        let help: Vec<String> = help.into_iter().filter(|it| !said.contains(it)).collect();
        said.extend_from_slice(&help);
        resolved.complain_at_length(self.key, &format!("{self}{relative}"), help)
    }
}

/// Whether a recipe is that of the run beside it.
fn is_of_a_run(recipe: &Path) -> bool {
    recipe.file_name().is_some_and(|name| name == dir::RECIPE)
        && recipe.with_file_name(record::FILE).is_file()
}

/// Checks that a recipe that takes its number of token ids from its data has taken it from data as these are. What
/// could not be read for a moment, or was changed since, would begin another run.
///
/// # Errors
/// Where it has not.
pub(super) fn check_vocabulary(resolved: &Resolved, tokenizer: &Tokenizer) -> anyhow::Result<()> {
    let (data, model) = (&resolved.recipe.data, &resolved.recipe.model);
    if data.tokenizer != tokenizer.kind() {
        bail!(
            "data.tokenizer: the data are of the tokenizer `{}`, and when the recipe was read they were not: they \
             could not be read then, or were changed since; start again",
            tokenizer.kind()
        );
    }
    // from nothing that knows better than the data
    let follows = resolved.origin("model.vocab_size").is_none_or(|setting| {
        matches!(setting.origin, Origin::Default | Origin::Preset(_) | Origin::Data(_))
    });
    let size = tokenizer.vocab_size();
    if tokenizer.kind() != TokenizerKind::Gpt2 && follows && model.vocab_size != size {
        bail!(
            "model.vocab_size: the data have {}, and when the recipe was read they gave {}: they could not be read \
             then, or were changed since; start again",
            grouped(size as u64, "token id"),
            grouped(model.vocab_size as u64, "token id")
        );
    }
    Ok(())
}

/// Everything that keeps the data of a recipe from being used, at least one thing.
#[derive(Debug, thiserror::Error)]
#[error("{}", .0.iter().map(ToString::to_string).collect::<Vec<_>>().join("; "))]
pub struct InputErrors(pub Vec<InputError>);

/// So many missing names are looked for among those that are there: each look takes a whole directory.
const MOST_HELPED: usize = 20;

impl InputErrors {
    /// Problems of the recipe, at the lines that name the data; an encoded text that cannot be written is none.
    pub fn at_their_keys(self, resolved: &Resolved) -> anyhow::Error {
        let (mut problems, mut said) = (Diagnostics::default(), Vec::new());
        for (i, problem) in self.0.into_iter().enumerate() {
            match problem.error {
                DataError::Write { .. } => return problem.error.into(),
                _ => problems.append(problem.at_its_key(resolved, &mut said, i < MOST_HELPED)),
            }
        }
        problems.into()
    }
}
