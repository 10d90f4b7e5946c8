//! Evaluations as a table, as JSON, and the sentences below.

use crate::eval::Definition;
use crate::report::export::{Cell, Column, Table, number};
use crate::report::fit::Leaving;
use crate::report::numbers::thousands;
use crate::run::column::Unit;
use crate::run::columns;
use crate::session::evaluation::{Evaluated, LossOn, TaskScores};
use crate::wording::noun_of;
use serde_json::{Map, Value, json};
use std::collections::BTreeMap;

/// The names of all numbers, in the order in which they first occur, with whether one has a standard error.
fn names(evaluated: &[Evaluated]) -> Vec<(String, bool)> {
    let mut names: Vec<(String, bool)> = Vec::new();
    for (name, _, standard_error) in evaluated.iter().flat_map(Evaluated::values) {
        match names.iter_mut().find(|(known, _)| *known == name) {
            Some((_, has_error)) => *has_error |= standard_error.is_some(),
            None => names.push((name, standard_error.is_some())),
        }
    }
    names
}

/// A number for people: an accuracy in percent with its standard error.
fn shown(value: f64, standard_error: Option<f64>, is_accuracy: bool) -> String {
    match standard_error {
        Some(error) => format!("{:.2} ± {:.2} %", 100.0 * value, 100.0 * error),
        None if is_accuracy => format!("{:.2} %", 100.0 * value),
        None => format!("{value:.4}"),
    }
}

/// One row per model. For programs, standard errors have columns of their own.
pub(super) fn table(evaluated: &[Evaluated], for_people: bool) -> Table {
    let mut columns = vec![Column::words("model", "model"), Column::numbers("step", "step")];
    let names = names(evaluated);
    for (name, has_error) in &names {
        columns.push(Column::numbers(name, &name.replace('_', " ")));
        if *has_error && !for_people {
            let name = format!("{name}_stderr");
            columns.push(Column::numbers(&name, &name));
        }
    }
    let row = |one: &Evaluated| {
        let step = one.run.as_ref().map(|of| of.step as f64);
        let step = Cell::number(step, |step| thousands(step as u64));
        let mut row = vec![Cell::text(one.model.clone()), step];
        let values = one.values();
        for (name, has_error) in &names {
            let found = values.iter().find(|(known, ..)| known == name);
            let (value, error) = found.map_or((None, None), |(_, value, error)| (Some(*value), *error));
            let is_accuracy = columns::outside_the_table(name).0 == Unit::Fraction;
            row.push(Cell::number(value, |value| shown(value, error, is_accuracy)));
            if *has_error && !for_people {
                row.push(Cell::number(error, |error| error.to_string()));
            }
        }
        row
    };
    let mut table = Table { columns, rows: evaluated.iter().map(row).collect() };
    if for_people && evaluated.iter().all(|one| one.run.is_none()) {
        table.remove_column(1);
    }
    table
}

/// Which columns go where there is no room: the last ones first, the loss last.
pub(super) fn leaving(table: &Table) -> Leaving {
    let first = table.columns.iter().skip(2).rev().map(|column| column.name.clone()).collect();
    Leaving { first, at_last: Vec::new() }
}

/// What to know about the numbers: definitions, how many examples, what was cut.
pub(super) fn notes(evaluated: &[Evaluated]) -> Vec<String> {
    let mut notes: Vec<String> = Vec::new();
    let mut add = |note: String| {
        if !notes.contains(&note) {
            notes.push(note);
        }
    };
    evaluated.iter().filter_map(|one| one.unknown_tokens.clone()).for_each(&mut add);
    for (name, losses) in losses(evaluated) {
        for on in &losses {
            let (tokens, data) = (thousands(on.loss.tokens), on.data.join(", "));
            add(format!("{name}: nats per token, mean over the first {tokens} tokens of {data}"));
        }
        apart(&name, &losses).into_iter().for_each(&mut add);
        let is_seen = |one: &&Evaluated| one.on(&name).is_some_and(|on| on.is_seen);
        for one in evaluated.iter().filter(is_seen) {
            add(format!(
                "{name}: {} was trained on some of these data, and a loss on seen data says nothing about new data",
                one.model
            ));
        }
    }
    for task in evaluated.iter().flat_map(|one| &one.tasks) {
        let examples = task.tally.examples;
        for score in &task.scores {
            let noun = noun_of(examples, "example");
            add(format!("{}: {}; {} {noun}", score.name, score.definition, thousands(examples)));
        }
    }
    for one in evaluated {
        for task in &one.tasks {
            about_cut(&one.model, task).into_iter().for_each(&mut add);
            if task.tally.not_finite > 0 {
                let what = noun_of(task.tally.not_finite, "ending");
                add(format!(
                    "{}: {}: the loss of {} {what} is no finite number; they count as not chosen",
                    one.model, task.name, task.tally.not_finite
                ));
            }
        }
    }
    notes
}

/// The losses of all models by their names: the main one, then those on named sets.
fn losses(evaluated: &[Evaluated]) -> BTreeMap<String, Vec<&LossOn>> {
    let mut losses: BTreeMap<String, Vec<&LossOn>> = BTreeMap::new();
    for (name, on) in evaluated.iter().flat_map(Evaluated::losses) {
        losses.entry(name).or_default().push(on);
    }
    losses
}

/// Why the losses of a name cannot be compared, if they cannot.
fn apart(name: &str, losses: &[&LossOn]) -> Option<String> {
    let first = losses.first()?;
    let differs = |differs: fn(&LossOn, &LossOn) -> bool| losses.iter().any(|on| differs(on, first));
    let (how, instead) = if differs(|a, b| a.digest != b.digest) {
        ("of different data", "--data names the same for all")
    } else if differs(|a, b| a.tokenizer != b.tokenizer) {
        match first.of_bytes().filter(|_| !differs(|a, b| a.of_bytes() != b.of_bytes())) {
            Some(_) => ("per token of different tokenizers", "bits per byte can"),
            None => (
                "per token of different tokenizers, and of different bytes",
                "bits per byte could if all of a text were read: name it with --data, without --tokens",
            ),
        }
    } else if differs(|a, b| a.loss.tokens != b.loss.tokens) {
        ("of different numbers of tokens", "--tokens gives all the same")
    } else if differs(|a, b| a.of_rows != b.of_rows) {
        ("of different tokens, since the files hold whole rows of different lengths", "data in one file can")
    } else {
        return None;
    };
    Some(format!("{name}: the losses are {how} and cannot be compared; {instead}"))
}

fn about_cut(model: &str, task: &TaskScores) -> Option<String> {
    let (cut, examples, block_size) = (task.cut, task.tally.examples, task.block_size);
    if cut.contexts == 0 {
        return None;
    }
    let endings = match cut.endings {
        0 => String::new(),
        endings => format!(
            "; of {endings} of them an ending alone is longer, of which the last {block_size} tokens are scored"
        ),
    };
    Some(format!(
        "{model}: {}: {} of {examples} examples are longer than the model's context of {block_size} tokens and lost \
         the beginning of their text{endings}",
        task.prefix, cut.contexts
    ))
}

/// The document for programs.
pub(super) fn document(evaluated: &[Evaluated], precision: &str) -> String {
    let models: Vec<Value> = evaluated.iter().map(|one| model(one, precision)).collect();
    format!("{:#}\n", Value::from(models))
}

fn model(one: &Evaluated, precision: &str) -> Value {
    // that nothing is known of it does not make data new to the model
    let known_seen = |is_seen: bool| is_seen.then_some(true);
    let (mut metrics, mut errors, mut definitions) = (Map::new(), Map::new(), Map::new());
    for (name, value, standard_error) in one.values() {
        if let Some(error) = standard_error {
            errors.insert(name.clone(), number(error));
        }
        metrics.insert(name, number(value));
    }
    for score in one.tasks.iter().flat_map(|task| &task.scores) {
        definitions.insert(score.name.clone(), score.definition.into());
    }
    let task = |task: &TaskScores| {
        let definition = match task.definition {
            Definition::PerToken => "per_token",
            Definition::LmEval => "lm_eval",
        };
        json!({
            "name": task.name,
            "definition": definition,
            "examples": task.tally.examples,
            "cut_contexts": task.cut.contexts,
            "cut_endings": task.cut.endings,
            "not_finite": task.tally.not_finite,
            "tokens": task.tally.tokens,
            "computed_tokens": task.tally.computed,
        })
    };
    json!({
        "model": one.model,
        "step": one.run.as_ref().map(|of| of.step),
        "tokens": one.run.as_ref().map(|of| of.tokens),
        "precision": precision,
        "metrics": metrics,
        "stderr": errors,
        "definitions": definitions,
        "data": one.loss.as_ref().map(|on| json!({
            "files": on.data, "digest": on.digest, "tokens": on.loss.tokens, "bytes": on.loss.bytes,
            "seen": known_seen(on.is_seen),
        })),
        "sets": one.others.iter().map(|(name, on)| json!({
            "name": name, "files": on.data, "digest": on.digest, "tokens": on.loss.tokens,
            "seen": known_seen(on.is_seen),
        })).collect::<Vec<_>>(),
        "tasks": one.tasks.iter().map(task).collect::<Vec<_>>(),
    })
}
