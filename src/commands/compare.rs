//! `runner compare RUN...`: which was better, is the difference real, and what differed?

mod plot;

use super::exit::Exit;
use super::terminal::say;
use super::{exporter, find_runs};
use crate::cli::{AxisName, CompareArgs, TableFormat};
use crate::report::axis::{Axis, Cut};
use crate::report::compare::{Comparison, Measure, Options, RowOrder};
use crate::report::document::document;
use crate::report::equal::first_difference;
use crate::report::metrics::{self, Metric, metrics};
use crate::report::numbers::{seconds, thousands};
use crate::report::runs::common_end;
use crate::session::UsageError;
use std::path::PathBuf;

/// More sentences about groups than these say no more to a reader; JSON has them all.
const MOST_SENTENCES: usize = 12;

/// Prints the comparison.
pub(super) fn run(args: &CompareArgs) -> anyhow::Result<Exit> {
    let paths = find_runs(&args.dir, &args.runs)?;
    if args.assert_equal {
        return assert_equal(args, &paths);
    }
    if paths.is_empty() {
        return Err(UsageError("there is no run to compare".into()).into());
    }
    let for_people = matches!(args.format, TableFormat::Table | TableFormat::Markdown);
    let further = further(args, &paths)?;
    let measures = measures(&args.metrics, &further, for_people)?;
    let options = Options {
        cut: cut(args, &paths)?,
        judge: args.by.as_deref().map(|name| metric(name, &further)).transpose()?,
        further,
        order: match args.sort.as_deref() {
            None => RowOrder::Best,
            Some("given") => RowOrder::Given,
            Some(name) => RowOrder::By(name.to_owned()),
        },
        reverse: args.reverse,
    };
    let comparison = Comparison::new(&paths, &options)?;
    if let RowOrder::By(name) = &options.order {
        check_key(name, &options, &comparison)?;
    }
    let plots = plot::prepare(&args.plots, &comparison, args.align.map(axis))?;
    for remark in comparison.remarks() {
        say(&remark);
    }
    plots.write()?;
    super::print(&match args.format {
        TableFormat::Json => document(&comparison, &measures),
        TableFormat::Csv => exporter(args.format).export(&comparison.table(&measures, false)),
        TableFormat::Table | TableFormat::Markdown => text(&comparison, &measures, args.format),
    })?;
    Ok(Exit::Finished)
}

/// The tables and sentences for people.
fn text(comparison: &Comparison, measures: &[Measure], format: TableFormat) -> String {
    let exporter = exporter(format);
    let mut out = format!("{}\n", comparison.shared_line());
    if let Some(Cut { axis, at }) = comparison.cut {
        let (at, unit) = match axis {
            Axis::Time => (seconds(at), " of training"),
            Axis::Step => (thousands(at as u64), " steps"),
            Axis::Tokens => (thousands(at as u64), " tokens"),
        };
        out += &format!("compared after {at}{unit}\n");
    }
    out += &format!("\n{}", exporter.export(&comparison.table(measures, true)));
    if comparison.has_replicas() {
        out += "\nreplicas, mean ± standard deviation over seeds\n\n";
        out += &exporter.export(&comparison.replicas(measures));
    }
    let sentences = comparison.sentences();
    if !sentences.is_empty() {
        let bullet = if format == TableFormat::Markdown { "- " } else { "" };
        let shown: Vec<String> =
            sentences.iter().take(MOST_SENTENCES).map(|sentence| format!("{bullet}{sentence}\n")).collect();
        out += &format!("\n{}", shown.concat());
        if sentences.len() > MOST_SENTENCES {
            out += &format!("{bullet}{} more: --format json\n", sentences.len() - MOST_SENTENCES);
        }
    }
    out
}

/// The point at which runs are aligned.
fn cut(args: &CompareArgs, paths: &[PathBuf]) -> anyhow::Result<Option<Cut>> {
    let Some(name) = args.align else { return Ok(None) };
    let axis = axis(name);
    let at = match args.at {
        Some(at) => at,
        None => common_end(paths, axis)?.ok_or_else(|| {
            UsageError("some run has no row yet, so there is no point that all have reached".into())
        })?,
    };
    Ok(Some(Cut { axis, at }))
}

fn axis(name: AxisName) -> Axis {
    match name {
        AxisName::Step => Axis::Step,
        AxisName::Tokens => Axis::Tokens,
        AxisName::Time => Axis::Time,
    }
}

/// What the arguments name that is no metric of the table of columns, but a column of some run's `val.csv`.
fn further(args: &CompareArgs, paths: &[PathBuf]) -> anyhow::Result<Vec<Metric>> {
    let mut further: Vec<Metric> = Vec::new();
    for name in args.metrics.iter().chain(&args.by).chain(&args.sort) {
        if Measure::find(name).is_none() && further.iter().all(|metric| metric.name != *name) {
            further.extend(metrics::further(paths, name)?);
        }
    }
    Ok(further)
}

fn measures(names: &[String], further: &[Metric], for_people: bool) -> anyhow::Result<Vec<Measure>> {
    if names.is_empty() {
        return Ok(Measure::usual(for_people));
    }
    let of_run = |name: &str| further.iter().find(|metric| metric.name == name).cloned().map(Measure::Own);
    let measure = |name: &String| Measure::find(name).or_else(|| of_run(name));
    names.iter().map(|name| Ok(measure(name).ok_or_else(|| unknown(name, Measure::names()))?)).collect()
}

fn metric(name: &str, further: &[Metric]) -> anyhow::Result<Metric> {
    let found = metrics::find(name).or_else(|| further.iter().find(|metric| metric.name == name));
    Ok(found.cloned().ok_or_else(|| unknown(name, metrics().iter().map(|metric| metric.name.as_str())))?)
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
    let keys = comparison.differences.differing.join(", ");
    Err(UsageError(format!(
        "cannot sort by `{name}`: it is no metric and no key of these runs; they differ in {keys}"
    ))
    .into())
}

/// Compares every run's logs with the first one's.
fn assert_equal(args: &CompareArgs, paths: &[PathBuf]) -> anyhow::Result<Exit> {
    let [first, others @ ..] = paths else {
        return Err(UsageError("--assert-equal needs two runs".into()).into());
    };
    if others.is_empty() {
        return Err(UsageError(format!(
            "--assert-equal needs two runs, there is only `{}`",
            first.display()
        ))
        .into());
    }
    let mut exit = Exit::Finished;
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
