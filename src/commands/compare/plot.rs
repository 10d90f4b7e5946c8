//! `--plot`: pictures and pages of a comparison, written whole or not at all.

use super::super::terminal::say;
use super::super::{axis, plotted};
use crate::cli::{LogAxis, PlotArgs, ThemeName};
use crate::report::axis::Axis;
use crate::report::compare::Comparison;
use crate::report::page::page;
use crate::report::plot::layout::draw;
use crate::report::plot::palette::Theme;
use crate::report::plot::png::png;
use crate::report::plot::svg::svg;
use crate::report::plot::{Options, Quantity, figure};
use crate::run::files::write_atomic;
use crate::session::UsageError;
use std::path::{Path, PathBuf};

/// What a file holds.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Svg,
    Png,
    Html,
}

/// Files that are to be written.
pub(super) struct Plots(Vec<(PathBuf, Vec<u8>)>);

/// Checks what is asked for and draws it.
pub(super) fn prepare(
    args: &PlotArgs,
    comparison: &Comparison,
    aligned: Option<Axis>,
) -> anyhow::Result<Plots> {
    // a mistyped name must not cost the work before it
    let kinds: Vec<Kind> = args.plot.iter().map(|path| kind(path)).collect::<Result<_, _>>()?;
    let options = options(args, comparison, aligned)?;
    let theme = args.theme.map(|name| match name {
        ThemeName::Light => Theme::Light,
        ThemeName::Dark => Theme::Dark,
    });
    let scene = match kinds.iter().any(|kind| *kind != Kind::Html) {
        true => Some(draw(&figure(comparison, &options), &options)),
        false => None,
    };
    let mut files = Vec::new();
    for (path, kind) in args.plot.iter().zip(kinds) {
        let bytes = match (kind, &scene) {
            (Kind::Svg, Some(scene)) => svg(scene, theme).into_bytes(),
            (Kind::Png, Some(scene)) => png(scene, theme.unwrap_or(Theme::Light)).map_err(UsageError)?,
            _ => page(comparison, &options, theme).into_bytes(),
        };
        files.push((path.clone(), bytes));
    }
    Ok(Plots(files))
}

impl Plots {
    /// Writes the files and says where they are.
    pub(super) fn write(&self) -> anyhow::Result<()> {
        for (path, bytes) in &self.0 {
            write_atomic(path, bytes, "plot")?;
            say(&format!("{}: {}", path.display(), crate::report::numbers::kilobytes(bytes.len())));
        }
        Ok(())
    }
}

fn kind(path: &Path) -> Result<Kind, UsageError> {
    match path.extension().and_then(|extension| extension.to_str()) {
        Some("svg") => Ok(Kind::Svg),
        Some("png") => Ok(Kind::Png),
        Some("html" | "htm") => Ok(Kind::Html),
        _ => {
            Err(UsageError(format!("`{}` is no kind of plot; end it in .svg, .png or .html", path.display())))
        }
    }
}

fn options(args: &PlotArgs, comparison: &Comparison, aligned: Option<Axis>) -> anyhow::Result<Options> {
    let runs: Vec<PathBuf> = comparison.runs.iter().map(|run| run.path.clone()).collect();
    let mut shown: Vec<Quantity> =
        args.y.iter().map(|name| plotted(name, &runs)).collect::<Result<_, _>>()?;
    if args.y.is_empty() {
        for target in &comparison.targets {
            // a column of eval.csv has no curve
            let column = Quantity::named(&target.column, &runs).filter(|quantity| !shown.contains(quantity));
            shown.extend(column);
        }
        if shown.is_empty() {
            shown.push(plotted("loss", &runs)?);
        }
    }
    Ok(Options {
        axis: args.x.map(axis).or(aligned).unwrap_or_default(),
        quantities: shown,
        window: args.smooth.map(|window| window as usize),
        log_x: args.log.contains(&LogAxis::X),
        log_y: args.log.contains(&LogAxis::Y),
        title: args.title.clone(),
        width: f32::from(args.size.0),
        panel_height: f32::from(args.size.1),
    })
}
