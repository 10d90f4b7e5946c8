//! Evaluation: losses on data, multiple choice and last words. It reads the files of tasks, packs examples into batches
//! of rows, and scores them with any [`Engine`](crate::engine::Engine); it knows neither runs nor terminals.
//!
//! A [`Task`] is a file of examples, encoded for one model. [`score`] computes the answers of a share of its examples,
//! a [`Tally`] adds answers up, over ranks too, and [`Tally::scores`] has the numbers with their names, standard errors
//! and definitions. [`data_loss`] has the loss per token and per byte of text.

mod documents;
mod error;
mod llmc;
mod lm_eval;
mod loss;
mod rows;
mod score;
mod tally;
mod task;

pub use error::EvalError;
pub use loss::{DataLoss, data_loss};
pub use score::{Answer, Scored, score};
pub use tally::{Score, Tally};
pub use task::{Candidate, Cut, Definition, Example, Kind, Limits, Task};

/// Which of several ranks computes: each takes the examples whose number leaves its own over the number of ranks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Share {
    /// From 0.
    pub rank: usize,
    /// How many ranks there are.
    pub ranks: usize,
}

impl Share {
    /// All of it, for one that is alone.
    pub const ALL: Self = Self { rank: 0, ranks: 1 };
}

/// Where an evaluation is between two forward passes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Passes {
    /// Passes that are done.
    pub done: usize,
    /// Passes in all.
    pub total: usize,
}
