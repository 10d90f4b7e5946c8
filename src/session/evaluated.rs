//! What was found out about a model: its losses, its scores in tasks, and what these are of.

use super::ending::UsageError;
use crate::data::TokenizerKind;
use crate::eval::{Cut, DataLoss, Definition, Score, Tally};
use crate::run::columns::NAMED_SET;
use crate::run::evaluations::{self, BITS_PER_BYTE, WHOLE};
use crate::run::{dir, facts};
use std::path::{Path, PathBuf};

/// A model's loss on data.
#[derive(Debug, Clone)]
pub struct LossOn {
    /// The files.
    pub data: Vec<String>,
    /// The digest of their contents.
    pub digest: String,
    /// What a token is, where that is known.
    pub tokenizer: Option<TokenizerKind>,
    /// The sums.
    pub loss: DataLoss,
    /// Whether these are nearly all tokens of the data.
    pub is_whole: bool,
    /// Tokens of a row, where so many are between rows that their length decides which tokens are evaluated.
    pub of_rows: Option<usize>,
    /// Whether the model is known to have been trained on some of the data.
    pub is_seen: bool,
}

impl LossOn {
    /// Which bytes of the data the tokens stand for: all of them, or their number; `None` where bytes are not known.
    #[must_use]
    pub fn of_bytes(&self) -> Option<String> {
        let bytes = self.loss.bytes?;
        Some(self.extent(if self.is_whole { WHOLE.to_owned() } else { bytes.to_string() }))
    }

    fn extent(&self, extent: String) -> String {
        match self.of_rows {
            Some(block_size) => format!("{extent}/{block_size}"),
            None => extent,
        }
    }
}

/// A model's scores in a task.
#[derive(Debug, Clone)]
pub struct TaskScores {
    /// The task's name.
    pub name: String,
    /// What the names of its scores begin with.
    pub prefix: String,
    /// The digest of its examples.
    pub digest: String,
    /// The definition that the scores follow.
    pub definition: Definition,
    /// The scores.
    pub scores: Vec<Score>,
    /// The sums that they come from.
    pub tally: Tally,
    /// What did not fit into the context.
    pub cut: Cut,
    /// Tokens of the context.
    pub block_size: usize,
}

/// A checkpoint of a run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OfRun {
    /// The run's directory.
    pub run: PathBuf,
    /// Optimizer steps after which the checkpoint was saved.
    pub step: u64,
    /// Tokens trained on until then.
    pub tokens: u64,
}

/// What was found out about a model.
#[derive(Debug, Clone)]
pub struct Evaluated {
    /// The run's id, or the path of weights from elsewhere.
    pub model: String,
    /// The run and its checkpoint; `None` for weights from elsewhere.
    pub run: Option<OfRun>,
    /// What to know of its tokens, where nothing says what they stand for: bytes of text are not known then.
    pub unknown_tokens: Option<String>,
    /// The loss, where there are data; of several sets of the run's validation data, that of the one that decides.
    pub loss: Option<LossOn>,
    /// The losses on the other sets by their names.
    pub others: Vec<(String, LossOn)>,
    /// The tasks, in the order of the request.
    pub tasks: Vec<TaskScores>,
}

impl Evaluated {
    /// The losses by their names: `val_loss` first, then those on the other sets.
    pub fn losses(&self) -> impl Iterator<Item = (String, &LossOn)> {
        let main = self.loss.iter().map(|on| ("val_loss".to_owned(), on));
        main.chain(self.others.iter().map(|(name, on)| (format!("{NAMED_SET}{name}"), on)))
    }

    /// What the loss of this name is of.
    #[must_use]
    pub fn on(&self, name: &str) -> Option<&LossOn> {
        self.losses().find_map(|(known, on)| (known == name).then_some(on))
    }

    /// Every number with its name and its standard error.
    #[must_use]
    pub fn values(&self) -> Vec<(String, f64, Option<f64>)> {
        let mut values = Vec::new();
        if let Some(LossOn { loss, .. }) = &self.loss {
            values.push(("val_loss".to_owned(), loss.mean(), None));
            values.push(("perplexity".to_owned(), loss.perplexity(), None));
            values.extend(loss.bits_per_byte().map(|bits| (BITS_PER_BYTE.to_owned(), bits, None)));
        }
        let others =
            self.others.iter().map(|(name, on)| (format!("{NAMED_SET}{name}"), on.loss.mean(), None));
        values.extend(others);
        let scores = self.tasks.iter().flat_map(|task| &task.scores);
        values.extend(scores.map(|score| (score.name.clone(), score.value, score.standard_error)));
        values
    }

    /// What the numbers are of, by the name of each loss and by what the scores of each task begin with: its digest,
    /// and of a loss the number of tokens. Tokens of different tokenizers differ in length, so bits per byte are of the
    /// whole data or of a number of bytes. The length of a row follows where it decides which tokens these are.
    fn measured(&self) -> Vec<(String, String, Option<String>)> {
        let tokens = |on: &LossOn| Some(on.extent(on.loss.tokens.to_string()));
        let losses = self.losses().map(|(name, on)| (name, on.digest.clone(), tokens(on)));
        let of_bytes =
            |on: &LossOn| Some((BITS_PER_BYTE.to_owned(), on.digest.clone(), Some(on.of_bytes()?)));
        let bytes = self.loss.iter().filter_map(of_bytes);
        let tasks = self.tasks.iter().map(|task| (task.prefix.clone(), task.digest.clone(), None));
        let seen = self.losses().filter(|(_, on)| on.is_seen);
        let seen = seen.map(|(name, on)| (evaluations::seen(&name), on.digest.clone(), None));
        losses.chain(bytes).chain(tasks).chain(seen).collect()
    }

    /// Appends the numbers to the `eval.csv` of the run and returns its path. Links of other users are followed on the
    /// way to `runs_dir` alone.
    ///
    /// # Errors
    /// [`UsageError`] for weights that are no run's; [`RunError`](crate::run::RunError) for a file that is not written.
    pub fn save(&self, precision: &str, runs_dir: &Path) -> anyhow::Result<PathBuf> {
        let Some(OfRun { run, step, tokens }) = &self.run else {
            return Err(no_run(&self.model).into());
        };
        let mut values = Vec::new();
        for (name, value, standard_error) in self.values() {
            values.push((name.clone(), value));
            values.extend(standard_error.map(|error| (format!("{name}_stderr"), error)));
        }
        let evaluation = evaluations::Evaluation {
            step: *step,
            tokens: *tokens,
            evaluated: facts::now(),
            precision: precision.to_owned(),
            data: self.loss.as_ref().map(|on| on.data.clone()).unwrap_or_default(),
            data_tokens: self.loss.as_ref().map(|on| on.loss.tokens),
            measured: self.measured(),
            values,
        };
        evaluations::append(run, runs_dir, &evaluation)?;
        Ok(run.join(dir::EVAL_CSV))
    }
}

/// Only runs have a file of evaluations.
#[must_use]
pub fn no_run(model: &str) -> UsageError {
    UsageError(format!("--save appends to a run's eval.csv, but `{model}` is no run"))
}
