//! The rows of the logs: their columns, in order, and how a row is spelled and read.

use std::collections::HashMap;
use std::str::FromStr;

/// One row of a log.
pub trait Row: Sized {
    /// The columns, in order.
    const HEADER: &'static [&'static str];

    /// The fields, one for each column.
    fn fields(&self) -> Vec<String>;

    /// Reads a row; columns that the file lacks get a value that means unknown.
    fn parse(cells: &Cells) -> Result<Self, String>;
}

/// One optimizer step in `train.csv`. The first eight columns are a function of the recipe and the kind of hardware.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct TrainRow {
    /// The step, from 0.
    pub step: u64,
    /// Tokens trained on after the step.
    pub tokens: u64,
    /// Mean loss over the whole batch before the update, nats per token.
    pub loss: f32,
    /// Learning rate of the update.
    pub lr: f64,
    /// Global norm of the gradients before clipping.
    pub grad_norm: f64,
    /// Passes over the data after the step.
    pub epoch: f64,
    /// Factor on the loss in fp16, else 1.
    pub loss_scale: f64,
    /// Whether the update was left out because a gradient was not finite.
    pub skipped: bool,
    /// Wall time of the step in milliseconds.
    pub step_ms: f64,
    /// Tokens per second of the step.
    pub tokens_per_s: f64,
    /// Fraction of the device's peak rate that the model's operations reached; empty where the peak is unknown.
    pub mfu: Option<f64>,
    /// Peak resident memory of the process so far, in bytes.
    pub memory_bytes: u64,
    /// Seconds trained so far, over all sessions of the run.
    pub elapsed_s: f64,
}

/// One evaluation in `val.csv`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ValRow {
    /// Optimizer steps taken before the evaluation.
    pub step: u64,
    /// Tokens trained on by then.
    pub tokens: u64,
    /// Mean loss over the validation batches, nats per token.
    pub val_loss: f32,
}

impl Row for TrainRow {
    const HEADER: &'static [&'static str] = &[
        "step",
        "tokens",
        "loss",
        "lr",
        "grad_norm",
        "epoch",
        "loss_scale",
        "skipped",
        "step_ms",
        "tokens_per_s",
        "mfu",
        "memory_bytes",
        "elapsed_s",
    ];

    fn fields(&self) -> Vec<String> {
        vec![
            self.step.to_string(),
            self.tokens.to_string(),
            self.loss.to_string(),
            self.lr.to_string(),
            self.grad_norm.to_string(),
            self.epoch.to_string(),
            self.loss_scale.to_string(),
            u8::from(self.skipped).to_string(),
            self.step_ms.to_string(),
            self.tokens_per_s.to_string(),
            self.mfu.map_or_else(String::new, |mfu| mfu.to_string()),
            self.memory_bytes.to_string(),
            self.elapsed_s.to_string(),
        ]
    }

    fn parse(cells: &Cells) -> Result<Self, String> {
        Ok(Self {
            step: cells.required("step")?,
            tokens: cells.get("tokens")?.unwrap_or(0),
            loss: cells.get("loss")?.unwrap_or(f32::NAN),
            lr: cells.get("lr")?.unwrap_or(f64::NAN),
            grad_norm: cells.get("grad_norm")?.unwrap_or(f64::NAN),
            epoch: cells.get("epoch")?.unwrap_or(f64::NAN),
            loss_scale: cells.get("loss_scale")?.unwrap_or(1.0),
            skipped: cells.get::<u8>("skipped")?.unwrap_or(0) != 0,
            step_ms: cells.get("step_ms")?.unwrap_or(f64::NAN),
            tokens_per_s: cells.get("tokens_per_s")?.unwrap_or(f64::NAN),
            mfu: cells.get("mfu")?,
            memory_bytes: cells.get("memory_bytes")?.unwrap_or(0),
            elapsed_s: cells.get("elapsed_s")?.unwrap_or(f64::NAN),
        })
    }
}

impl Row for ValRow {
    const HEADER: &'static [&'static str] = &["step", "tokens", "val_loss"];

    fn fields(&self) -> Vec<String> {
        vec![self.step.to_string(), self.tokens.to_string(), self.val_loss.to_string()]
    }

    fn parse(cells: &Cells) -> Result<Self, String> {
        Ok(Self {
            step: cells.required("step")?,
            tokens: cells.get("tokens")?.unwrap_or(0),
            val_loss: cells.get("val_loss")?.unwrap_or(f32::NAN),
        })
    }
}

/// The cells of one record, by column name.
#[derive(Debug)]
pub struct Cells<'a> {
    columns: &'a HashMap<String, usize>,
    record: &'a csv::StringRecord,
}

impl<'a> Cells<'a> {
    pub(super) fn new(columns: &'a HashMap<String, usize>, record: &'a csv::StringRecord) -> Self {
        Self { columns, record }
    }

    /// The value in a column; `None` if the file lacks the column or the cell is empty.
    pub fn get<T: FromStr>(&self, column: &str) -> Result<Option<T>, String> {
        match self.columns.get(column).and_then(|&i| self.record.get(i)).map(str::trim) {
            None | Some("") => Ok(None),
            Some(text) => match text.parse() {
                Ok(value) => Ok(Some(value)),
                Err(_) => Err(format!("`{text}` in column `{column}` is not a number of its kind")),
            },
        }
    }

    /// The value in a column that every row has.
    pub fn required<T: FromStr>(&self, column: &str) -> Result<T, String> {
        self.get(column)?.ok_or_else(|| format!("it has no `{column}`"))
    }
}
