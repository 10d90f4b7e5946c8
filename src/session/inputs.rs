//! The data and weights that a recipe reads.

use super::audience::{Audience, Event};
use super::begun::Begun;
pub use super::encoded::cache;
use super::measured::Tasks;
use super::missing;
pub use super::relative::relative;
use super::start::Start;
use super::unusable::check_vocabulary;
pub use super::unusable::{InputError, InputErrors};
use crate::data::origin::{self, Origins};
use crate::data::{self, DataError, Dataset, OpenOptions, TokenStream, Tokenizer, mixture, vocabulary};
use crate::eval::Task;
use crate::plan::{Before, DataSize, SetSize, SourceSize, TaskSize};
use crate::recipe::keys::INIT_FROM;
use crate::recipe::{DataConfig, DataDigests, Diagnostics, Resolved};
use crate::regular;
use crate::run::RunError;
use crate::run::find::RUNS_DIR;
use crate::train::Rows;
use std::path::Path;

/// Training and validation data.
pub struct Data {
    /// What is trained on.
    pub train: Dataset,
    /// What is validated on, if anything: the set that decides what is best.
    pub val: Option<Dataset>,
    /// Its name, where sets have names.
    pub val_name: Option<String>,
    /// The other sets of validation data with their names.
    pub val_others: Vec<(String, Dataset)>,
    /// The tasks that evaluations score.
    pub tasks: Tasks,
    /// Digests of both, and of the initial weights.
    pub digests: DataDigests,
    /// The digest of the training data with the part that is validated on, where that is cut off.
    pub(super) uncut: Option<String>,
    /// What the files that are named as training and as validation data were prepared from.
    pub(super) origins: [Origins; 2],
    /// What the run begins from.
    pub start: Start,
    /// What the tokens stand for.
    pub tokenizer: Tokenizer,
}

/// Opens and checks everything that a recipe reads. [`cache`] keeps encoded texts. What the recipe's run has begun
/// from may be gone, unless the run is to start `fresh`.
///
/// # Errors
/// What the data itself lacks is a problem of the recipe's key that names it.
pub fn open(
    resolved: &Resolved,
    runs_dir: &Path,
    fresh: bool,
    audience: &dyn Audience,
) -> anyhow::Result<Data> {
    let sets = open_sets(resolved, runs_dir, audience.progress());
    let unended = sets.as_ref().ok().filter(|_| !fresh);
    if let Some(begun) = unended.and_then(|data| Begun::unended(resolved, data, runs_dir)) {
        return Ok(sets?.begun(begun));
    }
    let start = Start::find(resolved, sets.as_ref().ok(), runs_dir, audience);
    match (sets, start) {
        (Ok(data), Ok((start, digest))) => {
            let digests = DataDigests { init_from: digest, ..data.digests };
            Ok(Data { start, digests, ..data })
        }
        (Ok(data), Err(error)) => match Begun::find(resolved, &data, runs_dir).filter(|_| !fresh) {
            Some(begun) => Ok(data.begun(begun)),
            None => Err(error),
        },
        (Err(error), Ok(_)) => Err(error),
        // what is wrong with both is told at once, if both are mistakes of the recipe
        (Err(sets), Err(start)) => {
            let mut problems = sets.downcast::<Diagnostics>()?;
            match start.downcast::<Diagnostics>() {
                Ok(more) => problems.append(more),
                Err(error) if error.downcast_ref().is_some_and(RunError::is_usage) => {
                    problems.append(resolved.complain(INIT_FROM, &format!("{error:#}"), ""));
                }
                Err(_) => {}
            }
            Err(problems.into())
        }
    }
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
    let cache = cache(runs_dir);
    let (block_size, vocab_size) = (model.block_size, model.vocab_size);
    let limits = Limits { block_size, vocab_size };
    let config = &resolved.recipe.data;
    let mut data = Data::open(config, limits, &cache, progress).map_err(|errors| {
        // tokens that the model does not have may be those of other data
        let other = tokenizer(config).ok().and_then(|now| check_vocabulary(resolved, &now).err());
        other.unwrap_or_else(|| errors.at_their_keys(resolved))
    })?;
    check_vocabulary(resolved, &data.tokenizer)?;
    data.tasks = Tasks::open(resolved, &data.tokenizer, limits)?;
    Ok(data)
}

/// What a model takes.
#[derive(Debug, Clone, Copy)]
pub struct Limits {
    /// Tokens per sequence.
    pub block_size: usize,
    /// Number of token ids.
    pub vocab_size: usize,
}

/// Opens and checks the validation data of a recipe, whose texts the tokenizer encodes: its sets with their names, the
/// one that decides what is best first. Where they are a part of the training data, those are opened.
///
/// # Errors
/// What is wrong with them.
pub fn open_validation(
    config: &DataConfig,
    tokenizer: &Tokenizer,
    limits: Limits,
    cache: &data::Cache,
    progress: &dyn data::Progress,
) -> Result<Vec<(Option<String>, Dataset)>, InputErrors> {
    if config.val_fraction.is_some() {
        let part = Data::open(config, limits, cache, progress)?.val;
        return Ok(part.into_iter().map(|set| (None, set)).collect());
    }
    if config.val.is_empty() {
        return Ok(Vec::new());
    }
    let Limits { block_size, vocab_size } = limits;
    let options = OpenOptions { block_size, vocab_size, tokenizer, cache, progress };
    let at = |error| InputError { key: "data.val", error };
    let open = |name: Option<&str>, files: &[String]| {
        Ok((
            name.map(str::to_owned),
            Dataset::open(files, options).map_err(|error| InputErrors(vec![at(error)]))?,
        ))
    };
    let ((main, files), others) = config.validation_sets();
    let others = others.into_iter().map(|(name, files)| open(Some(name), files));
    std::iter::once(open(main, files)).chain(others).collect()
}

/// What the tokens of a recipe's data stand for.
///
/// # Errors
/// What keeps a text or a file beside the shards from being read.
pub fn tokenizer(config: &DataConfig) -> Result<Tokenizer, DataError> {
    vocabulary::tokenizer(config.tokenizer, &[&config.train[..], &config.val[..]].concat())
}

/// Tells of files among a recipe's data that a finished set beside them does not have, and of those that it has lost.
pub fn tell_of_discrepancies(config: &DataConfig, audience: &dyn Audience) {
    for discrepant in vocabulary::discrepancies(&[&config.train[..], &config.val[..]].concat()) {
        audience.tell(Event::Discrepant(&discrepant));
    }
}

/// Tells of what other users have put where nobody named it: the directory of runs, and data where a recipe that the
/// program carries looks for them.
pub(super) fn tell_of_neighbours(resolved: &Resolved, runs_dir: &Path, audience: &dyn Audience) {
    let user = regular::another_owner(runs_dir).filter(|_| runs_dir == Path::new(RUNS_DIR));
    if let Some(user) = user {
        audience.tell(Event::RunsOfAnother { path: runs_dir, user });
    }
    if let Some((path, user)) = missing::of_another(resolved) {
        audience.tell(Event::DataOfAnother { path: &path, user });
    }
}

/// Names the key of the recipe that weights are named by.
pub(super) fn of_init_from(error: RunError) -> anyhow::Error {
    anyhow::Error::from(error).context(INIT_FROM)
}

impl Data {
    /// For a run that goes on without what it began from.
    pub(super) fn begun(self, begun: Begun) -> Self {
        let note = begun.line();
        let start = Start::Own { named: Some(begun.named), before: begun.before, note };
        self.begun_from(begun.digest, start)
    }

    /// For a run that has begun from what has this digest, whose own recipe is at hand.
    pub(super) fn resumed(self, digest: String) -> Self {
        let start = Start::Own { named: None, before: Before::default(), note: None };
        self.begun_from(digest, start)
    }

    fn begun_from(mut self, digest: String, start: Start) -> Self {
        (self.start, self.digests.init_from) = (start, Some(digest));
        self
    }

    /// Opens and checks the files that `config` names.
    ///
    /// # Errors
    /// What is wrong with them, and whether they are for training or for validation: all that names nothing or, if
    /// everything is there, the first fault of each set.
    pub fn open(
        config: &DataConfig,
        limits: Limits,
        cache: &data::Cache,
        progress: &dyn data::Progress,
    ) -> Result<Self, InputErrors> {
        let at = |key| move |error| InputError { key, error };
        let missing = |key, named: &[String]| Dataset::missing(named).into_iter().map(at(key));
        let problems = missing("data.train", &config.train).chain(missing("data.val", &config.val));
        let problems: Vec<_> = problems.collect();
        if !problems.is_empty() {
            return Err(InputErrors(problems));
        }
        let tokenizer =
            tokenizer(config).map_err(at("data.train")).map_err(|error| InputErrors(vec![error]))?;
        let Limits { block_size, vocab_size } = limits;
        let options = OpenOptions { block_size, vocab_size, tokenizer: &tokenizer, cache, progress };
        let open = |key, named: &[String]| Dataset::open(named, options).map_err(at(key));
        let train = match config.train.mixture() {
            Some(parts) => Dataset::open_mixture(&parts, options).map_err(at("data.train")),
            None => open("data.train", &config.train),
        };
        let ((val_name, main), others) = config.validation_sets();
        let val = (!main.is_empty()).then(|| open("data.val", main)).transpose();
        let others = others.into_iter().map(|(name, files)| Ok((name.to_owned(), open("data.val", files)?)));
        let (train, val, val_others) = match (train, val, others.collect::<Result<Vec<_>, _>>()) {
            (Ok(train), Ok(val), Ok(others)) => (train, val, others),
            (train, val, others) => {
                let errors = [train.err(), val.err(), others.err()];
                return Err(InputErrors(errors.into_iter().flatten().collect()));
            }
        };
        let uncut = config.val_fraction.map(|_| train.digest());
        let (train, val) = match config.val_fraction {
            None => (train, val),
            Some(fraction) => {
                let split = train.split(fraction).map_err(at("data.val_fraction"));
                let (train, val) = split.map_err(|error| InputErrors(vec![error]))?;
                (train, Some(val))
            }
        };
        let digests = DataDigests {
            train: train.digest(),
            val: digest_of_sets(val.as_ref(), val_others.iter().map(|(name, set)| (name.as_str(), set))),
            init_from: None,
        };
        let val_name = val_name.map(str::to_owned);
        let (start, tasks) = (Start::Random, Tasks::default());
        // the part that is split off is of the files that are trained on
        let of_val = if config.val_fraction.is_some() { &config.train[..] } else { &config.val[..] };
        let origins = [&config.train[..], of_val].map(origin::origins);
        Ok(Self { train, origins, val, val_name, val_others, tasks, digests, uncut, start, tokenizer })
    }

    /// Checks that all that was read came from the files as they were when they were opened. With `contents`, files
    /// that are not big are read once more.
    ///
    /// # Errors
    /// What was changed, and whether it is for training or for validation.
    pub fn check(&self, contents: bool) -> Result<(), InputError> {
        let check = |set: &Dataset| if contents { set.check_contents() } else { set.check() };
        self.of_each(check)
    }

    /// Tells of a token outside the vocabulary that was read; costs next to nothing.
    ///
    /// # Errors
    /// The token and its place, and whether it is for training or for validation.
    pub fn outside(&self) -> Result<(), InputError> {
        self.of_each(Dataset::outside)
    }

    fn of_each(&self, check: impl Fn(&Dataset) -> Result<(), DataError>) -> Result<(), InputError> {
        check(&self.train).map_err(|error| InputError { key: "data.train", error })?;
        let mut val = self.validation().map(|(_, set)| check(set));
        val.find(Result::is_err).unwrap_or(Ok(())).map_err(|error| InputError { key: "data.val", error })
    }

    /// All sets of validation data with their names, the one that decides what is best first.
    pub fn validation(&self) -> impl Iterator<Item = (Option<&str>, &Dataset)> {
        let main = self.val.iter().map(|set| (self.val_name.as_deref(), set));
        main.chain(self.val_others.iter().map(|(name, set)| (Some(name.as_str()), set)))
    }

    /// The names of the sets of validation data that have one, in order, with their places in
    /// [`validation`](Self::validation).
    pub fn val_sets(&self) -> Vec<(&str, usize)> {
        let named = self.validation().zip(0..).filter_map(|((name, _), place)| Some((name?, place)));
        let mut named: Vec<_> = named.collect();
        named.sort_unstable();
        named
    }

    /// What the plan needs to know.
    pub fn size(&self) -> DataSize {
        let source = |source: &mixture::Source| SourceSize {
            name: relative(&source.name),
            share: source.share as f64 / mixture::PERIOD as f64,
            tokens: source.tokens,
            rows: source.rows.end - source.rows.start,
        };
        let task = |task: &Task| TaskSize {
            name: task.name.clone(),
            examples: task.examples.len() as u64,
            tokens: task.tokens(),
        };
        DataSize {
            sources: self.train.sources().iter().map(source).collect(),
            train_tokens: self.train.tokens(),
            train_rows: self.train.rows(),
            val_rows: self.val.as_ref().map_or(0, Dataset::rows),
            val_sets: (self.val_others.iter())
                .map(|(name, set)| SetSize { name: name.clone(), rows: set.rows() })
                .collect(),
            tasks: self.tasks.found.iter().map(task).collect(),
        }
    }
}

/// The digest of all sets of validation data, the one that decides what is best first; that of the one set where there
/// is one, and nothing where there is none.
pub(super) fn digest_of_sets<'a>(
    main: Option<&Dataset>,
    others: impl Iterator<Item = (&'a str, &'a Dataset)>,
) -> String {
    let Some(main) = main else { return String::new() };
    let mut others = others.peekable();
    if others.peek().is_none() {
        return main.digest();
    }
    let mut hasher = blake3::Hasher::new();
    hasher.update(main.digest().as_bytes());
    for (name, set) in others {
        hasher.update(format!("\n{name}={}", set.digest()).as_bytes());
    }
    hasher.finalize().to_hex().to_string()
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
