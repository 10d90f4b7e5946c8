//! Data that a recipe names and that cannot be used: as problems of its keys.

use super::missing;
use crate::data::DataError;
use crate::recipe::{Diagnostics, Origin, Resolved};

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
        let in_a_file = || matches!(resolved.origin(self.key)?.origin, Origin::File { .. }).then_some(());
        let relative = match self.error {
            DataError::Missing { .. } if in_a_file().is_some() => {
                ", which is relative to the file that names it"
            }
            DataError::Missing { .. } => ", which is relative to the current directory",
            _ => "",
        };
        let help = if helped { missing::help(&self.error) } else { Vec::new() };
        let help: Vec<String> = help.into_iter().filter(|it| !said.contains(it)).collect();
        said.extend_from_slice(&help);
        resolved.complain_at_length(self.key, &format!("{self}{relative}"), help)
    }
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
