//! What the evaluations of a run measure besides `val_loss`, and the columns of `val.csv` that hold it.

use super::ending::UsageError;
use super::inputs::{self, Data, Limits};
use super::{missing, task_names};
use crate::data::{self, DataError, Dataset, Tokenizer};
use crate::eval::{self, Definition, EvalError, Kind, Tally, Task};
use crate::plan::Plan;
use crate::recipe::{Diagnostics, EvalConfig, Missing, Resolved};
use crate::regular::Looked;
use crate::run::RunRecord;
use crate::run::columns::NAMED_SET;
use crate::run::record::{digest_of_set, digest_of_task, is_of_task};
use crate::train::Measured;
use crate::wording::task_name;
use std::collections::BTreeMap;
use std::iter;
use std::path::{Path, PathBuf};

/// The key of the file whose scores are called `hellaswag`.
const HELLASWAG: &str = "eval.hellaswag";
/// The key of all other files.
const TASKS: &str = "eval.tasks";
/// After so many files that are no tasks, no more are read.
const MOST_PROBLEMS: usize = 1000;
/// What HellaSwag's scores begin with.
const NAME: &str = "hellaswag";

/// What is wrong with a file or a pattern, and what to do.
type Fault = (String, Vec<String>);

/// The tasks that a recipe's evaluations score.
#[derive(Debug, Default)]
pub struct Tasks {
    /// Those whose files are there, HellaSwag first.
    pub found: Vec<Task>,
    /// Files that are not there and may be missing, with the keys that name them.
    pub skipped: Vec<(&'static str, PathBuf)>,
}

impl Tasks {
    /// Reads the files that a recipe names, for a model with these limits.
    ///
    /// # Errors
    /// Every file that is not there and must be, or holds no task; two tasks of one name; and a pattern that leads past
    /// too many names or to a directory that cannot be read.
    pub fn open(resolved: &Resolved, tokenizer: &Tokenizer, limits: Limits) -> Result<Self, Diagnostics> {
        let recipe = &resolved.recipe;
        let EvalConfig { every, hellaswag, tasks, missing, .. } = &recipe.eval;
        let mut all = Self::default();
        if *every == 0 || recipe.data.val.is_empty() && recipe.data.val_fraction.is_none() {
            return Ok(all);
        }
        let mut problems = Diagnostics::default();
        let complain = |problems: &mut Diagnostics, key, (message, help): Fault| {
            problems.append(resolved.complain_at_length(key, &format!("{key}: {message}"), help));
        };
        let first = hellaswag.iter().map(|path| (HELLASWAG, NAME.to_owned(), path.clone()));
        let others = expanded(tasks).unwrap_or_else(|error| {
            complain(&mut problems, TASKS, (error.to_string(), Vec::new()));
            Vec::new()
        });
        let others = others.into_iter().map(|path| (TASKS, task_name(&path), path));
        for (key, name, path) in first.chain(others) {
            if problems.len() >= MOST_PROBLEMS {
                // a pattern may match any number of files that are no tasks
                break;
            }
            if !path.exists() && *missing == Missing::Skip {
                all.skipped.push((key, path));
                continue;
            }
            match all.load(key, &name, &path, tokenizer, limits) {
                Ok(task) => all.found.push(task),
                Err(fault) => complain(&mut problems, key, fault),
            }
        }
        if problems.is_empty() { Ok(all) } else { Err(problems) }
    }

    /// The task of a file.
    fn load(
        &self,
        key: &str,
        name: &str,
        path: &Path,
        tokenizer: &Tokenizer,
        Limits { block_size, vocab_size }: Limits,
    ) -> Result<Task, Fault> {
        let shown = inputs::relative(&path.display().to_string());
        if !path.exists() {
            let help = missing::help(&DataError::Missing { path: path.to_owned() });
            let skip = "eval.missing = \"skip\" trains without it".to_owned();
            return Err((format!("there is no `{shown}`"), help.into_iter().chain([skip]).collect()));
        }
        if key == TASKS && name == NAME || self.found.iter().any(|task| task.name == name) {
            let message = format!("`{shown}` would be a second task called `{name}`");
            return Err((
                message,
                vec!["give the file another name: its columns are called after it".to_owned()],
            ));
        }
        if let Err(reason) = task_names::check(name) {
            let help = "give the file another name: its columns are called after it".to_owned();
            return Err((format!("`{shown}`: {reason}"), vec![help]));
        }
        let limits = eval::Limits { block_size, vocab_size };
        let plain = |error: EvalError| (error.to_string(), Vec::new());
        let task = Task::load(path, name, Definition::PerToken, tokenizer, limits).map_err(plain)?;
        if key == HELLASWAG && task.kind != Kind::Choice {
            let message =
                format!("`{shown}` holds {}, and not HellaSwag's multiple choice", task.kind.words());
            return Err((message, vec![format!("name it in {TASKS}")]));
        }
        Ok(task)
    }

    /// The names of the columns of the tasks that are there.
    fn columns(&self) -> Vec<String> {
        let none = Tally::default();
        self.found.iter().flat_map(|task| none.scores(task)).map(|score| score.name).collect()
    }
}

/// The files of the entries of `eval.tasks`: those that a pattern matches, in order, or the one that an entry names.
fn expanded(entries: &[String]) -> Result<Vec<PathBuf>, DataError> {
    let mut looked = Looked::default();
    let mut files = Vec::new();
    for entry in entries {
        match data::named_or_matching(entry, &mut looked) {
            Ok(paths) => files.extend(paths),
            // which is said to be missing, or skipped
            Err(DataError::NoMatch { .. } | DataError::BadPattern { .. }) => files.push(entry.into()),
            Err(error) => return Err(error),
        }
    }
    Ok(files)
}

/// The names of the columns that the evaluations of a run fill behind `val_loss`.
pub(super) fn columns(data: &Data) -> Vec<String> {
    let sets = data.val_sets().into_iter().map(|(name, _)| format!("{NAMED_SET}{name}"));
    sets.chain(data.tasks.columns()).collect()
}

/// The losses of a run that are of other tokens where rows have another length, by the names of their columns, that of
/// training among them.
pub(super) fn by_row(data: &Data, plan: &Plan) -> Vec<String> {
    let rows = iter::once(plan.eval_rows).chain(plan.eval_others.iter().copied());
    let block_size = plan.sizes.block_size();
    let in_rows = data.train.rows() * block_size;
    let of_train = is_much(data.train.tokens() - in_rows, in_rows).then(|| "loss".to_owned());
    let mut columns = Vec::from_iter(of_train);
    for (place, ((name, set), rows)) in data.validation().zip(rows).enumerate() {
        if is_by_row(set, rows as u64 * block_size, block_size) {
            columns.extend((place == 0).then(|| "val_loss".to_owned()));
            columns.extend(name.map(|name| format!("{NAMED_SET}{name}")));
        }
    }
    columns
}

/// Whether the first so many tokens of a set that are read in rows are others where rows have another length: files
/// that are short leave out much.
pub(super) fn is_by_row(set: &Dataset, tokens: u64, block_size: u64) -> bool {
    is_much(set.passed_over(tokens.div_ceil(block_size)), tokens)
}

/// Whether so many tokens beside others, more than one in twenty, can make their mean loss another one.
pub(super) fn is_much(tokens: u64, beside: u64) -> bool {
    tokens.saturating_mul(20) > beside
}

/// What an evaluation has measured besides `val_loss`, by the names of the [`columns`] and in their order.
pub(super) fn values(data: &Data, measured: &Measured) -> Vec<(String, f64)> {
    let losses = data.val_sets().into_iter();
    let losses = losses.map(|(name, place)| (format!("{NAMED_SET}{name}"), measured.losses[place]));
    let scores = data.tasks.found.iter().zip(&measured.tallies).flat_map(|(task, tally)| tally.scores(task));
    losses.chain(scores.map(|score| (score.name, score.value))).collect()
}

/// The cells of the values: the shortest spelling of each number in fp32.
pub(super) fn cells(values: &[(String, f64)]) -> Vec<String> {
    values.iter().map(|(_, value)| (*value as f32).to_string()).collect()
}

/// The digests of the tasks that a run was scored on, among those of its record.
pub(super) fn digests(before: &BTreeMap<String, String>) -> BTreeMap<String, String> {
    let earlier = before.iter().filter(|(name, _)| is_of_task(name));
    earlier.map(|(name, digest)| (name.clone(), digest.clone())).collect()
}

/// The digests of the sets of validation data under the names that a record has for them; none for a single set.
pub(super) fn digests_of_sets(data: &Data) -> Vec<(String, String)> {
    let named = data.validation().filter(|_| !data.val_others.is_empty());
    named.filter_map(|(name, set)| Some((digest_of_set(name?), set.digest()))).collect()
}

/// Notes the digests of the tasks that are scored now. Whether one was not noted before.
pub(super) fn note_tasks(data: &Data, digests: &mut BTreeMap<String, String>) -> bool {
    let known = digests.len();
    for task in &data.tasks.found {
        digests.entry(digest_of_task(&task.name)).or_insert_with(|| task.digest());
    }
    digests.len() > known
}

/// The tasks of a recipe that its run, of which this is the record, was not scored on.
pub(super) fn unscored<'d>(record: &RunRecord, data: &'d Data) -> Vec<&'d str> {
    let names = data.tasks.found.iter().map(|task| task.name.as_str());
    names.filter(|name| !record.digests.contains_key(&digest_of_task(name))).collect()
}

/// Checks that the tasks of a run have the examples that they had before: a column of `val.csv` is of one task.
///
/// # Errors
/// [`UsageError`] names the task.
pub(super) fn check_tasks(run: &Path, record: Option<&RunRecord>, data: &Data) -> Result<(), UsageError> {
    let Some(record) = record else { return Ok(()) };
    let differs = |task: &&Task| {
        let before = record.digests.get(&digest_of_task(&task.name));
        before.is_some_and(|before| *before != task.digest())
    };
    let Some(task) = data.tasks.found.iter().find(differs) else { return Ok(()) };
    Err(UsageError(format!(
        "{}: the examples of the task `{}` are others than those that the run has been evaluated on: bring the file \
         back, give the other one another name, or start over with --fresh",
        run.display(),
        task.name
    )))
}
