//! `--plot`: pictures and pages of a comparison, written whole or not at all.

use super::super::terminal::say;
use super::super::{axis, plotted};
use crate::cli::{LogAxis, PlotArgs, ThemeName};
use crate::report::axis::Axis;
use crate::report::compare::Comparison;
use crate::report::metrics::Metric;
use crate::report::page::page;
use crate::report::plot::layout::draw;
use crate::report::plot::palette::Theme;
use crate::report::plot::png::png;
use crate::report::plot::svg::svg;
use crate::report::plot::{self, Options, Quantity, drawn, figure};
use crate::report::target::Target;
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

/// What is to be drawn.
pub(super) struct Drawing {
    files: Vec<(PathBuf, Kind)>,
    options: Options,
    theme: Option<Theme>,
}

/// Files that are to be written.
pub(super) struct Plots(Vec<(PathBuf, Vec<u8>)>);

impl Drawing {
    /// Checks what is asked for of runs: a mistyped name must not cost the work before it.
    pub(super) fn new(
        args: &PlotArgs,
        runs: &[PathBuf],
        targets: &[Target],
        aligned: Option<Axis>,
    ) -> anyhow::Result<Self> {
        let with_kind = |path: &PathBuf| Ok::<_, UsageError>((path.clone(), kind(path)?));
        let files = args.plot.iter().map(with_kind).collect::<Result<_, _>>()?;
        let theme = args.theme.map(|name| match name {
            ThemeName::Light => Theme::Light,
            ThemeName::Dark => Theme::Dark,
        });
        Ok(Self { files, options: options(args, runs, targets, aligned)?, theme })
    }

    /// The metrics of all curves; a page has those of each quantity, along each axis.
    pub(super) fn metrics(&self, runs: &[PathBuf]) -> Vec<Metric> {
        let Options { quantities, axis, .. } = &self.options;
        if self.files.is_empty() {
            return Vec::new();
        }
        let has_page = self.files.iter().any(|(_, kind)| *kind == Kind::Html);
        let offered = plot::quantities().iter().filter(|_| has_page);
        drawn(quantities.iter().chain(offered), has_page || *axis == Axis::Time, runs)
    }

    /// Draws it.
    pub(super) fn of(&self, comparison: &Comparison) -> anyhow::Result<Plots> {
        let Self { files, options, theme } = self;
        let scene = match files.iter().any(|(_, kind)| *kind != Kind::Html) {
            true => Some(draw(&figure(comparison, options), options)),
            false => None,
        };
        let bytes = |kind| {
            Ok::<_, UsageError>(match (kind, &scene) {
                (Kind::Svg, Some(scene)) => svg(scene, *theme).into_bytes(),
                (Kind::Png, Some(scene)) => png(scene, theme.unwrap_or(Theme::Light)).map_err(UsageError)?,
                _ => page(comparison, options, *theme).into_bytes(),
            })
        };
        let files = files.iter().map(|(path, kind)| Ok((path.clone(), bytes(*kind)?)));
        Ok(Plots(files.collect::<Result<_, UsageError>>()?))
    }
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

fn options(
    args: &PlotArgs,
    runs: &[PathBuf],
    targets: &[Target],
    aligned: Option<Axis>,
) -> anyhow::Result<Options> {
    let mut shown: Vec<Quantity> = args.y.iter().map(|name| plotted(name, runs)).collect::<Result<_, _>>()?;
    if args.y.is_empty() {
        for target in targets {
            // a column of eval.csv has no curve
            let column = Quantity::named(&target.column, runs).filter(|quantity| !shown.contains(quantity));
            shown.extend(column);
        }
        if shown.is_empty() {
            shown.push(plotted("loss", runs)?);
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
