//! `runner compare RUN...`: which was better, is the difference real, and what differed?

mod plot;
mod target;

use super::exit::Exit;
use super::terminal::say;
use super::{axis, exporter, find_runs, fitted};
use crate::cli::{AxisName, CompareArgs, TableFormat};
use crate::report::axis::Cut;
use crate::report::compare::{Comparison, Measure, Options, RowOrder};
use crate::report::document::document;
use crate::report::equal::first_difference;
use crate::report::export::Table;
use crate::report::fit::{Fitted, fit};
use crate::report::metrics::{self, Metric, metrics};
use crate::report::own::changed_logs;
use crate::report::runs::common_end;
use crate::report::target::Target;
use crate::run::find;
use crate::session::UsageError;
use plot::Drawing;
use std::path::PathBuf;

/// Prints the comparison.
pub(super) fn run(args: &CompareArgs) -> anyhow::Result<Exit> {
    if args.runs.is_empty() {
        // what a script hands over after a sweep that failed
        let message = "no runs are named: `runner compare runs` compares all of a directory";
        return Err(UsageError(message.to_owned()).into());
    }
    if args.assert_equal {
        return assert_equal(args);
    }
    let paths = find_runs(&args.dir, &args.runs)?;
    if paths.is_empty() {
        return Err(UsageError("there is no run to compare".into()).into());
    }
    let for_people = matches!(args.format, TableFormat::Table | TableFormat::Markdown);
    let targets = target::targets(&args.target, &paths)?;
    let further = further(args, &paths, &targets);
    let drawing = Drawing::new(&args.plots, &paths, &targets, args.align.map(axis))?;
    let mut options = Options {
        cut: cut(args, &paths)?,
        judge: None,
        further,
        named: Vec::new(),
        drawn: drawing.metrics(&paths),
        for_people,
        targets,
        order: match args.sort.as_deref() {
            None => RowOrder::Best,
            Some("given") => RowOrder::Given,
            Some(name) => RowOrder::By(name.to_owned()),
        },
        reverse: args.reverse,
    };
    options.judge = args.by.as_deref().map(|name| metric(name, &options)).transpose()?;
    options.named = named(&args.metrics, &options)?;
    let comparison = Comparison::new(&paths, &options)?;
    if comparison.runs.is_empty() {
        // all were removed since they were found
        return Err(UsageError("there is no run to compare".into()).into());
    }
    if let RowOrder::By(name) = &options.order {
        check_key(name, &options, &comparison)?;
    }
    let plots = drawing.of(&comparison)?;
    for remark in comparison.remarks() {
        say(&remark);
    }
    let of_each = (args.format == TableFormat::Csv).then(|| {
        // a table of values has no place for sentences
        let (notes, of_each) = comparison.notes_with_those_of_each();
        let cut = comparison.cut.map(Cut::shown);
        cut.into_iter().chain(notes).for_each(|note| say(&format!("note: {note}")));
        of_each
    });
    plots.write()?;
    super::print(&match (args.format, of_each) {
        (TableFormat::Json, _) => document(&comparison),
        (format, Some(of_each)) => exporter(format).export(&comparison.table_with_notes(of_each)),
        (_, None) => text(args, &comparison),
    })?;
    Ok(Exit::Finished)
}

/// The tables and sentences for people.
fn text(args: &CompareArgs, comparison: &Comparison) -> String {
    let measures = &comparison.measures;
    let exporter = exporter(args.format);
    let room = super::room(&args.width, args.format);
    let prose = |text: &str| fitted(&exporter.sentence(text), room);
    let item = |text: &str| fitted(&exporter.item(text), room);
    // what was asked for by name stays
    let leaving = comparison.leaving(if args.metrics.is_empty() { measures } else { &[] });
    let table = |table: Table| {
        let Some(room) = room else { return exporter.export(&table) };
        let Fitted { table, hidden } = fit(&table, room, &leaving);
        let hidden = hidden
            .map(|hidden| format!("\n{}", prose(&format!("{hidden}; --wide shows all, --metrics chooses"))));
        exporter.export(&table) + &hidden.unwrap_or_default()
    };
    let mut out = prose(&comparison.shared_line());
    out.extend(comparison.cut.map(|cut| cut.shown() + "\n"));
    if !comparison.targets.is_empty() {
        let targets: Vec<String> = comparison.targets.iter().map(Target::shown).collect();
        let what = "the way to the first evaluation as good";
        out += &prose(&format!("target {}: {what}", targets.join(" and ")));
    }
    out += &format!("\n{}", table(comparison.table(measures)));
    let notes = comparison.notes();
    if !notes.is_empty() {
        out += "\n";
        out.extend(notes.iter().map(|note| item(note)));
    }
    if comparison.has_replicas() {
        out += "\nreplicas, mean ± standard deviation over seeds\n\n";
        out += &table(comparison.replicas(measures));
    }
    let sentences = comparison.in_short("--format json");
    if !sentences.is_empty() {
        out += "\n";
        out.extend(sentences.iter().map(|sentence| item(sentence)));
    }
    out
}

/// The point at which runs are aligned.
fn cut(args: &CompareArgs, paths: &[PathBuf]) -> anyhow::Result<Option<Cut>> {
    let Some(name) = args.align else { return Ok(None) };
    let axis = axis(name);
    let at = match args.at {
        Some(at) if name != AxisName::Time && at.fract() != 0.0 => {
            let what = if name == AxisName::Step { "steps" } else { "tokens" };
            return Err(UsageError(format!("--at {at}: {what} are counted in whole numbers")).into());
        }
        Some(at) => at,
        None => common_end(paths, axis).ok_or_else(|| {
            UsageError("no run has a row yet, so there is no point that all have reached".into())
        })?,
    };
    Ok(Some(Cut { axis, at }))
}

/// What the arguments name that is no metric of the table of columns, but a column of some run's `val.csv`; the best
/// values of targets among them.
fn further(args: &CompareArgs, paths: &[PathBuf], targets: &[Target]) -> Vec<Metric> {
    let mut further: Vec<Metric> = Vec::new();
    for best in targets.iter().map(|target| &target.best) {
        if metrics::find(&best.name).is_none() && !further.contains(best) {
            further.push(best.clone());
        }
    }
    for name in args.metrics.iter().chain(&args.by).chain(&args.sort) {
        if Measure::find(name).is_none() && further.iter().all(|metric| metric.name != *name) {
            further.extend(metrics::further(paths, name));
        }
    }
    further
}

/// The measures that the arguments name.
fn named(names: &[String], options: &Options) -> anyhow::Result<Vec<Measure>> {
    let measure = |name: &String| Measure::find(name).or_else(|| options.metric(name).map(Measure::Own));
    names.iter().map(|name| Ok(measure(name).ok_or_else(|| unknown(name, Measure::names()))?)).collect()
}

fn metric(name: &str, options: &Options) -> anyhow::Result<Metric> {
    let known = || metrics().iter().map(|metric| metric.name.as_str());
    Ok(options.metric(name).ok_or_else(|| unknown(name, known()))?)
}

fn unknown(name: &str, known: impl Iterator<Item = &'static str>) -> UsageError {
    UsageError(format!("`{name}` is not a metric; there are {}", known.collect::<Vec<_>>().join(", ")))
}

/// Sorting by what no run has would pass over a mistyped name in silence.
fn check_key(name: &str, options: &Options, comparison: &Comparison) -> anyhow::Result<()> {
    let known = options.metric(name).is_some()
        || comparison.differences.differing.iter().any(|key| key == name)
        || comparison.differences.shared.iter().any(|(key, _)| key == name);
    if known {
        return Ok(());
    }
    let keys = match comparison.differences.differing.join(", ") {
        keys if keys.is_empty() => "nothing".to_owned(),
        keys => keys,
    };
    Err(UsageError(format!(
        "cannot sort by `{name}`: it is no metric and no key of these runs; they differ in {keys}"
    ))
    .into())
}

/// Compares every run's logs with the first one's. What is named and is no run is equal to none.
fn assert_equal(args: &CompareArgs) -> anyhow::Result<Exit> {
    let mut exit = Exit::Finished;
    let paths = find::all(&args.dir.runs_dir, &args.runs, |name| {
        say(&format!("`{}` is not a run and holds none: it is equal to nothing", name.display()));
        exit = Exit::Failure;
    })?;
    let [first, others @ ..] = &paths[..] else {
        return Err(UsageError("--assert-equal needs two runs".into()).into());
    };
    if others.is_empty() {
        let message = format!("--assert-equal needs two runs, there is only `{}`", first.display());
        return Err(UsageError(message).into());
    }
    for path in &paths {
        changed_logs(path).iter().for_each(|changed| say(&format!("warning: {changed}")));
    }
    for other in others {
        let pair = format!("{} and {}", first.display(), other.display());
        match first_difference(first, other, args.rtol)? {
            None => say(&format!("{pair}: equal")),
            Some(found) => {
                say(&format!("{pair}: {found}"));
                exit = Exit::Failure;
            }
        }
    }
    Ok(exit)
}
