//! What a number was measured on. Two numbers that were measured on different data say nothing about which run is
//! better, so they are neither ranked nor averaged nor tested together.

mod evaluated;
mod hosts;
mod rows;
mod settle;

use super::differences::meant;
use super::metrics::Metric;
use super::runs::Run;
use crate::run::column::Unit;
use crate::run::columns::{NAMED_SET, task_of};
use crate::run::evaluations::{self, BITS_PER_BYTE};
use crate::run::record::{digest_of_set, digest_of_task};
use crate::run::{RunStatus, dir};
use rows::{BLOCK_SIZE, evaluated, last_rows, length_of_rows};

/// A fact by what it is.
type Fact = (&'static str, Option<String>);

/// Of when a last value is.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
enum When {
    /// Of where the run is: of a finished one its end.
    #[default]
    Now,
    /// Of the end, which is the best checkpoint, too.
    BestAtEnd,
    /// Of the best checkpoint, before the end.
    Best,
    /// Of a step before the end, or of the end at which a target was reached.
    Step(u64),
}

/// What a metric of a run was measured on, as far as that is on record. Equal ones allow a comparison.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub struct Basis {
    /// In an order that depends on the metric and on what is on record.
    facts: Vec<Fact>,
    /// Of a fraction of a peak rate, that rate in operations per second.
    peak: Option<u64>,
    /// Of a speed, the peak rate of the host.
    host_peak: Option<hosts::HostPeak>,
    /// Of a speed, the threads, where the recipe leaves them to the machine.
    threads: Option<usize>,
    /// Of a speed, the vector instructions, where the engine says which it uses.
    simd: Option<String>,
    /// Of a speed, what memory its steps ask for, with what `auto` came to.
    chosen: Option<(u64, u64)>,
    /// Of a speed, with how its ranks were joined.
    ranks: Option<(u64, String)>,
    /// What earlier versions put on record of several sets of validation data, in place of the facts.
    of_all_sets: Option<Vec<Fact>>,
    /// The facts without the tokens of a row, which earlier versions did not put on record.
    without_rows: Option<Vec<Fact>>,
    /// Whether the record is of such a version.
    is_of_earlier: bool,
    when: When,
    /// Whether the run trains still: its values are of no end.
    is_open: bool,
    /// Whether the contents are known by less than their digest, although they could be.
    is_vague: bool,
}

/// What a value in `eval.csv` was measured on, and how.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Asked {
    /// On what.
    pub basis: Basis,
    /// What the operands of matrix products were rounded to; empty where the file does not say.
    pub precision: String,
    /// Whether the file says that the model was trained on some of it.
    pub is_seen: bool,
}

impl Basis {
    /// The basis of a metric of a run. It is empty for a metric that does not depend on data, such as a speed. All that
    /// evaluations give depends on theirs, and of what training gives the loss alone.
    #[must_use]
    pub fn of(run: &Run, metric: &Metric) -> Self {
        let is_way = metric.target.is_some();
        let mut basis = Self::of_contents(run, metric.measured());
        // nothing of a way to a target is of the run's end, but seconds are those of its settings
        // and so is what a run has come to by some time
        let is_timed = run.results.is_cut_by_time;
        if is_speed(metric) || is_timed {
            // that of a device which is none of the processor's has its name in the tables
            basis.facts.push((MACHINE, Some(run.facts.processor.clone())));
            basis.host_peak = hosts::HostPeak::of(run);
            basis.threads = Some(run.facts.threads).filter(|_| leaves_threads_to_the_machine(run));
            basis.simd = Some(run.facts.simd.clone()).filter(|simd| !simd.is_empty());
            basis.chosen = run.chosen.came_to.map(|choice| (run.chosen.asked, choice));
            basis.ranks = run.facts.ranks.clone().map(|ranks| (run.chosen.asked, ranks));
            let is_seconds = metric.unit == Unit::Seconds || is_timed;
            let parts = match metric.unit {
                Unit::Bytes => &run.parts.of_memory,
                _ if is_seconds => &run.parts.of_seconds,
                _ => &run.parts.of_speed,
            };
            let parts = Some(parts).filter(|parts| !parts.is_empty());
            basis.facts.extend(parts.map(|parts| (PARTS, Some(parts.join(" and ")))));
        }
        if metric.unit == Unit::Bytes && run.parts.is_after_others {
            basis.facts.push((PROCESS, Some("other recipes".to_owned())));
        }
        // the seconds of a branch are its own, and its steps are not
        if metric.unit == Unit::Seconds || is_timed {
            basis.facts.push((BEGUN, Some(run.facts.steps_before().to_string())));
        }
        if is_way && metric.unit == Unit::Count {
            basis.facts.push(tokenizer(run));
        }
        if let Some(rows) = last_rows(run, metric) {
            basis.facts.push((LAST, Some(rows)));
        }
        basis.peak = run.facts.peak_flops.filter(|_| is_of_peak(metric));
        basis.is_of_earlier = run.facts.by_row.is_none();
        let is_by_row = metric.log != dir::EVAL_CSV && length_of_rows(run, &metric.column).is_some();
        basis.without_rows = is_by_row.then(|| settle::without_rows(&basis.facts));
        if run.status != RunStatus::Finished {
            return Self { is_open: true, ..basis };
        }
        if is_way || is_speed(metric) || is_length(metric) {
            return basis;
        }
        let earlier = run.results.earlier(&metric.name);
        let steps = run.results.get("steps").map(|steps| steps as u64);
        let best = run.facts.best_step;
        basis.when = match (earlier, run.results.at_target) {
            // the best ones of two runs can be compared, whenever each came
            (Some(step), _) if best == Some(step) => When::Best,
            // a loss at which a target ended the run says how far it overshot
            (Some(step), _) | (None, Some(step)) => When::Step(step),
            (None, None) if best.is_some() && best == steps => When::BestAtEnd,
            (None, None) => When::Now,
        };
        basis
    }

    /// The bases of a metric of several runs, [settled](Self::settled).
    #[must_use]
    pub fn of_each<'a>(runs: impl Iterator<Item = &'a Run>, metric: &Metric) -> Vec<Self> {
        Self::settled(runs.map(|run| Self::of(run, metric)).collect())
    }

    /// Whether all of these are equal.
    #[must_use]
    pub fn alike(bases: &[Self]) -> bool {
        bases.iter().all(|basis| *basis == bases[0])
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
            dir::VAL_CSV => match run.results.basis(&metric.name) {
                Some(of_row) => of_row.clone().into_validation(run),
                None => Self::of_validation(run, &metric.column),
            },
            _ if metric.unit == Unit::Loss => Self::of_training(run, &metric.column),
            _ => Self::default(),
        }
    }

    /// The basis of a loss of `train.csv`.
    #[must_use]
    pub fn of_training(run: &Run, column: &str) -> Self {
        let rows = length_of_rows(run, column).map(|length| (ROWS, Some(length.to_string())));
        let facts = [(TRAIN, meant(run, TRAIN)), tokenizer(run)].into_iter().chain(rows).collect();
        Self { facts, ..Self::default() }
    }

    /// The basis of a column of `val.csv`.
    #[must_use]
    pub fn of_validation(run: &Run, column: &str) -> Self {
        let digest = |name: &str| run.facts.digests.get(name).map(|digest| first_digits(digest));
        if let Some(task) = task_of(column) {
            let facts = vec![(EXAMPLES, digest(&digest_of_task(task)))];
            return Self { facts, ..Self::default() };
        }
        let (tokenizer, tokens) = (tokenizer(run), (TOKENS, evaluated(run, column)));
        let of = |of_what: Option<String>| vec![(VAL, of_what), tokenizer.clone(), tokens.clone()];
        let all = meant(run, VAL).map(|meant| first_digits(&meant));
        let sets = run.value(VAL).and_then(|sets| sets.as_object()).filter(|sets| sets.len() > 1);
        if sets.is_none() {
            return Self { facts: of(all), ..Self::default() };
        }
        let main = run.value(MAIN).and_then(|name| name.as_str());
        let set = if column == "val_loss" { main } else { column.strip_prefix(NAMED_SET) };
        let of_set = set.and_then(|set| digest(&digest_of_set(set)));
        let main = main.filter(|_| column == "val_loss").map(str::to_owned);
        let of_all_sets = vec![(VAL, all), tokenizer.clone(), (MAIN, main), tokens.clone()];
        match of_set {
            Some(_) => Self { facts: of(of_set), of_all_sets: Some(of_all_sets), ..Self::default() },
            None => Self { facts: of_all_sets, ..Self::default() },
        }
    }

    /// The basis of a row of `eval.csv` that stands for a column of `val.csv`, whose rows have the run's own length.
    fn into_validation(mut self, run: &Run) -> Self {
        if let [data, tokens] = &mut self.facts[..] {
            let block_size = run.value(BLOCK_SIZE).and_then(|size| size.as_u64());
            // records of earlier versions do not say whether that length decides
            let is_old = run.facts.by_row.is_none();
            let own = |tokens: String| match (tokens.split_once('/'), block_size) {
                (Some((count, length)), Some(own)) if is_old && length == own.to_string() => count.to_owned(),
                _ => tokens,
            };
            self.facts = vec![(VAL, data.1.take()), tokenizer(run), (TOKENS, tokens.1.take().map(own))];
        }
        self
    }

    /// The basis of a column in a row of `eval.csv`, of which these are the cells of the columns [`TEXTS`].
    pub(super) fn of_row(column: &str, [data, tokens, measured, _]: [&str; 4]) -> Self {
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
        let is_vague = known.is_none() || column == BITS_PER_BYTE && !is_of_bytes;
        Self { facts, is_vague, ..Self::default() }
    }

    /// Whether the contents are known by less than their digest, although they could be.
    #[must_use]
    pub fn is_vague(&self) -> bool {
        self.is_vague
    }

    /// Whether numbers differ in that alone which decides how fast a run was.
    #[must_use]
    pub fn is_of_settings(differing: &[&str]) -> bool {
        differing.iter().all(|name| OF_SETTINGS.contains(name))
    }

    /// Whether numbers differ in that alone at which step they were measured.
    #[must_use]
    pub fn is_of_steps(differing: &[&str]) -> bool {
        differing.iter().all(|name| *name == STEP)
    }

    /// How numbers were measured that differ in these facts, as a phrase.
    #[must_use]
    pub fn differently(differing: &[&str]) -> String {
        let data: Vec<&str> =
            differing.iter().copied().filter(|name| *name != STEP && !OF_SETTINGS.contains(name)).collect();
        let on = (!data.is_empty()).then(|| format!("on different data ({})", data.join(" and ")));
        let at = differing.contains(&STEP).then(|| "at different steps".to_owned());
        let by = differing.contains(&MACHINE).then(|| format!("on machines that differ ({MACHINE})"));
        let in_parts = differing.contains(&PARTS).then(|| "in part under other settings".to_owned());
        let from = differing.contains(&BEGUN).then(|| "from different steps on".to_owned());
        let as_chosen = differing.contains(&CHOSEN).then(|| format!("with {CHOSEN} that differs"));
        let joined =
            differing.contains(&RANKS).then(|| "with ranks that were joined in other ways".to_owned());
        let against = differing.contains(&PEAK).then(|| "against peak rates that differ".to_owned());
        let after = differing
            .contains(&PROCESS)
            .then(|| "in part in processes that had trained other runs before".to_owned());
        let all = on
            .into_iter()
            .chain(at)
            .chain(by)
            .chain(in_parts)
            .chain(from)
            .chain(as_chosen)
            .chain(joined)
            .chain(against)
            .chain(after);
        Vec::from_iter(all).join(" and ")
    }

    /// What differs among some, as phrases.
    #[must_use]
    pub fn differing(bases: &[&Self]) -> Vec<&'static str> {
        let mut names: Vec<&'static str> = Vec::new();
        if bases.iter().any(|basis| basis.when != bases[0].when) {
            names.push(STEP);
        }
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

const EXAMPLES: &str = "the task's examples as tokens";
const TRAIN: &str = "data.train";
const VAL: &str = "data.val";
const MAIN: &str = "data.val_main";
const TOKENS: &str = "evaluated tokens";
/// What decides which tokens of short files are read.
const ROWS: &str = "tokens of a row";
/// Of a last loss of training, the rows that it is of.
const LAST: &str = "the rows of the last batch";
const TOKENIZER: &str = "data.tokenizer";
const BYTES: &str = "evaluated bytes";
/// The step of a last value that is not of the run's end.
const STEP: &str = "the step of the evaluation";
/// What of the machine decides how fast a run was, and no recipe says.
const MACHINE: &str = "processor, its peak rate, threads or vector instructions";
/// What parts of a run were trained with that its recipe does not say.
const PARTS: &str = "the settings of parts";
/// Whether a process had turned to other recipes before.
const PROCESS: &str = "the process";
/// The step of a branch at which its own seconds begin.
const BEGUN: &str = "the first step of its own";
/// What a recipe leaves to the memory that there is.
const CHOSEN: &str = "a choice of auto";
/// Whether ranks were threads or processes, and of how many machines.
const RANKS: &str = "how ranks were joined";
/// What MFU is a fraction of.
const PEAK: &str = "the peak rate";
/// What is no matter of data.
const OF_SETTINGS: [&str; 7] = [MACHINE, PARTS, BEGUN, CHOSEN, RANKS, PROCESS, PEAK];

/// The columns of `eval.csv` that say what a row was measured on, and how.
pub(super) const TEXTS: [&str; 4] = ["data", "data_tokens", "measured", "precision"];

/// Whether a metric says how fast a run was, or what it took.
pub(super) fn is_speed(metric: &Metric) -> bool {
    matches!(metric.unit, Unit::Rate | Unit::Milliseconds | Unit::Bytes | Unit::Seconds) || is_of_peak(metric)
}

/// Whether a metric depends on how fast a machine is, and not on its memory alone.
pub(super) fn is_of_time(metric: &Metric) -> bool {
    is_speed(metric) && metric.unit != Unit::Bytes
}

/// Whether a metric is a fraction of a peak rate.
fn is_of_peak(metric: &Metric) -> bool {
    metric.unit == Unit::Fraction && metric.log == dir::TRAIN_CSV
}

/// Whether a metric says how far a run went.
fn is_length(metric: &Metric) -> bool {
    metric.unit == Unit::Count && metric.log == dir::TRAIN_CSV
}

/// Whether a recipe does not say how many threads there are to be: those that it asks for are a setting.
fn leaves_threads_to_the_machine(run: &Run) -> bool {
    run.value("compute.threads").is_none_or(|threads| threads.as_u64() == Some(0))
}

/// As many digits of a digest as `eval.csv` has.
fn first_digits(digest: &str) -> String {
    let is_digest = digest.len() == 64 && digest.bytes().all(|byte| byte.is_ascii_hexdigit());
    if is_digest { digest[..evaluations::DIGITS].to_owned() } else { digest.to_owned() }
}

/// What a token is, of which a loss is the mean: the digest of a text does not tell.
fn tokenizer(run: &Run) -> Fact {
    let found = run.value(TOKENIZER).and_then(|word| word.as_str());
    // which runs of the first versions had, without the key
    (TOKENIZER, Some(found.unwrap_or("gpt2").to_owned()))
}
