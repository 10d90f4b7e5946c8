//! Which data of a run a row of `eval.csv` is of.

use super::{Basis, VAL, first_digits};
use crate::report::runs::Run;

impl Basis {
    /// Whether a row of `eval.csv` with this basis is of what a run's own rows of a column of `val.csv` are.
    #[must_use]
    pub fn goes_on(&self, run: &Run, column: &str) -> bool {
        !self.is_vague && self.clone().into_validation(run).facts == Self::of_validation(run, column).facts
    }

    /// Whether the contents of a row of `eval.csv` are known not to be those that the run's `val_loss` is of.
    #[must_use]
    pub fn is_of_other_data(&self, run: &Run) -> bool {
        match run.results.basis("val_loss") {
            Some(of_row) => self.has_other_contents(&of_row.clone().into_validation(run)),
            None => self.is_of_no_validation(run),
        }
    }

    /// Whether the contents of a row of `eval.csv` are known not to be the validation data of the run's recipe.
    #[must_use]
    pub fn is_of_no_validation(&self, run: &Run) -> bool {
        self.has_other_contents(&Self::of_validation(run, "val_loss"))
    }

    fn has_other_contents(&self, validation: &Self) -> bool {
        let contents = |basis: &Self, name| {
            let found = basis.facts.iter().find(|(known, _)| *known == name);
            found.and_then(|(_, contents)| contents.clone())
        };
        let (own, other) = (contents(self, "data"), contents(validation, VAL));
        !self.is_vague && own.is_some() && other.is_some() && own != other
    }

    /// Whether the contents of a row of `eval.csv` are the run's own training data.
    #[must_use]
    pub fn is_of_training_data(&self, run: &Run) -> bool {
        let train = run.facts.digests.get("train").map(|train| first_digits(train));
        train.is_some() && self.facts.iter().any(|(name, contents)| *name == "data" && *contents == train)
    }
}
