//! What a reader must know before believing a comparison, one sentence each.

mod cadence;
mod called;
mod chosen;
mod each;
mod measured;
mod owners;
mod schedules;
mod scores;
mod seeds;
mod together;

pub use measured::dropout_between;
pub use owners::note_owners;
pub use schedules::learning_rate;
pub use scores::standard_error;

pub(super) use called::{first_of, listed};

use super::axis::Axis;
use super::basis::is_speed;
use super::compare::Comparison;
use super::differences::digest;
use super::metrics::Metric;
use super::runs::Run;
use crate::recipe::keys::INIT_FROM;
use crate::run::column::Unit;
use crate::run::{RunStatus, dir};
use crate::wording::{tame_line, thousands};
use called::{name, name_among, names};
use schedules::TARGET;
use std::collections::BTreeMap;

const BEGAN_WITH_WEIGHTS: &str =
    "began with weights that were trained before, and the steps, tokens and seconds of that count nowhere";

const BRANCHED_OFF: &str = "branched off another run, whose steps count and whose seconds do not";

const BY_FIRST_EVALUATION: &str = "by the first evaluation, so it was reached there or before";

/// Notes that hold for all runs of a comparison, and are told of each as well.
struct Common {
    trunks: Vec<String>,
    schedules: Option<String>,
    under_dropout: Option<String>,
    cadences: Option<String>,
    best_batches: Option<String>,
    pauses: Option<String>,
    together: Vec<String>,
    best_of_some: Vec<String>,
    chosen: Vec<String>,
}

impl Common {
    fn of(comparison: &Comparison) -> Self {
        let how = cadence::differing(&comparison.runs);
        let how = how.as_deref();
        Self {
            trunks: seeds::one_trunk(comparison),
            schedules: schedules::unequal(comparison),
            under_dropout: measured::under_dropout(comparison, &comparison.shown),
            cadences: cadence::cadences(comparison, how),
            best_batches: cadence::best_batches(comparison),
            pauses: cadence::pauses(comparison, &comparison.shown, how),
            together: together::together(comparison, &comparison.shown),
            best_of_some: cadence::best_of_some(comparison, how),
            chosen: chosen::chosen(comparison, &comparison.shown),
        }
    }

    /// All of them.
    fn all(&self) -> impl Iterator<Item = &String> {
        let Self { trunks, schedules, under_dropout, cadences, best_batches, pauses, .. } = self;
        let single = [schedules, under_dropout, cadences, best_batches, pauses].into_iter().flatten();
        single.chain(trunks).chain(&self.together).chain(&self.best_of_some).chain(&self.chosen)
    }
}

/// All notes on a comparison.
pub(super) fn notes(comparison: &Comparison) -> Vec<String> {
    all(comparison, &Common::of(comparison))
}

/// The [`notes`], and those on each run in the order of the runs, one phrase each.
pub(super) fn both(comparison: &Comparison) -> (Vec<String>, Vec<Vec<String>>) {
    let common = Common::of(comparison);
    (all(comparison, &common), each::each(comparison, &common))
}

fn all(comparison: &Comparison, common: &Common) -> Vec<String> {
    let judged = comparison.judged.iter().filter_map(|(metric, footing)| footing.note(metric));
    let mut notes: Vec<String> = judged.collect();
    // several targets of one column
    notes.dedup();
    notes.extend(measured::apart(comparison));
    notes.extend(measured::mixed_groups(comparison));
    notes.extend(measured::vague(comparison));
    notes.extend(measured::beside_other_data(comparison));
    notes.extend(measured::of_no_validation(comparison, &comparison.shown));
    notes.extend(measured::earlier(comparison));
    notes.extend(measured::seen_before(comparison));
    notes.extend(measured::precisions(comparison, &comparison.shown));
    notes.extend(common.under_dropout.clone());
    notes.extend(scores::of_few_examples(comparison));
    notes.extend(measured::emulated(comparison, &comparison.shown));
    notes.extend(measured::resumed(comparison, &comparison.shown));
    notes.extend(measured::above_peak(comparison));
    notes.extend(measured::other_tokens(comparison, &comparison.shown, None));
    notes.extend(measured::several_hosts(comparison, &comparison.shown));
    notes.extend(changed_contents(comparison));
    notes.extend(comparison.differences.note());
    notes.extend(seeds::copies(comparison));
    notes.extend_from_slice(&common.trunks);
    notes.extend(common.schedules.clone());
    notes.extend(cadence::interpolated(comparison));
    notes.extend(common.cadences.clone());
    notes.extend(cadence::overlaps(comparison));
    notes.extend_from_slice(&common.best_of_some);
    notes.extend(common.best_batches.clone());
    notes.extend(common.pauses.clone());
    notes.extend_from_slice(&common.together);
    notes.extend_from_slice(&common.chosen);
    notes.extend(skipped(comparison));
    notes.extend(with_weights(comparison));
    notes.extend(seconds_of_branches(comparison, &comparison.shown));
    notes.extend(targets(comparison));
    notes.extend(of_each(&comparison.runs.iter().collect::<Vec<_>>()));
    notes
}

/// What is to be known of single runs, once for all of which it is.
#[must_use]
pub fn of_each(runs: &[&Run]) -> Vec<String> {
    let mut known: Vec<(&String, Vec<&Run>)> = Vec::new();
    for run in runs {
        for note in &run.notes {
            match known.iter_mut().find(|(of, _)| *of == note) {
                Some((_, of)) => of.push(run),
                None => known.push((note, vec![run])),
            }
        }
    }
    let names = |of: Vec<&Run>| first_of(of.into_iter(), |run| name_among(runs.iter().copied(), run));
    known.into_iter().map(|(note, of)| format!("{}: {note}", names(of))).collect()
}

/// Which runs are validated on what they, or the weights that they began with, were trained on, by their ids.
#[must_use]
pub fn trained_on_validation(runs: &[&Run]) -> Vec<String> {
    let ids = |of: &[&Run]| listed(of.iter().map(|run| tame_line(&run.id)).collect());
    measured::trained_on_validation(runs, ids)
}

/// What a picture of these metrics has to say for itself, as it may be shown without the table.
pub(super) fn of_drawn(comparison: &Comparison, drawn: &[Metric], axis: Axis) -> Vec<String> {
    let runs = &comparison.runs;
    let mut notes = Vec::new();
    if drawn.iter().any(|metric| metric.log == dir::VAL_CSV) {
        let all: Vec<&Run> = runs.iter().collect();
        notes.extend(measured::trained_on_validation(&all, |of| names(runs, of.iter().copied())));
    }
    notes.extend(measured::of_no_validation(comparison, drawn));
    notes.extend(measured::precisions(comparison, drawn));
    notes.extend(measured::under_dropout(comparison, drawn));
    notes.extend(measured::emulated(comparison, drawn));
    notes.extend(measured::resumed(comparison, drawn));
    notes.extend(measured::other_tokens(comparison, drawn, Some(axis)));
    notes.extend(measured::several_hosts(comparison, drawn));
    notes.extend(changed_contents(comparison));
    notes.extend(comparison.differences.note());
    notes.extend(seeds::copies(comparison));
    notes.extend(seeds::one_trunk(comparison));
    if drawn.iter().any(is_speed) {
        let how = cadence::differing(runs);
        notes.extend(cadence::pauses(comparison, drawn, how.as_deref()));
        notes.extend(together::together(comparison, drawn));
        notes.extend(chosen::chosen(comparison, drawn));
        notes.extend(seconds_of_branches(comparison, drawn));
    }
    notes.extend(skipped(comparison));
    notes.extend(with_weights(comparison));
    let ended = |status: RunStatus, word: &str| {
        let of = || runs.iter().filter(|run| run.status == status && !run.complete);
        of().next().is_some().then(|| format!("{word}: {}", names(runs, of())))
    };
    notes.extend(ended(RunStatus::Diverged, "diverged"));
    notes.extend(ended(RunStatus::Failed, "failed"));
    notes.extend(ended(RunStatus::Interrupted, "not finished"));
    notes.extend(of_each(&runs.iter().collect::<Vec<_>>()));
    notes
}

/// The runs that name one path by a key, by the digest of what they found there.
type ByContents<'a> = BTreeMap<String, Vec<&'a Run>>;

/// Which files were changed between runs, by their keys: their paths, by which runs are labelled, are the same, the
/// contents are not.
fn changed_between(comparison: &Comparison) -> Vec<(&str, ByContents<'_>)> {
    let runs = &comparison.runs;
    let mut changed = Vec::new();
    for key in &comparison.differences.differing {
        let mut by_path: BTreeMap<_, ByContents> = BTreeMap::new();
        for run in runs {
            if let (Some(path), Some(contents)) = (run.value(key), digest(run, key)) {
                // which part or which set of the files it is of
                let said = |value: Option<&serde_json::Value>| value.map(ToString::to_string);
                let fraction = run.value("data.val_fraction");
                // a text is parted behind a number of tokens
                let tokenizer = fraction.and_then(|_| run.value("data.tokenizer"));
                let part = (said(fraction), said(tokenizer), said(run.value("data.val_main")));
                let of_path = by_path.entry((path.to_string(), part)).or_default();
                of_path.entry(contents.clone()).or_default().push(run);
            }
        }
        let several = by_path.into_values().filter(|of_path| of_path.len() > 1);
        changed.extend(several.map(|of_path| (key.as_str(), of_path)));
    }
    changed
}

fn changed_contents(comparison: &Comparison) -> Vec<String> {
    let note = |(key, of_path): (&str, ByContents)| {
        let sets = of_path.into_values().map(|of| format!("({})", names(&comparison.runs, of.into_iter())));
        format!(
            "{key} names the same path and other contents in {}: it was changed between them, or is another file",
            listed(sets.collect())
        )
    };
    changed_between(comparison).into_iter().map(note).collect()
}

/// Which runs began with weights that somebody has trained before, where not all did with the same or some are seeds
/// of one recipe.
fn with_weights(comparison: &Comparison) -> Option<String> {
    let runs = &comparison.runs;
    let with = || runs.iter().filter(|run| began_with_weights(run));
    // one path may have had several contents
    let began_with = |run: &Run| (run.value(INIT_FROM).cloned(), digest(run, INIT_FROM).cloned());
    let is_mixed = runs.iter().any(|run| began_with(run) != began_with(&runs[0]));
    let has_replicas = comparison.groups.iter().any(|group| group.counted().nth(1).is_some());
    ((is_mixed || has_replicas) && with().next().is_some()).then(|| {
        format!(
            "{}: {BEGAN_WITH_WEIGHTS}; seeds that begin with the same weights differ less than others do",
            names(runs, with())
        )
    })
}

/// Of which runs the updates of some steps were left out.
fn skipped(comparison: &Comparison) -> Option<String> {
    let runs = &comparison.runs;
    let skipped = |run: &Run| run.results.get("skipped_steps").filter(|skipped| *skipped > 0.0);
    let with_some = || runs.iter().filter_map(|run| Some((run, skipped(run)?)));
    with_some().next().is_some().then(|| {
        let in_words =
            |(run, skipped): (&Run, f64)| format!("{} ({})", name(runs, run), thousands(skipped as u64));
        format!(
            "skipped steps, whose update was left out, count among the steps and tokens: {}",
            first_of(with_some(), in_words)
        )
    })
}

/// What has equal keys, together, in the order in which the keys first come.
fn gathered<K: PartialEq, T>(pairs: impl IntoIterator<Item = (K, T)>) -> Vec<(K, Vec<T>)> {
    let mut gathered: Vec<(K, Vec<T>)> = Vec::new();
    for (key, item) in pairs {
        match gathered.iter_mut().find(|(known, _)| *known == key) {
            Some((_, items)) => items.push(item),
            None => gathered.push((key, vec![item])),
        }
    }
    gathered
}

/// Whether seconds are shown or decide something.
fn is_of_time(comparison: &Comparison, shown: &[Metric]) -> bool {
    comparison.cut.is_some_and(|cut| cut.axis == Axis::Time)
        || shown.iter().any(|metric| metric.target.is_none() && metric.unit == Unit::Seconds)
}

/// Which runs lack the seconds of what they branched off, where seconds decide something.
fn seconds_of_branches(comparison: &Comparison, shown: &[Metric]) -> Option<String> {
    let runs = &comparison.runs;
    let branched = || runs.iter().filter(|run| took_a_state(run));
    let is_some = is_of_time(comparison, shown) && branched().next().is_some() && runs.len() > 1;
    is_some.then(|| format!("{}: {BRANCHED_OFF}", names(runs, branched())))
}

/// Which runs did not reach a target, and of which it is not known exactly.
fn targets(comparison: &Comparison) -> Vec<String> {
    let runs = &comparison.runs;
    let mut notes = Vec::new();
    for target in &comparison.targets {
        let shown = target.shown();
        let missed = || runs.iter().filter(|run| target.way(&run.results).is_none());
        let best = |run: &Run| run.results.get(&target.best.name);
        let in_words = |(run, best): (&Run, f64)| {
            let elsewhere = run.results.reached_elsewhere(&target.name());
            let elsewhere = elsewhere
                .map(|step| format!(" in val.csv; eval.csv has it at step {step}, perhaps on other data"));
            let best = target.best.unit.shown(best);
            let own = if took_a_state(run) { " since it branched off" } else { "" };
            format!("{} (best {best}{own}{})", name(runs, run), elsewhere.unwrap_or_default())
        };
        for (is_open, not_reached) in [(false, "is not reached"), (true, "is not reached yet")] {
            let measured = missed().filter_map(|run| Some((run, best(run)?)));
            let is_told = |run: &Run| target.ended_after(run).is_some() || target.ended_before(run);
            let measured = measured.filter(|(run, _)| !is_told(run));
            let mut measured = measured.filter(|(run, _)| target.is_open(run) == is_open).peekable();
            if measured.peek().is_none() {
                continue;
            }
            notes.push(format!("{shown} {not_reached} by {}", first_of(measured, in_words)));
        }
        let unknown = || missed().filter(|run| best(run).is_none());
        if unknown().next().is_some() {
            let (of, column) = (names(runs, unknown()), &target.column);
            let has = if unknown().count() == 1 { "it has" } else { "they have" };
            notes.push(format!("whether {shown} is reached by {of} is not known: {has} no {column}"));
        }
        let mut open = |is_one: &dyn Fn(&Run) -> bool, what: &str| {
            let some = missed().filter(|run| is_one(run)).filter_map(|run| Some((run, best(run)?)));
            let mut some = some.peekable();
            if some.peek().is_some() {
                let of = first_of(some, in_words);
                notes.push(format!("whether {shown} {what}: {of}"));
            }
        };
        let column = &target.column;
        open(
            &|run| target.ended_after(run).is_some(),
            &format!("is reached is not known of runs whose {column} was last measured before their end"),
        );
        open(
            &|run| target.ended_before(run),
            &format!("would be reached is not known of runs that {TARGET} ended before"),
        );
        let target_name = target.name();
        let early = || runs.iter().filter(|run| run.results.before_first().contains(&target_name));
        if early().next().is_some() {
            notes.push(format!("{}: {shown} {BY_FIRST_EVALUATION}", names(runs, early())));
        }
        if target.best.log == dir::TRAIN_CSV {
            notes.push(format!(
                "{shown}: the loss is that of single batches, so the first step that reaches it may owe it to an \
                 easy one"
            ));
        }
    }
    let branched = || runs.iter().filter(|run| took_a_state(run));
    if !comparison.targets.is_empty() && branched().next().is_some() {
        notes.push(format!(
            "{}: branched off another run, whose steps and tokens count on the way to a target and whose seconds do \
             not; that run may have reached it before, for its rows are not looked at",
            names(runs, branched())
        ));
    }
    notes
}

/// Whether a run began with weights that somebody has trained before, or goes on from one that did.
fn began_with_weights(run: &Run) -> bool {
    match took_a_state(run) {
        true => run.facts.parent.as_ref().is_some_and(|parent| parent.with_weights),
        false => run.value(INIT_FROM).is_some(),
    }
}

/// Whether a run goes on from the whole state of another one.
fn took_a_state(run: &Run) -> bool {
    let from = run.value(INIT_FROM).and_then(serde_json::Value::as_object);
    from.is_some_and(|from| from.get("optimizer") != Some(&serde_json::Value::Bool(false)))
}
