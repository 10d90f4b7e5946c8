//! `runner eval MODEL...`: losses and accuracies of models, side by side.

mod table;

use super::exit::Exit;
use super::terminal::say;
use super::voice::Voice;
use super::{exporter, fitted};
use crate::cli::{EvalArgs, TableFormat};
use crate::data::NoProgress;
use crate::eval::Kind;
use crate::regular;
use crate::report::fit::{Fitted, fit};
use crate::session::UsageError;
use crate::session::audience::Silence;
use crate::session::evaluation::{
    Evaluated, Request, TaskFile, Tasks, Working, all_checkpoints, evaluate, evaluate_named, no_run,
};
use crate::session::model::{Options, Source};
use crate::session::task_names;
use crate::wording::task_name;
use anyhow::Context;
use std::cell::Cell;
use std::collections::BTreeSet;
use std::path::Path;
use std::time::{Duration, Instant};

/// Between two lines that say how far the work is.
const PAUSE: Duration = Duration::from_secs(5);

/// Evaluates the models and prints a table of them.
pub(super) fn run(args: &EvalArgs) -> anyhow::Result<Exit> {
    let options = Options { micro_batch: args.micro_batch, ..super::options(&args.compute)? };
    let said = Cell::new(Instant::now());
    let tell = |working: &Working| {
        if said.get().elapsed() >= PAUSE {
            said.set(Instant::now());
            let Working { model, what, passes } = working;
            let percent = 100 * passes.done / passes.total.max(1);
            say(&format!("{model}: {what}: {percent} %"));
        }
    };
    let task_files = task_files(args)?;
    let request = Request {
        data: &args.data,
        tokens: args.tokens,
        tasks: &task_files,
        lm_eval: args.lm_eval,
        options,
        runs_dir: &args.runs.runs_dir,
        progress: &NoProgress,
        tell: &tell,
    };
    if args.save {
        // before the work, and not after it
        for named in &args.models {
            let source = Source::find(named, request.runs_dir, &Silence)?;
            let run = source.run().ok_or_else(|| no_run(&named.display().to_string()))?;
            regular::followed(run, request.runs_dir).with_context(|| run.display().to_string())?;
        }
    }
    let (mut tasks, voice) = (Tasks::default(), Voice::default());
    let mut evaluated = Vec::new();
    let mut keep = |one: Evaluated| -> anyhow::Result<()> {
        let saved =
            args.save.then(|| one.save(args.compute.precision.as_str(), request.runs_dir)).transpose();
        let model = one.model.clone();
        evaluated.push(one);
        if let Some(path) = saved? {
            say(&format!("{model}: appended to {}", path.display()));
        }
        Ok(())
    };
    let mut all = || -> anyhow::Result<()> {
        for named in &args.models {
            if !args.all_checkpoints {
                keep(evaluate_named(named, &request, &mut tasks, &voice)?)?;
                continue;
            }
            let left_out = |path: &Path, error: &_| {
                say(&format!("`{}` is left out: {error}", path.display()));
            };
            for source in all_checkpoints(named, request.runs_dir, left_out)? {
                let path = source.weights().to_owned();
                match evaluate(source, &request, &mut tasks, &voice) {
                    Ok(one) => keep(one)?,
                    Err(_) if !path.exists() => say(&format!("`{}` is gone; left out", path.display())),
                    Err(error) => return Err(error),
                }
            }
        }
        Ok(())
    };
    let ended = all();
    // what was computed is not lost with what could not be
    if ended.is_ok() || !evaluated.is_empty() {
        print(args, &evaluated)?;
    }
    ended.map(|()| Exit::Finished)
}

/// The files of tasks with the names of their scores. Errors: a name that a task cannot have, two tasks of one name.
fn task_files(args: &EvalArgs) -> Result<Vec<TaskFile>, UsageError> {
    let mut files = Vec::new();
    let named = [
        ("hellaswag", &args.hellaswag, (Kind::Choice, "--lambada")),
        ("lambada", &args.lambada, (Kind::LastWord, "--tasks")),
    ];
    for (name, path, wanted) in named {
        files.extend(path.clone().map(|path| TaskFile { name: name.into(), path, wanted: Some(wanted) }));
    }
    for path in &args.tasks {
        files.push(TaskFile { name: task_name(path), path: path.clone(), wanted: None });
    }
    for TaskFile { name, path, .. } in &files {
        if let Err(reason) = task_names::check(name) {
            return Err(UsageError(format!("`{}`: {reason}: give the file another name", path.display())));
        }
    }
    let mut seen = BTreeSet::new();
    match files.iter().find(|file| !seen.insert(file.name.clone())) {
        None => Ok(files),
        Some(TaskFile { name, path, .. }) => Err(UsageError(format!(
            "two tasks are called `{name}`, the second of them `{}`: give its file another name",
            path.display()
        ))),
    }
}

fn print(args: &EvalArgs, evaluated: &[Evaluated]) -> anyhow::Result<()> {
    let notes = table::notes(evaluated);
    let exporter = exporter(args.format);
    let text = match args.format {
        TableFormat::Json => {
            let unknown: Vec<_> = evaluated.iter().filter_map(|one| one.unknown_tokens.as_ref()).collect();
            unknown.iter().for_each(|what| say(&format!("warning: {what}")));
            let others = notes.iter().filter(|note| !unknown.contains(note));
            others.for_each(|note| say(&format!("note: {note}")));
            table::document(evaluated, args.compute.precision.as_str())
        }
        TableFormat::Csv => {
            // a table of values has no place for sentences
            notes.iter().for_each(|note| say(&format!("note: {note}")));
            exporter.export(&table::table(evaluated, false))
        }
        TableFormat::Table | TableFormat::Markdown => {
            let room = super::room(&args.width, args.format);
            let table = table::table(evaluated, true);
            let (table, hidden) = match room {
                None => (table, None),
                Some(room) => {
                    let Fitted { table, hidden } = fit(&table, room, &table::leaving(&table));
                    (table, hidden)
                }
            };
            let hidden = hidden.map(|hidden| exporter.sentence(&format!("{hidden}; --wide shows all")));
            let hidden = hidden.map(|hidden| fitted(&hidden, room)).unwrap_or_default();
            let notes: String = notes.iter().map(|note| fitted(&exporter.item(note), room)).collect();
            exporter.export(&table) + &hidden + "\n" + &notes
        }
    };
    super::print(&text)?;
    Ok(())
}
