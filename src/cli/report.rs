//! The arguments of the commands that read runs back.

use super::{RunsArgs, place};
use clap::{Args, ValueEnum};
use std::path::PathBuf;

/// How a command prints a table.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum TableFormat {
    /// For a terminal.
    Table,
    /// RFC 4180, full precision.
    Csv,
    /// One document, full precision.
    Json,
    /// For a README or an issue.
    Markdown,
}

/// How wide a table for people may be.
#[derive(Debug, Args)]
pub struct WidthArgs {
    /// Show every column, however wide the table becomes
    #[arg(long, conflicts_with = "width")]
    pub wide: bool,
    /// Leave columns out until the table has at most so many characters [default: those of the terminal; no limit
    /// without one]
    #[arg(long, value_name = "CHARACTERS", value_parser = clap::value_parser!(u16).range(20..))]
    pub width: Option<u16>,
}

/// What progress is measured in.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum AxisName {
    /// Optimizer steps.
    Step,
    /// Tokens trained on.
    Tokens,
    /// Seconds trained.
    Time,
}

/// Arguments of `compare`.
#[derive(Debug, Args)]
pub struct CompareArgs {
    /// Runs: directories, directories of runs, quoted globs, or beginnings of ids
    #[arg(value_name = "RUN")]
    pub runs: Vec<PathBuf>,
    /// Where runs are kept.
    #[command(flatten)]
    pub dir: RunsArgs,
    /// How the table is printed
    #[arg(long, value_enum, default_value_t = TableFormat::Table)]
    pub format: TableFormat,
    /// How the table fits.
    #[command(flatten)]
    pub width: WidthArgs,
    /// Columns, separated by commas: steps, tokens, loss, best_loss, val_loss, best_val_loss, tokens_per_s,
    /// step_ms, mfu, memory_bytes, elapsed_s, skipped_steps; speedup and gain are tokens_per_s over the first
    /// row's and over the row's above; any other column of val.csv by its name, or its best value as best_NAME
    #[arg(long, value_name = "METRIC,...", value_delimiter = ',')]
    pub metrics: Vec<String>,
    /// The metric that replicas are tested by and rows sorted by [default: val_loss where there is one, else loss]
    #[arg(long, value_name = "METRIC")]
    pub by: Option<String>,
    /// Show after how many steps, tokens and seconds each run reached a loss or an accuracy, such as val_loss=3.28;
    /// several make columns of their own. Rows are sorted by the tokens to the first, and tokens to each are tested,
    /// unless --sort and --by say otherwise
    #[arg(long, value_name = "METRIC=VALUE,...", value_delimiter = ',')]
    pub target: Vec<String>,
    /// Sort the rows by a metric or a key of the recipe, or keep them as `given`
    #[arg(long, value_name = "METRIC|KEY|given")]
    pub sort: Option<String>,
    /// Turn the order of the rows around
    #[arg(long)]
    pub reverse: bool,
    /// Compare at the same point of all runs: the furthest that each has reached, or the one of --at
    #[arg(long, value_enum, value_name = "AXIS")]
    pub align: Option<AxisName>,
    /// Where to align: a step, a number of tokens, or seconds
    #[arg(long, value_name = "VALUE", requires = "align", value_parser = tolerance, allow_negative_numbers = true)]
    pub at: Option<f64>,
    /// Pictures.
    #[command(flatten)]
    pub plots: PlotArgs,
    /// Exit with 1 unless all runs logged the same numbers as the first
    #[arg(long)]
    #[arg(conflicts_with_all = ["metrics", "by", "target", "sort", "reverse", "align"])]
    #[arg(conflicts_with_all = ["format", "plot", "wide", "width"])]
    pub assert_equal: bool,
    /// With --assert-equal: how far numbers may be apart, relative to the larger
    #[arg(long, value_name = "R", default_value_t = 0.0, requires = "assert_equal", value_parser = tolerance)]
    pub rtol: f64,
}

/// What `compare` draws.
#[derive(Debug, Args)]
pub struct PlotArgs {
    /// Draw curves into a file: .svg, .png, or .html for a page to explore
    #[arg(long, value_name = "FILE", value_parser = place())]
    pub plot: Vec<PathBuf>,
    /// The horizontal axis [default: that of --align, else step]
    #[arg(long, value_enum, value_name = "AXIS", requires = "plot")]
    pub x: Option<AxisName>,
    /// One panel each: loss, val_loss, lr, grad_norm, tokens_per_s, mfu, step_ms, loss_scale, memory_bytes, or
    /// any other column of val.csv [default: those of --target, else loss]
    #[arg(long, value_name = "COLUMN,...", value_delimiter = ',', requires = "plot")]
    pub y: Vec<String>,
    /// Average lines over this many steps, 1 for none [default: a fiftieth of the run]
    #[arg(long, value_name = "STEPS", requires = "plot", value_parser = clap::value_parser!(u32).range(1..))]
    pub smooth: Option<u32>,
    /// Make axes logarithmic: x, y or x,y
    #[arg(long, value_enum, value_name = "AXES", value_delimiter = ',', requires = "plot")]
    pub log: Vec<LogAxis>,
    /// Light or dark; an .svg or .html of neither follows the reader's screen, a .png is light
    #[arg(long, value_enum, requires = "plot")]
    pub theme: Option<ThemeName>,
    /// A line above the plot
    #[arg(long, requires = "plot")]
    pub title: Option<String>,
    /// Width of the plot and height of each panel in points
    #[arg(long, value_name = "WxH", default_value = "760x360", value_parser = size, requires = "plot")]
    pub size: (u16, u16),
}

/// An axis of a plot.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
#[expect(missing_docs, reason = "they are what they are called")]
pub enum LogAxis {
    X,
    Y,
}

/// The ground of a plot.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum ThemeName {
    /// Dark on white.
    Light,
    /// Light on near black.
    Dark,
}

/// Two lengths, such as `760x360`, that leave room for axes.
fn size(text: &str) -> Result<(u16, u16), String> {
    let sides = text.split_once('x').and_then(|(w, h)| Some((w.parse().ok()?, h.parse().ok()?)));
    match sides {
        Some((w @ 240..=8000, h @ 80..=8000)) => Ok((w, h)),
        _ => Err("a size is WIDTHxHEIGHT, from 240x80 to 8000x8000".to_owned()),
    }
}

/// A number that is 0 or more.
fn tolerance(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(value) if value >= 0.0 && value.is_finite() => Ok(value),
        _ => Err("it must be a number that is 0 or more".to_owned()),
    }
}

/// Arguments of `list`.
#[derive(Debug, Args)]
pub struct ListArgs {
    /// Only these runs: directories, directories of runs, quoted globs, or beginnings of ids [default: all]
    #[arg(value_name = "RUN")]
    pub runs: Vec<PathBuf>,
    /// Where runs are kept.
    #[command(flatten)]
    pub dir: RunsArgs,
    /// Only runs of these statuses, separated by commas: created, running, interrupted, finished, diverged, failed,
    /// unknown
    #[arg(long, value_name = "STATUS,...", value_delimiter = ',')]
    pub status: Vec<String>,
    /// Only runs that nothing was written to for this long, e.g. 90m, 12h or 7d
    #[arg(long, value_name = "AGE", value_parser = age)]
    pub older_than: Option<std::time::Duration>,
    /// How the table is printed
    #[arg(long, value_enum, default_value_t = TableFormat::Table, conflicts_with = "remove")]
    pub format: TableFormat,
    /// How the table fits.
    #[command(flatten)]
    pub width: WidthArgs,
    /// Sort by when the runs began (`time`), a column of the CSV such as status or val_loss, or a key of the recipe
    /// [default: by id]
    #[arg(long, value_name = "COLUMN|KEY")]
    pub sort: Option<String>,
    /// Turn the order of the rows around
    #[arg(long)]
    pub reverse: bool,
    /// Remove the runs listed, after asking; runs that a live process trains are left alone
    #[arg(long)]
    pub remove: bool,
    /// Remove without asking
    #[arg(long, requires = "remove")]
    pub yes: bool,
}

/// A time such as `30s`, `90m`, `12h` or `7d`.
fn age(text: &str) -> Result<std::time::Duration, String> {
    let units = [("s", 1), ("m", 60), ("h", 3600), ("d", 86_400)];
    let parsed = units.iter().find_map(|(unit, seconds)| {
        text.strip_suffix(unit)?
            .parse::<u64>()
            .ok()?
            .checked_mul(*seconds)
            .map(std::time::Duration::from_secs)
    });
    parsed.ok_or_else(|| "a time is a number and one of s, m, h and d, as in 7d".to_owned())
}

/// Arguments of `watch`.
#[derive(Debug, Args)]
pub struct WatchArgs {
    /// Runs: directories, directories of runs, quoted globs, or beginnings of ids; with --serve, those that the page
    /// shows at first [default with --serve: all]
    #[arg(value_name = "RUN", required_unless_present = "serve")]
    pub runs: Vec<PathBuf>,
    /// Where runs are kept.
    #[command(flatten)]
    pub dir: RunsArgs,
    /// Serve a page for browsers, whose curves grow: all runs to choose from, recipes side by side, samples. Prints its
    /// address. ADDR is an address, a port or both; one that other machines reach gets a secret word in the address
    #[arg(long, value_name = "ADDR", num_args = 0..=1, default_missing_value = "127.0.0.1")]
    pub serve: Option<String>,
    /// What is drawn: any column of train.csv or val.csv; on a page, one that `runner compare --y` draws
    #[arg(long, value_name = "COLUMN", default_value = "loss")]
    pub y: String,
    /// The horizontal axis
    #[arg(long, value_enum, value_name = "AXIS", default_value_t = AxisName::Step)]
    pub x: AxisName,
}

/// Arguments of `export`.
#[derive(Debug, Args)]
pub struct ExportArgs {
    /// Runs: directories, directories of runs, quoted globs, or beginnings of ids
    #[arg(value_name = "RUN", required = true)]
    pub runs: Vec<PathBuf>,
    /// Where runs are kept.
    #[command(flatten)]
    pub dir: RunsArgs,
    /// Write event files for TensorBoard below this directory, in one directory per run; what is there already stays,
    /// and what is new is appended
    #[arg(long, value_name = "DIR", required = true, value_parser = place())]
    pub tensorboard: PathBuf,
    /// Go on while the runs train, until all have ended
    #[arg(long)]
    pub follow: bool,
}

/// Arguments of `schema`.
#[derive(Debug, Args)]
pub struct SchemaArgs {
    /// Of what
    #[arg(value_enum, default_value_t = SchemaOf::Recipes)]
    pub of: SchemaOf,
}

/// What there is a JSON Schema of; the keys are a page in Markdown.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum SchemaOf {
    /// Recipes, for editors.
    #[value(name = "recipe")]
    Recipes,
    /// The keys of recipes, as a page for readers.
    #[value(name = "keys")]
    Keys,
    /// What `compare --format json` prints.
    #[value(name = "compare")]
    Comparisons,
    /// What `--log-format json` prints.
    #[value(name = "events")]
    Events,
}
