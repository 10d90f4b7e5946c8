//! What a number was measured on. Two numbers that were measured on different data say nothing about which run is
//! better, so they are neither ranked nor averaged nor tested together.

use super::differences::meant;
use super::metrics::Metric;
use super::runs::Run;
use crate::run::column::Unit;
use crate::run::columns::{NAMED_SET, task_of};
use crate::run::evaluations::{self, BITS_PER_BYTE};
use crate::run::record::digest_of_task;
use crate::run::{RunStatus, dir};

/// What a metric of a run was measured on, as far as that is on record. Equal ones allow a comparison.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub struct Basis {
    /// Facts by what they are, in an order that depends on the metric alone.
    facts: Vec<(&'static str, Option<String>)>,
    /// Whether the contents are known by less than their digest, although they could be.
    is_vague: bool,
}

impl Basis {
    /// The basis of a metric of a run. It is empty for a metric that does not depend on data, such as a speed. All that
    /// evaluations give depends on theirs, and of what training gives the loss alone.
    #[must_use]
    pub fn of(run: &Run, metric: &Metric) -> Self {
        let metric = metric.measured();
        let mut basis = Self::of_contents(run, metric);
        if run.status == RunStatus::Finished
            && let Some(step) = run.results.earlier(&metric.name)
        {
            // the best ones of two runs can be compared, whenever each came
            let is_best = run.facts.best_step == Some(step);
            basis.facts.push((STEP, Some(if is_best { "best".to_owned() } else { step.to_string() })));
        }
        basis
    }

    fn of_contents(run: &Run, metric: &Metric) -> Self {
        match metric.log {
            dir::EVAL_CSV => {
                let mut basis = run.results.basis(&metric.name).cloned().unwrap_or_default();
                if task_of(&metric.column).is_none() && metric.column != BITS_PER_BYTE {
                    basis.facts.push(tokenizer(run));
                }
                basis
            }
            dir::VAL_CSV => Self::of_validation(run, &metric.column),
            _ if metric.unit == Unit::Loss => {
                let training = of_data(run, "data.train");
                Self { facts: vec![training, tokenizer(run)], is_vague: false }
            }
            _ => Self::default(),
        }
    }

    /// The basis of a column of `val.csv`.
    #[must_use]
    pub fn of_validation(run: &Run, column: &str) -> Self {
        let digest = |task: &str| run.facts.digests.get(&digest_of_task(task)).cloned();
        let is_one_of_several =
            || run.value("data.val").and_then(|sets| sets.as_object()).is_some_and(|sets| sets.len() > 1);
        let validation = of_data(run, "data.val");
        let main = run.value(MAIN).filter(|_| column == "val_loss" && is_one_of_several());
        let facts = match task_of(column) {
            Some(task) => vec![(EXAMPLES, digest(task))],
            None => vec![
                validation,
                tokenizer(run),
                (MAIN, main.map(ToString::to_string)),
                (TOKENS, evaluated(run, column)),
            ],
        };
        Self { facts, is_vague: false }
    }

    /// The basis of a column in a row of `eval.csv`, of which these are the cells of the columns [`TEXTS`].
    pub(super) fn of_row(column: &str, [data, tokens, measured]: [&str; 3]) -> Self {
        let known = evaluations::measured_on(measured, column);
        let text = |text: &str| Some(text.to_owned()).filter(|text| !text.is_empty());
        // earlier versions wrote the tokens of the loss alone
        let is_of_bytes =
            column == BITS_PER_BYTE && evaluations::measured_by_name(measured, column).is_some();
        let facts = match (task_of(column), known.and_then(|known| known.split_once(':'))) {
            (Some(_), _) => vec![(EXAMPLES, known.map(str::to_owned))],
            (None, Some((digest, extent))) => {
                let of_what = if is_of_bytes { BYTES } else { TOKENS };
                vec![("data", text(digest)), (of_what, text(extent))]
            }
            (None, None) => vec![("data", text(data)), (TOKENS, text(tokens))],
        };
        Self { facts, is_vague: known.is_none() || column == BITS_PER_BYTE && !is_of_bytes }
    }

    /// Whether the contents are known by less than their digest, although they could be.
    #[must_use]
    pub fn is_vague(&self) -> bool {
        self.is_vague
    }

    /// How numbers were measured that differ in these facts, as a phrase.
    #[must_use]
    pub fn differently(differing: &[&str]) -> String {
        let data: Vec<&str> = differing.iter().copied().filter(|name| *name != STEP).collect();
        let on = (!data.is_empty()).then(|| format!("on different data ({})", data.join(" and ")));
        let at = differing.contains(&STEP).then(|| "at different steps".to_owned());
        Vec::from_iter(on.into_iter().chain(at)).join(" and ")
    }

    /// What differs among some, as phrases.
    #[must_use]
    pub fn differing(bases: &[&Self]) -> Vec<&'static str> {
        let mut names: Vec<&'static str> = Vec::new();
        for (name, _) in bases.iter().flat_map(|basis| &basis.facts) {
            let value = |basis: &Self| {
                basis.facts.iter().find(|(known, _)| known == name).map(|(_, value)| value.clone())
            };
            if !names.contains(name) && bases.iter().any(|basis| value(basis) != value(bases[0])) {
                names.push(name);
            }
        }
        names
    }
}

/// Whether all of these are equal.
pub fn alike(bases: impl IntoIterator<Item = Basis>) -> bool {
    let mut bases = bases.into_iter();
    let first = bases.next();
    bases.all(|basis| Some(&basis) == first.as_ref())
}

const EXAMPLES: &str = "the task's examples";
const MAIN: &str = "data.val_main";
const TOKENS: &str = "evaluated tokens";
const TOKENIZER: &str = "data.tokenizer";
const BYTES: &str = "evaluated bytes";
/// The step of a last value that is not of the run's end.
const STEP: &str = "the step of the evaluation";

/// The columns of `eval.csv` that say what a row was measured on.
pub(super) const TEXTS: [&str; 3] = ["data", "data_tokens", "measured"];

/// A key of the data, and what it names.
fn of_data(run: &Run, key: &'static str) -> (&'static str, Option<String>) {
    (key, meant(run, key))
}

/// What a token is, of which a loss is the mean: the digest of a text does not tell.
fn tokenizer(run: &Run) -> (&'static str, Option<String>) {
    let found = run.value(TOKENIZER).and_then(|word| word.as_str());
    // which runs of the first versions had, without the key
    (TOKENIZER, Some(found.unwrap_or("gpt2").to_owned()))
}

/// The tokens of an evaluation of the set that a column is of: from the record, or else as many as the recipe asks for
/// at most.
fn evaluated(run: &Run, column: &str) -> Option<String> {
    let number = |key: &str| run.value(key)?.as_u64();
    let batches = || number("eval.batches")?.checked_mul(number("batch.total_tokens")?);
    let rounded = || number("eval.tokens")?.checked_next_multiple_of(number("model.block_size")?);
    let asked = || rounded().or_else(batches);
    let other = column.strip_prefix(NAMED_SET).and_then(|set| run.facts.eval_others.get(set));
    let rows = other.copied().or(run.facts.eval_rows);
    let known = || rows?.checked_mul(number("model.block_size")?);
    known().or_else(asked).map(|tokens| tokens.to_string())
}
