//! The weights that a name stands for: a run's, a checkpoint's or some from elsewhere.

use super::audience::{Audience, of_damage};
use super::ending::UsageError;
use crate::data::Tokenizer;
use crate::data::tokenizer::VOCAB_SIZE;
use crate::model::Dims;
use crate::recipe;
use crate::regular;
use crate::run::checkpoint;
use crate::run::named::{checkpoint_of, latest, own};
use crate::run::{RunError, find, import};
use crate::weights::{self, Unreadable};
use crate::wording::thousands;
use std::path::{Component, Path, PathBuf};

/// The largest number that a vocabulary is commonly padded to a multiple of.
const WIDEST_PADDING: usize = 1024;

/// Where a model's weights come from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Source {
    /// The newest intact checkpoint of a run.
    Run {
        /// The run's directory.
        run: PathBuf,
        /// The checkpoint's directory.
        checkpoint: PathBuf,
    },
    /// A checkpoint's directory.
    Checkpoint(PathBuf),
    /// A model from elsewhere: Hugging Face's, as a directory or a `.safetensors` file with its `config.json`
    /// beside it, or a file of nanoGPT or llm.c.
    Weights(PathBuf),
}

/// How often weights are looked for that are deleted before they are read.
const ATTEMPTS: usize = 5;

/// Tries something with weights, whose path it gives with what came of it, and again if they are gone by then.
fn retrying<T>(
    mut attempt: impl FnMut() -> anyhow::Result<(PathBuf, anyhow::Result<T>)>,
) -> anyhow::Result<T> {
    for _ in 1..ATTEMPTS {
        match attempt()? {
            (weights, Err(_)) if !weights.exists() => {}
            (_, result) => return result,
        }
    }
    attempt()?.1
}

impl Source {
    /// The weights that a path, or the beginning of a run's name in `runs_dir`, stands for. `@best`, `@latest` or
    /// `@STEP` after a run names one of its checkpoints.
    ///
    /// # Errors
    /// [`RunError`] where the name leads to no run, or to a run without such or without an intact checkpoint, or to
    /// another run's checkpoint, or to a checkpoint that is not what was saved; [`UsageError`] for weights without a
    /// configuration.
    pub fn find(named: &Path, runs_dir: &Path, audience: &dyn Audience) -> anyhow::Result<Self> {
        retrying(|| {
            let found = Self::look_up(named, runs_dir, audience)?;
            let weights = found.weights().to_owned();
            let is_intact = match found {
                Self::Run { .. } => Ok(()),
                _ => checkpoint::verify_model(&weights),
            };
            Ok((weights, is_intact.map(|()| found).map_err(anyhow::Error::from)))
        })
    }

    /// Does some work with the weights that a name [stands for](Self::find), and again with what it stands for then
    /// if they were deleted meanwhile: a run keeps its newest checkpoints.
    ///
    /// # Errors
    /// As of [`find`](Self::find), and those of the work.
    pub fn with<T>(
        named: &Path,
        runs_dir: &Path,
        audience: &dyn Audience,
        mut work: impl FnMut(Self) -> anyhow::Result<T>,
    ) -> anyhow::Result<T> {
        retrying(|| {
            let source = Self::find(named, runs_dir, audience)?;
            Ok((source.weights().to_owned(), work(source)))
        })
    }

    fn look_up(named: &Path, runs_dir: &Path, audience: &dyn Audience) -> anyhow::Result<Self> {
        let passed_over = of_damage(audience);
        let is_path = weights::checkpoint_name(named).is_none();
        if is_path && named.join("config.json").is_file() {
            find::check_meant(runs_dir, named, named)?;
            if !checkpoint::is_checkpoint(named) {
                return Ok(Self::Weights(named.to_owned()));
            }
            let named = with_its_run(named);
            own(&named)?;
            return Ok(Self::Checkpoint(named));
        }
        // a file that comes with its dimensions, or a directory with such a file; a run has none
        if is_path && !crate::run::dir::is_run(named) && matches!(weights::stated(named), Ok(Some(_))) {
            find::check_meant(runs_dir, named, named)?;
            return Ok(Self::Weights(named.to_owned()));
        }
        let run = match find::one(runs_dir, named) {
            Err(RunError::NamesCheckpoint { run, checkpoint, .. }) => {
                return Ok(Self::Checkpoint(checkpoint_of(&run, &checkpoint, passed_over)?));
            }
            found => found.map_err(|error| problem_of(named).unwrap_or_else(|| error.into()))?,
        };
        let checkpoint = latest(&run, passed_over)?;
        Ok(Self::Run { run, checkpoint })
    }

    /// The directory or file that holds the weights.
    pub fn weights(&self) -> &Path {
        match self {
            Self::Run { checkpoint: path, .. } | Self::Checkpoint(path) | Self::Weights(path) => path,
        }
    }

    /// The run that the weights are of; `None` for weights from elsewhere.
    #[must_use]
    pub fn run(&self) -> Option<&Path> {
        match self {
            Self::Run { run, .. } => Some(run),
            Self::Checkpoint(checkpoint) => checkpoint::run_of(checkpoint),
            Self::Weights(_) => None,
        }
    }

    /// The prompt that the recipe of its run has; `None` for one without a prompt, and for weights from elsewhere.
    ///
    /// # Errors
    /// Why the recipe cannot be read.
    pub fn prompt(&self) -> Result<Option<String>, String> {
        let values = self.run().map(recipe::values_of).transpose();
        let unreadable =
            |Unreadable { file, problem }| format!("`{}` cannot be read: {problem}", file.display());
        let values = values.map_err(unreadable)?.unwrap_or_default();
        let value = |of: &str| values.iter().find(|(known, _)| known == of).map(|(_, value)| value);
        Ok(value("sample.prompt").and_then(|prompt| prompt.as_str()).map(str::to_owned))
    }

    /// What its token ids stand for: as the `tokenizer.json` beside the weights says if that is one of characters or
    /// bytes, or nanoGPT's `meta.pkl`, else GPT-2's. `None` for weights from elsewhere beside which nothing says it and
    /// whose number of ids, `vocab_size`, is not that of GPT-2 with its padding.
    ///
    /// # Errors
    /// [`UsageError`] for a list of characters that is damaged.
    pub fn known_tokenizer(&self, vocab_size: usize) -> Result<Option<Tokenizer>, UsageError> {
        let stated = Tokenizer::stated_by_model(self.weights()).map_err(UsageError)?;
        let is_gpt2 = self.run().is_some() || may_be_gpt2(vocab_size);
        Ok(stated.or_else(|| is_gpt2.then(|| Tokenizer::gpt2().clone())))
    }

    /// What to know of a model without a [known tokenizer](Self::known_tokenizer), whose tokens are taken for GPT-2's.
    #[must_use]
    pub fn of_unknown_tokens(&self, vocab_size: usize) -> String {
        format!(
            "nothing says what the tokens of `{}` stand for, and it has {} where GPT-2's vocabulary has {}: texts are \
             read and written as if they were GPT-2's; its tokenizer.json, or the meta.pkl of nanoGPT's data, beside \
             the weights would say it",
            self.weights().display(),
            thousands(vocab_size as u64),
            thousands(VOCAB_SIZE as u64)
        )
    }

    /// The dimensions that the configuration states.
    ///
    /// # Errors
    /// [`RunError::Io`], or [`RunError::Malformed`] naming what is missing from a checkpoint; [`UsageError`] saying so
    /// of weights that come from elsewhere.
    pub fn dims(&self) -> anyhow::Result<Dims> {
        import::dims(self.weights()).map_err(|error| match (self, error) {
            // of a checkpoint it is damage, here it is what was asked for
            (Self::Weights(_), error @ RunError::Malformed { .. }) => UsageError(error.to_string()).into(),
            (_, error) => error.into(),
        })
    }
}

/// Whether the tokens of a model with so many ids, of which nothing says what they are, may be GPT-2's with the padding
/// of its vocabulary.
pub(super) fn may_be_gpt2(vocab_size: usize) -> bool {
    (VOCAB_SIZE..=VOCAB_SIZE.next_multiple_of(WIDEST_PADDING)).contains(&vocab_size)
}

/// A checkpoint's path with its run's above it, which a path from within the run does not show.
fn with_its_run(checkpoint: &Path) -> PathBuf {
    let is_name = |part: &Component| matches!(part, Component::Normal(_));
    match checkpoint.components().rev().take(3).filter(is_name).count() {
        3 => checkpoint.to_owned(),
        // behind a link of another user the run is not told: what writes into it would write where that user chose
        _ => regular::followed(checkpoint, Path::new("")).unwrap_or_else(|_| checkpoint.to_owned()),
    }
}

/// Why weights that have the name of no run cannot be used; `None` for what is none.
fn problem_of(named: &Path) -> Option<anyhow::Error> {
    let malformed = |problem| Some(RunError::Malformed { path: named.to_owned(), problem }.into());
    let config = weights::config_of(named);
    if named.is_dir() {
        if config.symlink_metadata().is_ok() {
            let error = regular::open(&config).err()?;
            return Some(UsageError(format!("could not read `{}`: {error}", config.display())).into());
        }
        // of another directory, that it holds no weights says less than that it is no run
        weights::files(named).ok()?;
    } else {
        let mut file = regular::open(named).ok()?;
        let is_called_so = named.extension().is_some_and(|extension| extension == "safetensors");
        match weights::contents(named, &mut file) {
            Err(problem) => return malformed(problem),
            Ok(None) if is_called_so => return malformed(weights::NONE.to_owned()),
            Ok(None) => return None,
            Ok(Some(_)) => {}
        }
    }
    match weights::stated(named) {
        Err(Unreadable { file, problem }) => {
            Some(UsageError(format!("`{}` cannot be used: {problem}", file.display())).into())
        }
        Ok(None) => {
            let named = named.display();
            let message = format!("`{named}` has no config.json beside it, which says what model it is");
            Some(UsageError(message).into())
        }
        Ok(Some(_)) => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_deleted_before_it_is_read_is_looked_for_again() {
        let there = tempfile::NamedTempFile::new().expect("a file");
        let gone = || there.path().with_extension("gone");
        let tries = |paths: Vec<PathBuf>| {
            let mut tried = 0;
            let ended = retrying(|| {
                let path = paths[tried.min(paths.len() - 1)].clone();
                tried += 1;
                let read = std::fs::read(&path).map(|_| ()).map_err(anyhow::Error::from);
                Ok((path, read))
            });
            (ended.is_ok(), tried)
        };
        assert_eq!(tries(vec![there.path().into()]), (true, 1));
        assert_eq!(tries(vec![gone(), gone(), there.path().into()]), (true, 3));
        assert_eq!(tries(vec![gone()]), (false, ATTEMPTS), "not for ever");
        // what is there and cannot be read is no other one later
        let dir = tempfile::tempdir().expect("a directory");
        assert_eq!(tries(vec![dir.path().into()]), (false, 1));
    }
}
