//! Names that a task may not have: its scores would be columns that something else has, or that read as something else.

use crate::report::metrics::metrics;
use crate::run::columns::{LOGS, NAMED_SET, task_of};
use crate::run::evaluations;

/// What `runner eval` puts behind the names of tasks that it scores by lm-evaluation-harness's definition, too.
const LM_EVAL: &str = "_lm_eval";

/// Checks the name of a task, which is that of its file.
///
/// # Errors
/// What the name is already, as a phrase.
pub fn check(name: &str) -> Result<(), String> {
    let of_logs = LOGS.iter().flat_map(|(_, columns)| columns.iter().map(|column| column.name));
    let of_eval = evaluations::COLUMNS.iter().map(|(name, _)| *name).chain(["perplexity", "bits_per_byte"]);
    let mut known = of_logs.chain(of_eval).chain(metrics().iter().map(|metric| metric.name.as_str()));
    let is_taken = known.any(|known| task_of(known) == Some(name));
    // so that `best` and what is behind it is a prefix, too
    let begins = |prefix: &str| format!("{name}_").starts_with(prefix);
    let taken = match name {
        _ if name.ends_with(LM_EVAL) => "the scores of `--lm-eval` end so",
        _ if begins(NAMED_SET) => "the losses on validation data begin so",
        _ if begins("best_") => "the best values of columns begin so",
        _ if is_taken => "a column or a metric has the name of one of its scores",
        _ => return Ok(()),
    };
    Err(format!("a task cannot be called `{name}`: {taken}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_that_columns_have_are_refused() {
        let refused = ["val_loss", "val_loss_a", "best", "best_x", "x_lm_eval"];
        for name in refused {
            assert!(check(name).is_err_and(|reason| reason.contains(&format!("`{name}`"))), "{name}");
        }
        for name in [
            "hellaswag",
            "arc_easy",
            "bestiary",
            "val_losses",
            "steps_of_a_proof",
            "lm_eval",
            "x",
            "data",
            "loss",
        ] {
            assert_eq!(check(name), Ok(()));
        }
    }
}
