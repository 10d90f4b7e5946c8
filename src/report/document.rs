//! A comparison as one JSON document, and the JSON Schema that says what is in it.
//!
//! The schema is committed as `docs/compare.schema.json`; a test holds the two together, and documents against it.

use super::axis::{Axis, Cut};
use super::compare::Comparison;
use super::differences;
use super::export::number;
use super::groups::Verdict;
use super::metrics::{Metric, metrics};
use super::runs::Run;
use super::target::Target;
use crate::run::RunStatus;
use crate::run::column::Better;
use serde_json::{Map, Value, json};

/// The version of the document. Fields may be added under the same version, but none taken away or changed.
pub const FORMAT_VERSION: u64 = 1;

/// The document, ended by a newline.
#[must_use]
pub fn document(comparison: &Comparison) -> String {
    let measures = &comparison.measures;
    let Comparison { runs, differences, groups, verdicts, targets, cut, .. } = comparison;
    let is_asked = |metric: &Metric| comparison.asked.contains(metric);
    let mixed: Vec<_> = comparison.mixed().filter(|(metric, _)| is_asked(metric)).collect();
    let footing = comparison.footing();
    let measured = |i: usize| -> Map<String, Value> {
        measures
            .iter()
            .map(|measure| (measure.name().to_owned(), measure.cell(comparison, i).value))
            .collect()
    };
    let (notes, notes_of_each) = comparison.notes_with_those_of_each();
    let all: Vec<Value> = runs
        .iter()
        .enumerate()
        .map(|(i, run)| {
            let keys = differences.differing.iter();
            let values: Map<String, Value> =
                keys.filter_map(|key| Some((key.clone(), differences::value(run, key)?))).collect();
            json!({
                "id": run.id,
                "path": run.path.display().to_string(),
                "status": run.status,
                "complete": run.complete,
                "emulated": run.facts.emulated,
                "error": run.facts.error,
                "differing": values,
                "metrics": measured(i),
                "warnings": run.warnings,
                "interpolated": run.results.interpolated(),
                "set": footing.sets[i],
                "sets": mixed
                    .iter()
                    .filter_map(|(metric, footing)| Some((metric.name.clone(), footing.sets[i]?.into())))
                    .collect::<Map<String, Value>>(),
                "notes": notes_of_each[i],
                "targets": targets.iter().map(|target| way(run, target)).collect::<Vec<_>>(),
            })
        })
        .collect();
    // once for all groups, also of a metric that is not shown
    let footings: Vec<_> =
        comparison.metrics().map(|metric| (metric, comparison.footing_by(metric))).collect();
    let groups: Vec<Value> = groups
        .iter()
        .map(|group| {
            let spreads = footings.iter().filter_map(|(metric, footing)| {
                let spread = footing.spread(group, &comparison.runs, metric)?;
                let value =
                    json!({ "mean": number(spread.mean), "sd": spread.sd.map(number), "n": spread.n });
                Some((metric.name.clone(), value))
            });
            let ids: Vec<&str> = group.runs.iter().map(|&i| comparison.runs[i].id.as_str()).collect();
            let copies: Vec<&str> =
                group.copies.iter().map(|&(copy, _)| comparison.runs[copy].id.as_str()).collect();
            let reached = targets.iter().map(|target| {
                let (reached, of) = group.count_reached(&comparison.runs, target);
                json!({ "reached": reached, "of": of, "open": group.open(&comparison.runs, target).count() })
            });
            json!({
                "targets": reached.collect::<Vec<_>>(),
                "label": group.label,
                "runs": ids,
                "metrics": spreads.collect::<Map<_, _>>(),
                "copies": copies,
            })
        })
        .collect();
    let document = json!({
        "format_version": FORMAT_VERSION,
        "cut": cut.map(|Cut { axis, at }| json!({ "axis": word(axis), "at": number(at) })),
        "shared": differences.shared.iter().cloned().collect::<Map<_, _>>(),
        "differing": differences.differing,
        "runs": all,
        "judged_by": comparison.judge().name,
        "targets": targets.iter().map(described).collect::<Vec<_>>(),
        "groups": groups,
        "tests": verdicts.iter().map(test).collect::<Vec<_>>(),
        "notes": notes.into_iter().chain(comparison.caveats()).collect::<Vec<_>>(),
    });
    format!("{document:#}\n")
}

fn described(target: &Target) -> Value {
    let is_lower = target.better == Better::Lower;
    json!({
        "name": target.name(),
        "column": target.column,
        "value": number(target.value),
        "reached_from": if is_lower { "above" } else { "below" },
    })
}

/// The way of a run to a target.
fn way(run: &Run, target: &Target) -> Value {
    let [steps, tokens, seconds] = target.way(&run.results).map_or([None; 3], |way| way.map(Some));
    let known = |value: Option<f64>| value.filter(|value| !value.is_nan()).map(number);
    json!({
        "reached": steps.is_some(),
        "interpolated": target.is_interpolated(&run.results),
        "steps": known(steps),
        "tokens": known(tokens),
        "seconds": known(seconds),
        "best": run.results.get(&target.best.name).map(number),
    })
}

fn word(axis: Axis) -> &'static str {
    match axis {
        Axis::Step => "step",
        Axis::Tokens => "tokens",
        Axis::Time => "time",
    }
}

fn test(verdict: &Verdict) -> Value {
    json!({
        "metric": verdict.metric.name,
        "better": verdict.groups.0,
        "other": verdict.groups.1,
        "difference": number(verdict.spreads.1.mean - verdict.spreads.0.mean),
        "interval": verdict.interval.map(|(low, high)| json!([number(low), number(high)])),
        "t": verdict.test.map(|test| number(test.t)),
        "df": verdict.test.map(|test| number(test.df)),
        "p": verdict.test.map(|test| number(test.p)),
        "p_adjusted": verdict.p_adjusted.map(number),
        "distinguishable": verdict.test.map(|_| verdict.is_distinguishable()),
        "seeds_needed": verdict.seeds_needed,
    })
}

/// The JSON Schema (draft 2020-12) of [`document`], without a final newline.
#[must_use]
pub fn schema() -> String {
    let word = json!({ "enum": ["NaN", "inf", "-inf"] });
    let number = |doc: &str| json!({ "anyOf": [{ "type": "number" }, word], "description": doc });
    let or_null = |schema: Value| json!({ "anyOf": [schema, { "type": "null" }] });
    let list = |items: Value, doc: &str| json!({ "type": "array", "items": items, "description": doc });
    let text = |doc: &str| json!({ "type": "string", "description": doc });
    let mut values: Map<String, Value> =
        metrics().iter().map(|metric| (metric.name.clone(), or_null(number(&metric.meaning)))).collect();
    values.insert("speedup".into(), or_null(number("tokens per second over those of the first run")));
    values.insert("gain".into(), or_null(number("tokens per second over those of the run before")));
    let recipe = |doc: &str| json!({ "type": "object", "description": doc, "additionalProperties": true });
    let spread = object(&[
        ("mean", number("arithmetic mean")),
        ("sd", or_null(number("sample standard deviation; null for one run"))),
        (
            "n",
            json!({ "type": "integer", "minimum": 1, "description": "complete runs that have the metric" }),
        ),
    ]);
    let spreads: Map<String, Value> = metrics().iter().map(|m| (m.name.clone(), spread.clone())).collect();
    let index = |doc: &str| json!({ "type": "integer", "minimum": 0, "description": doc });
    let further_number = or_null(number(
        "a further column of val.csv or eval.csv that was asked for by name, or the way to a target",
    ));
    let way = object(&[
        ("reached", json!({ "type": "boolean", "description": "some evaluation was as good" })),
        (
            "interpolated",
            json!({ "type": "boolean", "description": "it lies linearly between two evaluations" }),
        ),
        ("steps", or_null(number("optimizer steps until then; null if it was not reached"))),
        ("tokens", or_null(number("tokens trained on until then"))),
        ("seconds", or_null(number("seconds trained until then"))),
        ("best", or_null(number("the best value of the column; null without one"))),
    ]);
    let run = object(&[
        ("id", text("name of the run directory")),
        ("path", text("the directory as it was found")),
        ("status", json!({ "enum": RunStatus::ALL.map(|status| status.to_string()) })),
        (
            "complete",
            json!({ "type": "boolean", "description": "it came as far as it is looked at: to the cut, or to its end" }),
        ),
        ("emulated", json!({ "type": "boolean", "description": "its precision was imitated by rounding" })),
        ("error", or_null(text("why it failed or diverged"))),
        ("differing", recipe("its values of the keys that differ, where it has them")),
        (
            "metrics",
            json!({ "type": "object", "properties": values, "additionalProperties": further_number }),
        ),
        ("warnings", list(text("one line"), "what was odd about its files")),
        (
            "interpolated",
            list(
                text("a metric"),
                "metrics of evaluations whose value at the cut, and of ways to targets whose end, lies linearly \
                 between the evaluations on both sides",
            ),
        ),
        (
            "set",
            or_null(index(
                "runs of the same set had the judged metric measured on the same data, and only these are ranked and \
                 tested against each other; null without the metric",
            )),
        ),
        (
            "sets",
            json!({
                "type": "object",
                "additionalProperties": index("the runs with the same number can be compared"),
                "description": "the metrics, asked for by name, that were measured on different data",
            }),
        ),
        ("notes", list(text("a phrase"), "what a reader should know about it")),
        ("targets", list(way, "its way to each of the targets")),
    ]);
    let reached = object(&[
        ("reached", index("runs that reached it, which its means are of")),
        ("of", index("runs of which it is known, one for each seed")),
        ("open", index("further runs that may reach it yet, one for each seed")),
    ]);
    let group = object(&[
        ("targets", list(reached, "of each target")),
        ("label", text("what tells it from the other groups")),
        ("runs", list(text("an id"), "its runs")),
        ("metrics", json!({ "type": "object", "properties": spreads, "additionalProperties": spread })),
        (
            "copies",
            list(
                text("an id"),
                "those of its runs that do not count, because another one has the same recipe and seed",
            ),
        ),
    ]);
    let test = object(&[
        ("metric", text("what is compared")),
        ("better", index("the group with the better mean, by its place in groups")),
        ("other", index("the group that it is held against")),
        ("difference", number("mean of the other group minus mean of the better one")),
        (
            "interval",
            or_null(list(
                number("a bound"),
                "confidence interval of the difference; all pairs' hold together in 95 of 100 cases (Bonferroni)",
            )),
        ),
        (
            "t",
            or_null(number(
                "Welch's t; null if a group has one run, nothing varies, or evaluations or runs that may reach a \
                 target yet leave the order open",
            )),
        ),
        ("df", or_null(number("degrees of freedom by Welch and Satterthwaite"))),
        ("p", or_null(number("two-sided p-value"))),
        ("p_adjusted", or_null(number("the same held against the number of all pairs of groups (Holm)"))),
        ("distinguishable", or_null(json!({ "type": "boolean", "description": "p_adjusted is below 0.05" }))),
        (
            "seeds_needed",
            or_null(json!({
                "type": "integer",
                "minimum": 2,
                "description": "seeds per group with which the test, held against the number of pairs of groups, would \
                                find a difference of this size in four of five cases; null where it is settled, there \
                                is no test, or they are more than 10,000",
            })),
        ),
    ]);
    let target = object(&[
        (
            "name",
            text(
                "as it was asked for: a column and a value; the metrics steps_to_NAME and so on are the way there",
            ),
        ),
        ("column", text("the column of the logs")),
        ("value", number("the value")),
        ("reached_from", json!({ "enum": ["above", "below"] })),
    ]);
    let cut = object(&[
        ("axis", json!({ "enum": ["step", "tokens", "time"] })),
        ("at", number("the last value that counts")),
    ]);
    let mut schema = object(&[
        ("format_version", json!({ "const": FORMAT_VERSION })),
        ("cut", or_null(cut)),
        ("shared", recipe("keys of the recipes with the same value in every run")),
        (
            "differing",
            list(text("a key"), "keys of the recipes whose values differ; run.* are facts about the machine"),
        ),
        ("runs", list(run, "the runs, in order")),
        ("judged_by", text("the metric that the runs are ranked by and, but for several targets, tested")),
        (
            "targets",
            list(
                target,
                "values that the runs are to reach; tokens to each are tested unless something else is",
            ),
        ),
        ("groups", list(group, "runs whose recipes differ only in the seed")),
        ("tests", list(test, "Welch's t-test of the best group of each set against the set's other ones")),
        (
            "notes",
            list(text("a sentence"), "what a reader must know before believing the figures, means and tests"),
        ),
    ]);
    let head = json!({
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "A comparison of runs",
        "description": "what `runner compare --format json` prints",
    });
    if let (Value::Object(mut head), Some(body)) = (head, schema.as_object_mut()) {
        head.append(body);
        return format!("{:#}", Value::Object(head));
    }
    schema.to_string()
}

/// An object that has all of these and nothing else.
fn object(members: &[(&str, Value)]) -> Value {
    let properties: Map<String, Value> =
        members.iter().map(|(name, schema)| ((*name).to_owned(), schema.clone())).collect();
    let required: Vec<&str> = members.iter().map(|(name, _)| *name).collect();
    json!({ "type": "object", "properties": properties, "required": required, "additionalProperties": false })
}
