//! The table of columns: each column of `train.csv` and `val.csv` is one row here.
//!
//! A row gives the column's meaning, its type, the value that stands for it where a file lacks it, and what
//! comparisons and plots make of it. Files are written in the order of the rows. `CONTRIBUTING.md`
//! says what a new column needs besides its row.

use super::column::Aggregate::{Last, LastPlusOne, Max, Median, Min, Sum};
use super::column::Better::{Higher, Lower};
use super::column::{Better, Column, Curve, Summary, Unit};
use super::dir;
use super::row::{Cells, Row, Value, end_line, rows};

/// Every log with its columns.
pub const LOGS: [(&str, &[Column]); 2] =
    [(dir::TRAIN_CSV, TrainRow::COLUMNS), (dir::VAL_CSV, ValRow::COLUMNS)];

rows! {
    /// One optimizer step, a row of `train.csv`.
    TrainRow in dir::TRAIN_CSV {
        /// The step, counted from 0.
        step: u64 = 0 => Column {
            is_required: true,
            summaries: &[Summary {
                place: 10, leaves: 50, name: "steps", title: "steps", meaning: "optimizer steps taken",
                ..Summary::of(LastPlusOne, Higher)
            }],
            ..Column::deterministic(Unit::Count)
        };
        /// Tokens trained on after the step.
        tokens: u64 = 0 => Column {
            summaries: &[Summary {
                place: 20, leaves: 60, name: "tokens", title: "tokens", meaning: "tokens trained on",
                ..Summary::of(Last, Higher)
            }],
            ..Column::deterministic(Unit::Count)
        };
        /// Mean loss over the whole batch before the update, in nats per token.
        loss: f32 = f32::NAN => Column {
            summaries: &[
                Summary {
                    place: 30, leaves: 20, name: "loss", title: "loss", meaning: "training loss of the last step",
                    ..Summary::of(Last, Lower)
                },
                Summary {
                    place: 40, leaves: 90, name: "best_loss", title: "best", meaning: "lowest training loss of a step",
                    ..Summary::of(Min, Lower)
                },
            ],
            curve: Some(Curve { marks: Some("val_loss"), ..Curve::noisy(10, "loss (nats per token)") }),
            ..Column::deterministic(Unit::Loss)
        };
        /// Learning rate of the update.
        lr: f64 = f64::NAN => Column {
            curve: Some(Curve::exact(30, "learning rate")),
            ..Column::deterministic(Unit::Number)
        };
        /// Global norm of the gradients before clipping.
        grad_norm: f64 = f64::NAN => Column {
            curve: Some(Curve::noisy(40, "gradient norm before clipping")),
            ..Column::deterministic(Unit::Number)
        };
        /// Passes over the training data after the step.
        epoch: f64 = f64::NAN => Column::deterministic(Unit::Number);
        /// Factor on the loss in fp16, 1 in the other precisions.
        loss_scale: f64 = 1.0 => Column {
            curve: Some(Curve::exact(80, "loss scale")),
            ..Column::deterministic(Unit::Number)
        };
        /// 1 if the update was left out, because a gradient was not finite (fp16 only) or because the watchdog skipped
        /// the step, else 0.
        skipped: bool = false => Column {
            summaries: &[Summary {
                place: 120, leaves: 120, name: "skipped_steps", title: "skipped",
                meaning: "steps whose update was left out",
                for_people: false, ..Summary::of(Sum, Lower)
            }],
            ..Column::deterministic(Unit::Number)
        };
        /// Wall time of the step in milliseconds.
        step_ms: f64 = f64::NAN => Column {
            summaries: &[Summary {
                place: 80, leaves: 110, name: "step_ms", title: "step",
                meaning: "median wall time of a step in milliseconds",
                for_people: false, ..Summary::of(Median, Lower)
            }],
            curve: Some(Curve::noisy(70, "step time (ms)")),
            ..Column::measured(Unit::Milliseconds)
        };
        /// Tokens per second of the step.
        tokens_per_s: f64 = f64::NAN => Column {
            summaries: &[Summary {
                place: 70, leaves: 40, name: "tokens_per_s", title: "tokens/s",
                meaning: "median tokens per second of the steps",
                ..Summary::of(Median, Higher)
            }],
            curve: Some(Curve::noisy(50, "tokens per second")),
            ..Column::measured(Unit::Rate)
        };
        /// Fraction of the device's peak rate (`peak` in run.json) that the operations reached; empty if unknown.
        mfu: Option<f64> = None => Column {
            summaries: &[Summary {
                place: 90, leaves: 80, name: "mfu", title: "MFU",
                meaning: "median fraction of the peak rate that was reached",
                ..Summary::of(Median, Higher)
            }],
            curve: Some(Curve::noisy(60, "model FLOPs utilization")),
            ..Column::measured(Unit::Fraction)
        };
        /// Peak resident memory of the process so far since it had this run's data, in bytes.
        memory_bytes: u64 = 0 => Column {
            summaries: &[Summary {
                place: 100, leaves: 100, name: "memory_bytes", title: "memory", meaning: "peak memory in bytes",
                ..Summary::of(Max, Lower)
            }],
            curve: Some(Curve::exact(90, "peak memory (bytes)")),
            ..Column::measured(Unit::Bytes)
        };
        /// Seconds trained so far, over all sessions of the run.
        elapsed_s: f64 = f64::NAN => Column {
            summaries: &[Summary {
                place: 110, leaves: 70, name: "elapsed_s", title: "time", meaning: "seconds trained, over all sessions",
                ..Summary::of(Last, Lower)
            }],
            ..Column::measured(Unit::Seconds)
        };
    }
}

rows! {
    /// One evaluation, a row of `val.csv`.
    ValRow in dir::VAL_CSV {
        /// Optimizer steps taken before the evaluation.
        step: u64 = 0 => Column { is_required: true, ..Column::deterministic(Unit::Count) };
        /// Tokens trained on before the evaluation.
        tokens: u64 = 0 => Column::deterministic(Unit::Count);
        /// Mean loss over the validation batches, in nats per token.
        val_loss: f32 = f32::NAN => Column {
            summaries: &[
                Summary {
                    place: 50, leaves: 10, name: "val_loss", title: "val loss",
                    meaning: "validation loss of the last evaluation",
                    ..Summary::of(Last, Lower)
                },
                Summary {
                    place: 60, leaves: 30, name: "best_val_loss", title: "best val", meaning: "lowest validation loss",
                    ..Summary::of(Min, Lower)
                },
            ],
            curve: Some(Curve::exact(20, "validation loss (nats per token)")),
            ..Column::deterministic(Unit::Loss)
        };
    }
}

/// What is known of a column of `val.csv` that has no row here: a further validation set or task, which a run names.
/// Tasks end in `_acc` or `_acc_norm` and are accuracies, all others are losses.
pub fn outside_the_table(column: &str) -> (Unit, Better) {
    let is_accuracy = column.ends_with("_acc") || column.ends_with("_acc_norm");
    match is_accuracy && !column.starts_with(NAMED_SET) {
        true => (Unit::Fraction, Higher),
        false => (Unit::Loss, Lower),
    }
}

/// What the column of a named validation set begins with.
pub const NAMED_SET: &str = "val_loss_";

/// The task that a column beside the table is a score of, without the ending that says which score; `None` for a loss.
pub fn task_of(column: &str) -> Option<&str> {
    let score = column.strip_suffix("_stderr").unwrap_or(column);
    let endings = ["_acc_norm", "_acc", "_perplexity"];
    endings.iter().find_map(|ending| score.strip_suffix(ending)).filter(|_| !column.starts_with(NAMED_SET))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn columns() -> impl Iterator<Item = &'static Column> {
        LOGS.iter().flat_map(|(_, columns)| *columns)
    }

    #[test]
    fn summaries_and_curves_have_names_and_places_of_their_own() {
        let summaries: Vec<&Summary> = columns().flat_map(|column| column.summaries).collect();
        let curves: Vec<(&str, u32)> = columns().filter_map(|c| Some((c.name, c.curve?.place))).collect();
        let mut names: Vec<&str> = summaries.iter().map(|summary| summary.name).collect();
        let mut places: Vec<u32> = summaries.iter().map(|summary| summary.place).collect();
        let (mut curve_names, mut curve_places): (Vec<&str>, Vec<u32>) = curves.into_iter().unzip();
        for texts in [&mut names, &mut curve_names] {
            let all = texts.len();
            texts.sort_unstable();
            texts.dedup();
            assert_eq!(texts.len(), all, "{texts:?}");
        }
        for numbers in [&mut places, &mut curve_places] {
            let all = numbers.len();
            numbers.sort_unstable();
            numbers.dedup();
            assert_eq!(numbers.len(), all, "{numbers:?}");
        }
    }

    #[test]
    fn each_column_says_what_it_means_and_marks_what_exists() {
        for column in columns() {
            assert!(column.meaning.ends_with('.') && !column.meaning.contains("  "), "{}", column.meaning);
            let marks = column.curve.and_then(|curve| curve.marks);
            assert!(marks.is_none_or(|name| ValRow::COLUMNS.iter().any(|c| c.name == name)), "{marks:?}");
        }
    }

    #[test]
    fn the_first_eight_columns_of_the_training_log_are_deterministic_and_times_are_not() {
        let (first, others) = TrainRow::COLUMNS.split_at(8);
        assert!(first.iter().all(|column| column.is_deterministic));
        let measured: Vec<&str> = others.iter().filter(|c| !c.is_deterministic).map(|c| c.name).collect();
        assert_eq!(measured, ["step_ms", "tokens_per_s", "mfu", "memory_bytes", "elapsed_s"]);
    }
}
