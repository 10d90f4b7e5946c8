//! The data and weights that a recipe reads.

use super::start::Start;
use crate::data::{self, DataError, Dataset, Format, OpenOptions, ShardInfo, TokenStream};
use crate::plan::DataSize;
use crate::plan::lints::{Shard, Shards};
use crate::recipe::{DataConfig, DataDigests, Resolved};
use crate::run::RunError;
use crate::train::Rows;
use std::path::{Path, PathBuf};

/// Training and validation data.
pub struct Data {
    /// What is trained on.
    pub train: Dataset,
    /// What is validated on, if anything.
    pub val: Option<Dataset>,
    /// Digests of both, and of the initial weights.
    pub digests: DataDigests,
    /// What the run begins from.
    pub start: Start,
}

/// Data that cannot be used, with the key that names it.
#[derive(Debug, thiserror::Error)]
#[error("{key}: {error}")]
pub struct InputError {
    /// `data.train` or `data.val`.
    pub key: &'static str,
    /// What is wrong.
    pub error: DataError,
}

impl InputError {
    /// A problem of the recipe, at the line that names the data; an encoded text that cannot be written is none.
    pub fn at_its_key(self, resolved: &Resolved) -> anyhow::Error {
        match self.error {
            DataError::Write { .. } => self.error.into(),
            // keys of a recipe and options may both name data; what a path is relative to is known here
            DataError::Missing { .. } => resolved
                .complain(self.key, &format!("{self}, which is relative to the file that names it"), "")
                .into(),
            _ => resolved.complain(self.key, &self.to_string(), "").into(),
        }
    }
}

/// Where encoded texts and checksums of files are kept, for all runs of a directory.
#[must_use]
pub fn cache_dir(runs_dir: &Path) -> PathBuf {
    runs_dir.join(".cache")
}

/// Opens and checks everything that a recipe reads. [`cache_dir`] keeps encoded texts.
///
/// # Errors
/// What the data itself lacks is a problem of the recipe's key that names it.
pub fn open(resolved: &Resolved, runs_dir: &Path, progress: &dyn data::Progress) -> anyhow::Result<Data> {
    let mut data = open_sets(resolved, runs_dir, progress)?;
    (data.start, data.digests.init_from) = Start::find(resolved, &data.train)?;
    Ok(data)
}

/// Opens the data of a recipe as [`open`] does, but leaves the initial weights alone, which another run may yet have
/// to make.
///
/// # Errors
/// What the data itself lacks is a problem of the recipe's key that names it.
pub fn open_sets(
    resolved: &Resolved,
    runs_dir: &Path,
    progress: &dyn data::Progress,
) -> anyhow::Result<Data> {
    let model = &resolved.recipe.model;
    let cache_dir = cache_dir(runs_dir);
    let (block_size, vocab_size) = (model.block_size, model.vocab_size);
    let options = OpenOptions { block_size, vocab_size, cache_dir: &cache_dir, progress };
    Data::open(&resolved.recipe.data, options).map_err(|error| error.at_its_key(resolved))
}

/// Names the key of the recipe that weights are named by.
pub(super) fn of_init_from(error: RunError) -> anyhow::Error {
    anyhow::Error::from(error).context("model.init_from")
}

impl Data {
    /// Opens and checks the files that `config` names.
    ///
    /// # Errors
    /// What is wrong with them, and whether they are for training or for validation.
    pub fn open(config: &DataConfig, options: OpenOptions) -> Result<Self, InputError> {
        let open =
            |key, named: &[String]| Dataset::open(named, options).map_err(|error| InputError { key, error });
        let train = open("data.train", &config.train)?;
        let val = if config.val.is_empty() { None } else { Some(open("data.val", &config.val)?) };
        let digests = DataDigests {
            train: train.digest(),
            val: val.as_ref().map(Dataset::digest).unwrap_or_default(),
            init_from: None,
        };
        Ok(Self { train, val, digests, start: Start::Random })
    }

    /// What the plan needs to know.
    pub fn size(&self) -> DataSize {
        DataSize {
            train_tokens: self.train.tokens(),
            train_rows: self.train.rows(),
            val_rows: self.val.as_ref().map_or(0, Dataset::rows),
        }
    }

    /// What lints compare.
    pub fn shards(&self) -> Shards {
        let shard = |info: &ShardInfo| {
            // generated texts of one seed begin alike, whatever their length
            let content = match info.format {
                Format::Builtin => info.name.split(",words").next().unwrap_or(&info.name).to_owned(),
                _ => info.digest.to_string(),
            };
            Shard { name: relative(&info.name), content }
        };
        let shards = |set: &Dataset| set.shards().map(shard).collect();
        Shards { train: shards(&self.train), val: self.val.as_ref().map(shards).unwrap_or_default() }
    }
}

impl Rows for TokenStream<'_> {
    fn fill(&self, first: u64, rows: usize, inputs: &mut [u32], targets: &mut [u32]) {
        TokenStream::fill(self, first, rows, inputs, targets);
    }

    fn locate(&self, row: u64) -> Option<String> {
        let (shard, token) = TokenStream::locate(self, row);
        Some(format!("{} from token {token} on", relative(shard)))
    }
}

/// Text in which the paths below the current directory are relative to it: recipes make the paths of data absolute.
pub fn relative(text: &str) -> String {
    match std::env::current_dir() {
        Ok(here) => text.replace(&format!("{}{}", here.display(), std::path::MAIN_SEPARATOR), ""),
        Err(_) => text.to_owned(),
    }
}
