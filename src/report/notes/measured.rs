//! Notes on what figures were measured on.

use super::super::axis::Axis;
use super::super::basis::{Basis, is_of_time, is_speed};
use super::super::compare::Comparison;
use super::super::footing::Footing;
use super::super::groups::Group;
use super::super::measures::Measure;
use super::super::metrics::Metric;
use super::super::runs::Run;
use super::super::spans::Span;
use super::{first_of, gathered, listed, name, names};
use crate::recipe::keys::PRECISION;
use crate::run::column::Unit;
use crate::run::columns::task_of;
use crate::run::evaluations::BITS_PER_BYTE;
use crate::run::record::TrainedBefore;
use crate::run::{RunStatus, dir};
use crate::wording::tame_line;
use std::collections::{BTreeMap, BTreeSet};

/// The key of what a token is.
const TOKENIZER: &str = "data.tokenizer";
/// The key of what training alone does to activations.
const DROPOUT: &str = "model.dropout";
/// The metric of the share of the peak rate.
const MFU: &str = "mfu";
/// The metric of the loss on the validation data.
const VAL_LOSS: &str = "val_loss";

const TRAINS_ON_VALIDATION: &str =
    "are among the training data, and a loss on seen data says nothing about new data";
pub(super) const OF_SEEN: &str =
    "`runner eval` measured a loss on data that it was trained on, which says nothing about new data";
const SAYS_NOTHING: &str = "a loss on seen data says nothing about new data";
pub(super) const PERHAPS_SEEN: &str = "the weights that it began with were trained on other data before, and the \
                                       validation data may be among those";
pub(super) const ABOVE_PEAK: &str = "the MFU is above 100 %, so the peak rate was measured too low";

pub(super) const BESIDE: &str = "is of other data than val_loss: of those of the last evaluation in eval.csv";

pub(super) const OF_NO_VALIDATION: &str =
    "is of other data than data.val: of those of the last evaluation in eval.csv";

/// Between which sets of runs shown metrics, one of each column, were measured on different data. Those of the columns
/// of `others` are told of elsewhere. The seconds of a way to a target are told of beside its steps where they make
/// other sets.
pub(super) fn mixed<'a>(
    comparison: &'a Comparison,
    others: &'a [(Metric, Footing)],
) -> Vec<(&'a Footing, Vec<&'a Metric>)> {
    let mut told: Vec<&(Metric, Footing)> = others.iter().collect();
    let mut mixed = Vec::new();
    for new in comparison.mixed() {
        let (metric, footing) = new;
        let is_alike = |other: &Footing| other.sets == footing.sets && other.differing == footing.differing;
        let tells = |(known, of): &&(Metric, Footing)| {
            known.is_of_column(metric) && (known.is_timed_way() == metric.is_timed_way() || is_alike(of))
        };
        if !told.iter().any(tells) {
            told.push(new);
            mixed.push((footing, metric));
        }
    }
    gathered(mixed)
}

/// The names of metrics, with the verb for so many.
fn named(metrics: &[&Metric]) -> (String, &'static str) {
    let names = listed(metrics.iter().map(|metric| metric.name.clone()).collect());
    (names, if metrics.len() == 1 { "was" } else { "were" })
}

/// What was measured, and how, of metrics that were measured differently in the same way.
pub(super) fn differently(metrics: &[&Metric], differing: &[&'static str]) -> String {
    let (names, was) = named(metrics);
    format!("{names} {was} measured {}", Basis::differently(differing))
}

/// Which runs may be compared by metrics beside the judged ones, where not all may.
pub(super) fn apart(comparison: &Comparison) -> Vec<String> {
    let runs = &comparison.runs;
    let note = |(footing, metrics): (&Footing, Vec<&Metric>)| {
        let of_set =
            |set| runs.iter().zip(&footing.sets).filter(move |(_, of)| **of == Some(set)).map(|(run, _)| run);
        let sets = (0..footing.count()).map(|set| format!("({})", names(runs, of_set(set))));
        format!(
            "{}, so {} nothing about which is better between {}",
            differently(&metrics, &footing.differing),
            if metrics.len() == 1 { "it says" } else { "they say" },
            listed(sets.collect())
        )
    };
    mixed(comparison, &comparison.judged).into_iter().map(note).collect()
}

/// Which groups have no mean, because their replicas were measured on different data.
pub(super) fn mixed_groups(comparison: &Comparison) -> Vec<String> {
    // the same of several groups is one note: what was measured, and how
    let of_group = |group: &Group| {
        let how = |metric| comparison.differing(group, metric).map(|names| Basis::differently(&names));
        let by_how = gathered(comparison.shown.iter().filter_map(|metric| Some((how(metric)?, metric))));
        let note = |(how, metrics): (String, Vec<&Metric>)| ((named(&metrics), how), group.label.clone());
        by_how.into_iter().map(note).collect::<Vec<_>>()
    };
    let said = |(((what, was), how), labels): (((String, &str), String), Vec<String>)| {
        let whose = if labels.len() > 1 { "their" } else { "its" };
        format!(
            "{}: {what} of {whose} seeds {was} measured {how}, so there is no mean and no test",
            listed(labels)
        )
    };
    gathered(comparison.groups.iter().flat_map(of_group)).into_iter().map(said).collect()
}

/// Of which runs `eval.csv` does not say by digests what it is of.
pub(super) fn vague(comparison: &Comparison) -> Vec<String> {
    let runs = &comparison.runs;
    let mut notes = Vec::new();
    let mut said: Vec<&Metric> = Vec::new();
    for metric in comparison.metrics().filter(|_| runs.len() > 1) {
        if said.iter().any(|said| said.is_of_column(metric)) {
            continue;
        }
        let is_vague = |run: &&Run| run.results.basis(&metric.name).is_some_and(Basis::is_vague);
        let has_it = |run: &&Run| run.results.get(&metric.name).is_some();
        let vague: Vec<&Run> = runs.iter().filter(has_it).filter(is_vague).collect();
        if !vague.is_empty() {
            said.push(metric);
            let known = match task_of(&metric.column) {
                Some(_) => "whether these are the same examples is not known",
                None => "the names of the data and the number of tokens tell them apart",
            };
            notes.push(format!(
                "{}: an earlier version wrote {} to eval.csv without a digest of what it was measured on, so {known}; \
                 `runner eval --save` measures it again",
                names(runs, vague.into_iter()),
                metric.name
            ));
        }
    }
    notes
}

/// The figures that follow from a loss, where that is shown beside them.
pub(super) fn of_losses(comparison: &Comparison) -> impl Iterator<Item = &Metric> {
    // a test may be by one that no column shows
    let has_loss =
        comparison.measures.iter().filter_map(Measure::own).any(|metric| metric.column == VAL_LOSS);
    let follows = |metric: &&Metric| ["perplexity", BITS_PER_BYTE].contains(&metric.column.as_str());
    comparison.shown.iter().filter(move |_| has_loss).filter(follows)
}

/// Whether such a figure of a run is of other data than the loss beside it.
pub(super) fn is_beside(run: &Run, metric: &Metric) -> bool {
    let basis = run.results.basis(&metric.name);
    basis.is_some_and(|basis| basis.is_of_other_data(run)) && run.results.get(VAL_LOSS).is_some()
}

/// Which figures that follow from a loss are of other data than the loss beside them.
pub(super) fn beside_other_data(comparison: &Comparison) -> Vec<String> {
    let runs = &comparison.runs;
    let note = |metric: &Metric| {
        let beside: Vec<&Run> = runs.iter().filter(|run| is_beside(run, metric)).collect();
        (!beside.is_empty())
            .then(|| format!("{} of {} {BESIDE}", metric.name, names(runs, beside.into_iter())))
    };
    of_losses(comparison).filter_map(note).collect()
}

/// Whether a validation loss of a run is of other data than the validation data of its recipe.
pub(super) fn is_of_no_validation(run: &Run, metric: &Metric) -> bool {
    let metric = metric.measured();
    let basis = run.results.basis(&metric.name).filter(|_| metric.column == VAL_LOSS);
    basis.is_some_and(|basis| basis.is_of_no_validation(run))
}

/// Which runs have validation losses of other data than the validation data of their recipes.
pub(super) fn of_no_validation(comparison: &Comparison, shown: &[Metric]) -> Vec<String> {
    let runs = &comparison.runs;
    let note = |metric: &Metric| {
        let of: Vec<&Run> = runs.iter().filter(|run| is_of_no_validation(run, metric)).collect();
        let name = &metric.measured().name;
        (!of.is_empty()).then(|| format!("{name} of {} {OF_NO_VALIDATION}", names(runs, of.into_iter())))
    };
    let notes: BTreeSet<String> = shown.iter().filter_map(note).collect();
    notes.into_iter().collect()
}

/// Which finished runs were last measured before their end, and at which step.
pub(super) fn earlier(comparison: &Comparison) -> Vec<String> {
    let runs = &comparison.runs;
    let note = |metric: &Metric| {
        let step =
            |run: &Run| run.results.earlier(&metric.name).filter(|_| run.status == RunStatus::Finished);
        let measured = || runs.iter().filter_map(|run| Some((run, step(run)?)));
        measured().next().is_some().then(|| {
            let of = first_of(measured(), |(run, step)| format!("{} (step {step})", name(runs, run)));
            format!("{} was last measured before the end of {of}", metric.name)
        })
    };
    comparison.metrics().filter_map(note).collect()
}

/// That validation data of a run, or those of some of its sets, are among its training data.
pub(super) fn trains_on_validation(run: &Run) -> Option<String> {
    run.facts.trains_on_validation.then(|| match &run.facts.trains_on_sets[..] {
        [] => format!("validation data {TRAINS_ON_VALIDATION}"),
        sets => format!("validation data of {} {TRAINS_ON_VALIDATION}", listed(sets.to_vec())),
    })
}

/// That the weights that a run began with were trained on validation data, or on those of some of its sets.
pub(super) fn weights_have_seen(run: &Run) -> Option<String> {
    let of = match &run.facts.trained_before_sets[..] {
        [] => "the validation data".to_owned(),
        sets => format!("validation data of {}", listed(sets.to_vec())),
    };
    let is_so = run.facts.trained_before == Some(TrainedBefore::ValidationData);
    is_so.then(|| format!("the weights that it began with were trained on {of}: {SAYS_NOTHING}"))
}

/// Which runs are validated on what they, or the weights that they began with, were trained on, with what these are
/// called.
pub(super) fn trained_on_validation(runs: &[&Run], called: impl Fn(&[&Run]) -> String) -> Vec<String> {
    [by_note(runs, trains_on_validation, &called), by_note(runs, weights_have_seen, &called)].concat()
}

/// What is noted of runs, once for all of which it is.
fn by_note(
    runs: &[&Run],
    note_of: impl Fn(&Run) -> Option<String>,
    called: impl Fn(&[&Run]) -> String,
) -> Vec<String> {
    let mut noted: BTreeMap<String, Vec<&Run>> = BTreeMap::new();
    for &run in runs {
        note_of(run).into_iter().for_each(|note| noted.entry(note).or_default().push(run));
    }
    noted.into_iter().map(|(note, of)| format!("{}: {note}", called(&of))).collect()
}

/// Which runs began with weights that have, or may have, seen what they are validated on.
pub(super) fn seen_before(comparison: &Comparison) -> Vec<String> {
    let runs = &comparison.runs;
    let perhaps = runs.iter().filter(|run| run.facts.trained_before == Some(TrainedBefore::OtherData));
    let all: Vec<&Run> = runs.iter().collect();
    let called = |of: &[&Run]| names(runs, of.iter().copied());
    let mut notes = by_note(&all, trains_on_validation, called);
    let evaluated: Vec<&Run> = runs.iter().filter(|run| is_of_seen(comparison, run)).collect();
    if !evaluated.is_empty() {
        notes.push(format!("{}: {OF_SEEN}", names(runs, evaluated.into_iter())));
    }
    notes.extend(by_note(&all, weights_have_seen, called));
    // among runs that all began so it is the same for all
    let is_some = perhaps.clone().next().is_some() && perhaps.clone().count() < runs.len();
    if is_some {
        notes.push(format!("{}: {PERHAPS_SEEN}", names(runs, perhaps)));
    }
    notes
}

/// The metrics by which runs were evaluated with operands that were rounded to different precisions, with the runs of
/// each precision.
pub(super) fn by_precision<'a>(
    comparison: &'a Comparison,
    shown: &'a [Metric],
) -> Vec<(&'a Metric, BTreeMap<&'a str, Vec<&'a Run>>)> {
    let runs = &comparison.runs;
    let mut found = Vec::new();
    let mut said: Vec<&Metric> = Vec::new();
    for metric in shown.iter().map(Metric::measured) {
        if said.iter().any(|said| said.is_of_column(metric)) {
            continue;
        }
        said.push(metric);
        let mut of: BTreeMap<&str, Vec<&Run>> = BTreeMap::new();
        for run in runs.iter().filter(|run| run.results.get(&metric.name).is_some()) {
            // evaluations between steps are as precise as these
            let own = || run.value(PRECISION).and_then(|word| word.as_str());
            let precision = run.results.precision(&metric.name).or_else(own);
            of.entry(precision.unwrap_or("unknown")).or_default().push(run);
        }
        let is_asked = runs.iter().any(|run| run.results.precision(&metric.name).is_some());
        if is_asked && of.len() > 1 {
            found.push((metric, of));
        }
    }
    found
}

pub(super) fn precisions(comparison: &Comparison, shown: &[Metric]) -> Vec<String> {
    let note = |(metric, of): (&Metric, BTreeMap<&str, Vec<&Run>>)| {
        let of_word = |(word, of): (&str, Vec<&Run>)| {
            format!("in {word} of {}", names(&comparison.runs, of.into_iter()))
        };
        let sets = of.into_iter().map(of_word).collect();
        format!("{} was evaluated {}, whose rounding differs", metric.name, listed(sets))
    };
    by_precision(comparison, shown).into_iter().map(note).collect()
}

/// Whether a loss of training is compared of runs that drop unequal shares of activations.
pub(super) fn under_dropout(comparison: &Comparison, shown: &[Metric]) -> Option<String> {
    let is_of_training = |metric: &&Metric| metric.log == dir::TRAIN_CSV && metric.unit == Unit::Loss;
    let metric = shown.iter().map(Metric::measured).find(is_of_training)?;
    dropout_between(&metric.name, &comparison.differences.differing)
}

/// That a loss of training, which has this name, is no measure between runs that differ in these keys.
#[must_use]
pub fn dropout_between(loss: &str, differing: &[String]) -> Option<String> {
    differing.iter().any(|key| key == DROPOUT).then(|| {
        format!(
            "{loss} is measured while activations are dropped, so it is higher the larger {DROPOUT} is, whatever the \
             model has learned: only a validation loss compares them"
        )
    })
}

/// Which runs were trained on several hosts one after the other, where figures of time are shown. Processors of one
/// name need not be equally fast.
pub(super) fn several_hosts(comparison: &Comparison, shown: &[Metric]) -> Option<String> {
    let hosts = |run: &Run| {
        let spans = run.facts.spans.iter().filter(|span| span.seconds[0] < span.until);
        let hosts: BTreeSet<String> = spans.filter_map(Span::host).map(tame_line).collect();
        Some(hosts.into_iter().collect::<Vec<_>>()).filter(|hosts| hosts.len() > 1)
    };
    let moved = || comparison.runs.iter().filter_map(|run| Some((run, hosts(run)?)));
    (shown.iter().any(is_of_time) && moved().next().is_some()).then(|| {
        let in_words = |(run, hosts)| format!("{} (on {})", name(&comparison.runs, run), listed(hosts));
        format!(
            "trained in parts under several names of hosts, so speeds and seconds may be of several machines: {}",
            first_of(moved(), in_words)
        )
    })
}

/// Whether speeds in tokens, ways in them, or places by tokens, along a picture's `axis` as well, are compared of runs
/// whose tokens are not the same.
pub(super) fn other_tokens(comparison: &Comparison, shown: &[Metric], axis: Option<Axis>) -> Option<String> {
    let is_way = |metric: &Metric| metric.target.is_some() && metric.unit == Unit::Count;
    let is_of_tokens = |metric: &Metric| metric.unit == Unit::Rate || is_way(metric);
    let mut axes = comparison.cut.map(|cut| cut.axis).into_iter().chain(axis);
    let is_asked = axes.any(|axis| axis == Axis::Tokens) || shown.iter().any(is_of_tokens);
    (is_asked && comparison.differences.differing.iter().any(|key| key == TOKENIZER)).then(|| {
        format!(
            "runs differ in {TOKENIZER}: as many tokens are other amounts of text, and so are as many tokens per second"
        )
    })
}

/// Which runs imitated their precision, where others did not and figures of time or memory are shown or decide how far
/// runs are looked at.
pub(super) fn emulated(comparison: &Comparison, shown: &[Metric]) -> Option<String> {
    let runs = &comparison.runs;
    let emulated = || runs.iter().filter(|run| run.facts.emulated);
    let is_some = emulated().next().is_some() && emulated().count() < runs.len();
    let is_timed = runs.iter().any(|run| run.results.is_cut_by_time);
    (is_some && (is_timed || shown.iter().any(is_speed))).then(|| {
        format!(
            "the precision of {} was emulated by rounding: its losses are of that format, its speed and memory are not",
            names(runs, emulated())
        )
    })
}

/// Which runs read weights or a checkpoint, where others did not and memory is shown.
pub(super) fn resumed(comparison: &Comparison, shown: &[Metric]) -> Option<String> {
    let runs = &comparison.runs;
    let have_read = || runs.iter().filter(|run| run.parts.has_read);
    let is_some = have_read().next().is_some() && have_read().count() < runs.len();
    (is_some && shown.iter().any(|metric| metric.unit == Unit::Bytes)).then(|| {
        format!("{} also read a checkpoint or weights, which takes memory", names(runs, have_read()))
    })
}

/// Which runs were faster than the peak rate that their MFU is a fraction of.
pub(super) fn above_peak(comparison: &Comparison) -> Option<String> {
    let runs = &comparison.runs;
    let above = || runs.iter().filter(|run| is_above_peak(run));
    above().next().is_some().then(|| format!("{}: {ABOVE_PEAK}", names(runs, above())))
}

pub(super) fn is_above_peak(run: &Run) -> bool {
    run.results.get(MFU).is_some_and(|mfu| mfu > 1.0)
}

/// Whether a loss of a run that is shown is of data that it was trained on.
pub(super) fn is_of_seen(comparison: &Comparison, run: &Run) -> bool {
    let mut all = comparison.shown.iter().map(Metric::measured).chain(comparison.metrics());
    all.any(|metric| run.results.is_seen(&metric.name, run))
}
