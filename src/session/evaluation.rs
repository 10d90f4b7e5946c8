//! Evaluating models: runs, checkpoints and weights from elsewhere, on data and tasks. A run that trains at the moment
//! is read as any other, without its lock.

use super::audience::{Audience, Silence};
use super::ending::UsageError;
pub use super::evaluated::{Evaluated, LossOn, OfRun, TaskScores, no_run};
use super::inputs::{self, Limits};
use super::measured;
use super::model::{self, Model, Options, Source};
use super::seen::TrainingData;
use crate::data::{Dataset, OpenOptions, Progress, TokenStream, Tokenizer, origin, vocabulary};
use crate::engine::EngineError;
use crate::eval::{self, Definition, EvalError, Kind, Passes, Share, Tally, Task};
use crate::recipe::{DataConfig, Overrides, load};
use crate::regular;
use crate::run::checkpoint::{self, CheckpointState};
use crate::run::named::own;
use crate::run::record::TrainedBefore;
use crate::run::{RunError, RunRecord, dir};
use anyhow::Context;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};

/// A file of examples and what its scores are called.
#[derive(Debug, Clone)]
pub struct TaskFile {
    /// The name that its scores begin with.
    pub name: String,
    /// The file.
    pub path: PathBuf,
    /// What it must hold, with the option that takes the other kind; `None` for either.
    pub wanted: Option<(Kind, &'static str)>,
}

/// What is evaluated, and how.
pub struct Request<'a> {
    /// Files of tokens or text; none for the run's own validation data.
    pub data: &'a [String],
    /// No more than so many tokens of the data.
    pub tokens: Option<u64>,
    /// Tasks.
    pub tasks: &'a [TaskFile],
    /// Whether multiple choice is scored by lm-evaluation-harness's definition too.
    pub lm_eval: bool,
    /// What computes it; `block_size` and `mode` are settled here.
    pub options: Options,
    /// Where runs and their cache are kept.
    pub runs_dir: &'a Path,
    /// Is told about long passes over files.
    pub progress: &'a dyn Progress,
    /// Is told where the work stands.
    pub tell: &'a dyn Fn(&Working),
}

/// Where the work stands.
#[derive(Debug, Clone, Copy)]
pub struct Working<'a> {
    /// The model's name.
    pub model: &'a str,
    /// The task's name, or `loss`.
    pub what: &'a str,
    /// Forward passes.
    pub passes: Passes,
}

/// The sources of all checkpoints of a run, oldest first; a checkpoint that is not whole is named to `left_out`.
///
/// # Errors
/// [`RunError`] where the name leads to no run; [`UsageError`] for weights from elsewhere.
pub fn all_checkpoints(
    named: &Path,
    runs_dir: &Path,
    mut left_out: impl FnMut(&Path, &RunError),
) -> anyhow::Result<Vec<Source>> {
    let Source::Run { run, .. } = Source::find(named, runs_dir, &Silence)? else {
        let message = format!("--all-checkpoints takes runs, but `{}` is none", named.display());
        return Err(UsageError(message).into());
    };
    let mut sources = Vec::new();
    for (_, path) in checkpoint::list(&run)? {
        match checkpoint::verify_model(&path).and_then(|()| own(&path)) {
            Ok(()) => sources.push(Source::Checkpoint(path)),
            Err(error) => left_out(&path, &error),
        }
    }
    Ok(sources)
}

/// Evaluates the model that a path or the beginning of a run's name stands for.
///
/// # Errors
/// As of [`evaluate`], and where nothing has the name.
pub fn evaluate_named(
    named: &Path,
    request: &Request,
    tasks: &mut Tasks,
    audience: &dyn Audience,
) -> anyhow::Result<Evaluated> {
    Source::with(named, request.runs_dir, audience, |source| evaluate(source, request, tasks, audience))
}

/// The tasks of a request as they were encoded for models so far.
#[derive(Default)]
pub struct Tasks {
    encoded: Option<(Tokenizer, eval::Limits, Vec<Task>)>,
}

impl Tasks {
    /// The tasks for a model.
    fn of(
        &mut self,
        request: &Request,
        tokenizer: &Tokenizer,
        limits: eval::Limits,
    ) -> anyhow::Result<&[Task]> {
        if self.encoded.as_ref().is_none_or(|(t, l, _)| t != tokenizer || *l != limits) {
            let mut tasks = Vec::new();
            for TaskFile { name, path, wanted } in request.tasks {
                let load = |definition| Task::load(path, name, definition, tokenizer, limits);
                let task = load(Definition::PerToken)?;
                if let Some((wanted, option)) = *wanted
                    && task.kind != wanted
                {
                    let (found, wanted, path) = (task.kind.words(), wanted.words(), path.clone());
                    return Err(EvalError::Kind { path, found, wanted, option }.into());
                }
                let again = request.lm_eval && task.kind == Kind::Choice;
                tasks.push(task);
                if again {
                    tasks.push(load(Definition::LmEval)?);
                }
            }
            self.encoded = Some((tokenizer.clone(), limits, tasks));
        }
        Ok(self.encoded.as_ref().map_or(&[], |(_, _, tasks)| tasks))
    }
}

/// Evaluates a model.
///
/// # Errors
/// Where a task, the data, the weights, the device or the memory is not there for it; [`UsageError`] if there is
/// nothing to evaluate.
pub fn evaluate(
    source: Source,
    request: &Request,
    tasks: &mut Tasks,
    audience: &dyn Audience,
) -> anyhow::Result<Evaluated> {
    let dims = source.dims()?;
    let limits = eval::Limits { block_size: dims.block_size, vocab_size: dims.vocab_size };
    // the data may say what nothing beside the weights does
    let known = match source.known_tokenizer(dims.vocab_size)? {
        None => vocabulary::stated(request.data)?.map(|stated| stated.tokenizer),
        known => known,
    };
    let encoder = known.as_ref().unwrap_or(Tokenizer::gpt2());
    let data = open_data(&source, request, encoder, limits)?;
    let unknown_tokens = known.is_none().then(|| source.of_unknown_tokens(dims.vocab_size));
    let tasks = tasks.of(request, encoder, limits)?;
    if data.is_empty() && tasks.is_empty() {
        let message = format!(
            "there is nothing to evaluate `{}` on: name data with --data, or a task with --hellaswag, --lambada or \
             --tasks",
            source.weights().display()
        );
        return Err(UsageError(message).into());
    }
    let options = Options { block_size: dims.block_size, ..request.options };
    let Model { mut engine, source, state, .. } = model::open_source(source, &options, audience)?;
    let (name, run) = identity(&source, state.as_ref());
    let working = |what| {
        let model = name.as_str();
        move |passes| {
            (request.tell)(&Working { model, what, passes });
            Ok::<_, EngineError>(ControlFlow::Continue(()))
        }
    };
    let mut evaluated = Evaluated {
        model: name.clone(),
        run,
        unknown_tokens,
        loss: None,
        others: Vec::new(),
        tasks: Vec::new(),
    };
    for OwnData { name, set, files, tokens, is_whole, of_rows, is_seen } in &data {
        let stream = TokenStream::new(set, 0, false);
        let shape = (options.micro_batch, dims.block_size);
        let loss =
            eval::data_loss(engine.as_mut(), &stream, known.as_ref(), *tokens, shape, working("loss"))?;
        // what was read must be what was opened
        set.check()?;
        let (data, digest) = (files.clone(), set.digest());
        let tokenizer = known.as_ref().map(Tokenizer::kind);
        let (is_whole, of_rows, is_seen) = (*is_whole, *of_rows, *is_seen);
        let on = loss.map(|loss| LossOn { data, digest, tokenizer, loss, is_whole, of_rows, is_seen });
        match name {
            Some(name) => evaluated.others.extend(on.map(|on| (name.clone(), on))),
            None => evaluated.loss = on,
        }
    }
    for task in tasks {
        let of_task = working(&task.name);
        let scored = eval::score(engine.as_mut(), task, options.micro_batch, Share::ALL, of_task)?;
        let tally = Tally::of(task, &scored.unwrap_or_default());
        let (name, definition, cut) = (task.name.clone(), task.definition, task.cut);
        let (scores, block_size) = (tally.scores(task), limits.block_size);
        let (prefix, digest) = (task.prefix(), task.digest());
        evaluated.tasks.push(TaskScores { name, prefix, digest, definition, scores, tally, cut, block_size });
    }
    Ok(evaluated)
}

/// What a model is called, and of which run and step it is.
fn identity(source: &Source, state: Option<&CheckpointState>) -> (String, Option<OfRun>) {
    let Some((run, state)) = source.run().zip(state) else {
        return (source.weights().display().to_string(), None);
    };
    let CheckpointState { step, tokens, .. } = *state;
    let whole = std::path::absolute(run).unwrap_or_else(|_| run.to_owned());
    let name = whole.file_name().map_or_else(String::new, |name| name.to_string_lossy().into_owned());
    (name, Some(OfRun { run: run.to_owned(), step, tokens }))
}

/// Data that a model's loss is computed on.
struct OwnData {
    /// Of a set beside the one that decides.
    name: Option<String>,
    set: Dataset,
    files: Vec<String>,
    tokens: u64,
    /// Whether these are nearly all tokens of the set.
    is_whole: bool,
    /// Tokens of a row, where their number decides which tokens these are.
    of_rows: Option<usize>,
    /// Whether the model is known to have been trained on some of them.
    is_seen: bool,
}

impl OwnData {
    /// The rows that the tokens are in.
    fn rows(&self, block_size: usize) -> u64 {
        self.tokens.div_ceil(block_size as u64)
    }
}

/// The data of the request, or the validation data of the run's recipe, as far as the run itself reads them: the set
/// that decides what is best first.
fn open_data(
    source: &Source,
    request: &Request,
    tokenizer: &Tokenizer,
    eval::Limits { block_size, vocab_size }: eval::Limits,
) -> anyhow::Result<Vec<OwnData>> {
    let cache = &inputs::cache(request.runs_dir);
    let (progress, asked) = (request.progress, request.tokens);
    if !request.data.is_empty() {
        check_tokenizer(source, request.data, tokenizer)?;
        let options = OpenOptions { block_size, vocab_size, tokenizer, cache, progress };
        let set = Dataset::open(request.data, options).context("--data")?;
        let record = source.run().and_then(|run| RunRecord::read(run).ok().flatten());
        let trained_on = TrainingData::of(source, record.as_ref());
        let origins = origin::origins(request.data);
        let part = part(None, set, request.data.to_vec(), (asked, None), block_size)?;
        let is_seen = trained_on.has_some_of(&part.set, part.rows(block_size), &origins, true);
        return Ok(vec![OwnData { is_seen, ..part }]);
    }
    let Some(run) = source.run() else { return Ok(Vec::new()) };
    let file = run.join(dir::RECIPE);
    regular::refuse_link(&file).with_context(|| format!("could not read `{}`", file.display()))?;
    let resolved = load(&file, &Overrides::default())?;
    let recipe = &resolved.recipe;
    let limits = Limits { block_size, vocab_size };
    let sets = inputs::open_validation(&recipe.data, tokenizer, limits, cache, progress)
        .map_err(|errors| errors.at_their_keys(&resolved))?;
    check_contents(source, &recipe.data, &sets)?;
    let own = if recipe.data.val.is_empty() { &recipe.data.train[..] } else { &recipe.data.val[..] };
    check_tokenizer(source, own, tokenizer)?;
    let (main, others) = recipe.data.validation_sets();
    let mut files = vec![main.1];
    files.extend(others.iter().map(|(_, files)| *files));
    let shown = |files: &[String]| match recipe.data.val_fraction {
        None => files.iter().map(|name| inputs::relative(name)).collect(),
        Some(fraction) => vec![format!("the last {fraction} of data.train")],
    };
    let own = Some(recipe.eval_tokens());
    let record = RunRecord::read(run)?.unwrap_or_default();
    let trained_on = TrainingData::of(source, Some(&record));
    let is_only_before = sets.len() == 1 && record.trained_before == Some(TrainedBefore::ValidationData);
    let is_among = |sets: &[String], name: Option<&String>| name.is_some_and(|name| sets.contains(name));
    let is_known = |name: Option<&String>| {
        let is_of_run = match &record.trains_on_sets[..] {
            // a single set, or one of those of an earlier version
            [] => record.trains_on_validation,
            sets => is_among(sets, name),
        };
        is_of_run && trained_on.has_own || is_only_before || is_among(&record.trained_before_sets, name)
    };
    // a part that is split off is of files that are trained on
    let is_apart = recipe.data.val_fraction.is_none();
    let origins = origin::origins(if is_apart { &recipe.data.val[..] } else { &recipe.data.train[..] });
    let parts = sets.into_iter().zip(files).zip(0..).map(|(((name, set), files), place)| {
        let is_known = is_known(name.as_ref());
        let part = part(name.filter(|_| place > 0), set, shown(files), (asked, own), block_size)?;
        let rows = part.rows(block_size);
        // what is known of all is not known of the first rows
        let is_seen = is_known && rows >= part.set.rows()
            || trained_on.has_some_of(&part.set, rows, &origins, is_apart);
        Ok(OwnData { is_seen, ..part })
    });
    parts.collect()
}

/// Checks that validation data are what the run itself read when it saved the checkpoint: where they are not, what is
/// there now may be what it was trained on.
fn check_contents(
    source: &Source,
    config: &DataConfig,
    sets: &[(Option<String>, Dataset)],
) -> anyhow::Result<()> {
    let others = sets.iter().skip(1).map(|(name, set)| (name.as_deref().unwrap_or_default(), set));
    let found = inputs::digest_of_sets(sets.first().map(|(_, main)| main), others);
    let state = CheckpointState::read(source.weights())?;
    if state.data_digests.get("val").is_none_or(|own| *own == found) {
        return Ok(());
    }
    let key = if config.val_fraction.is_some() { "data.train" } else { "data.val" };
    let message = format!(
        "the validation data of `{}` have changed since the run read them: bring back the contents of `{key}`, or name \
         what is to be evaluated with --data",
        source.run().unwrap_or(source.weights()).display()
    );
    Err(UsageError(message).into())
}

/// Checks that files of tokens were made by the model's tokenizer, as far as they say.
fn check_tokenizer(source: &Source, data: &[String], tokenizer: &Tokenizer) -> anyhow::Result<()> {
    let Some(stated) = vocabulary::stated(data)?.filter(|stated| stated.tokenizer != *tokenizer) else {
        return Ok(());
    };
    let message = format!(
        "the tokens of the data stand for something else than the model's: by `{}` they are {}, but those of `{}` are \
         {}",
        stated.file.display(),
        stated.tokenizer.kind(),
        source.weights().display(),
        tokenizer.kind()
    );
    Err(UsageError(message).into())
}

/// As many tokens of a set as were `asked` for, or else as the run reads; all of them where nothing is said.
fn part(
    name: Option<String>,
    set: Dataset,
    files: Vec<String>,
    (asked, own): (Option<u64>, Option<u64>),
    block_size: usize,
) -> anyhow::Result<OwnData> {
    let held = set.rows() * block_size as u64;
    // of the run's other sets, as much as they have
    if let Some(asked) = asked.filter(|&asked| asked > held && name.is_none()) {
        let error = format!("--tokens {asked} is more than the {held} tokens in whole rows of the data");
        return Err(UsageError(error).into());
    }
    let tokens = asked.or(own).map_or(held, |wanted| wanted.min(held));
    let of_rows = measured::is_by_row(&set, tokens, block_size as u64).then_some(block_size);
    let is_whole = tokens == held && !measured::is_much(set.tokens() - held, held);
    Ok(OwnData { name, set, files, tokens, is_whole, of_rows, is_seen: false })
}
