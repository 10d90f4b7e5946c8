//! Which tag a column of a log has in TensorBoard.
//!
//! The first part of a tag is the section that TensorBoard shows it in. A column that a later version adds, a named
//! validation set and a task have theirs by the same rule, so there is no list of tags.

use crate::run::columns::ValRow;
use crate::run::dir;
use crate::run::row::Row;
use crate::wording::tame_line;
use std::collections::HashSet;

/// The column along which TensorBoard shows the others.
pub(super) const STEP: &str = "step";
/// What the tags of columns of `train.csv` begin with.
pub(super) const TRAIN: &str = "train/";
/// The tag of the last validation loss of a run that has finished. Of a run's numbers TensorBoard shows the first few
/// by their names beside the hyperparameters; PyTorch's `add_hparams` is used with such names.
pub(super) const FINAL: &str = "hparam/val_loss";
/// The tag of generated texts.
pub(super) const SAMPLES: &str = "samples";
/// The tag of the resolved recipe.
pub(super) const RECIPE: &str = "recipe";

/// The tags of the columns of a log, in the order of its header; `None` for the step, and for a column that is there a
/// second time.
pub(super) fn tags(log: &str, header: &[String]) -> Vec<Option<String>> {
    let (mut columns, mut taken) = (HashSet::new(), HashSet::new());
    let mut tags = Vec::new();
    for column in header {
        let is_new = column != STEP && columns.insert(column);
        let tag = Some(tag(log, column)).filter(|_| is_new);
        // only a log of another program has two columns that one tag would suit
        tags.push(tag.filter(|tag| taken.insert(tag.clone())));
    }
    tags
}

/// `train/loss`, `val/loss`, `val/loss_NAME` for a named set, `tasks/NAME_acc` for a task.
fn tag(log: &str, column: &str) -> String {
    let column = tame_line(column);
    match column.strip_prefix("val_") {
        _ if log == dir::TRAIN_CSV => format!("{TRAIN}{column}"),
        Some(rest) => format!("val/{rest}"),
        None if ValRow::COLUMNS.iter().any(|known| known.name == column) => format!("val/{column}"),
        None => format!("tasks/{column}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::run::column::Column;
    use crate::run::columns::LOGS;

    #[test]
    fn every_column_but_the_step_has_a_tag_of_its_own() {
        let mut all = Vec::new();
        for (log, columns) in LOGS {
            let header: Vec<String> = columns.iter().map(|Column { name, .. }| (*name).to_owned()).collect();
            let tags = tags(log, &header);
            assert_eq!(tags.iter().filter(|tag| tag.is_none()).count(), 1, "{log}: the step");
            all.extend(tags.into_iter().flatten());
        }
        for expected in
            ["train/loss", "train/lr", "train/grad_norm", "train/tokens_per_s", "val/loss", "val/tokens"]
        {
            assert!(all.iter().any(|tag| tag == expected), "{expected}: {all:?}");
        }
        let count = all.len();
        all.sort();
        all.dedup();
        assert_eq!(all.len(), count);
    }

    #[test]
    fn named_sets_and_tasks_have_tags_and_no_column_takes_that_of_another() {
        let header =
            ["step", "tokens", "val_loss", "val_loss_poems", "hellaswag_acc_norm", "val_tokens", "val_loss"];
        let header: Vec<String> = header.map(str::to_owned).to_vec();
        let tags = tags(dir::VAL_CSV, &header);
        let tags: Vec<Option<&str>> = tags.iter().map(Option::as_deref).collect();
        let first = [None, Some("val/tokens"), Some("val/loss"), Some("val/loss_poems")];
        assert_eq!(tags[..4], first);
        assert_eq!(tags[4..], [Some("tasks/hellaswag_acc_norm"), None, None]);
        assert_eq!(tag(dir::TRAIN_CSV, "val_\u{1b}"), "train/val_\u{fffd}");
    }
}
