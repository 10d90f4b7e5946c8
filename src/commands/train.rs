//! `runner RECIPE...` and `runner --resume RUN`: trains recipes, or continues a run.

use super::events::Events;
use super::exit::Exit;
use super::named::Named;
use super::signals;
use super::voice::{Voice, Volume};
use crate::cli::{LogFormat, TrainArgs};
use crate::session::machine::Cache;
use crate::session::{Audience, Call, UsageError};

/// Trains the recipes in order, or continues the run that is named.
pub(super) fn run(args: &TrainArgs) -> anyhow::Result<Exit> {
    let named = Named::here(&args.recipes);
    named.check(&args.runs.runs_dir, args.resume.is_some())?;
    let requests = signals::install()?;
    let audience = audience(args)?;
    let call =
        Call::new(&*audience, &requests, &args.runs.runs_dir, args.fresh).remembering(Cache::of_user());
    let call = call.rehearsing(args.dry_run);
    let ending = match &args.resume {
        Some(run) => call.resume(run, &named.overrides)?,
        None => call.train(&named.recipes, &named.overrides)?,
    };
    Ok(ending.into())
}

/// Who is told what happens: a terminal, or a program that reads stderr.
fn audience(args: &TrainArgs) -> Result<Box<dyn Audience>, UsageError> {
    let volume = match (args.quiet, args.verbose) {
        (true, _) => Volume::Quiet,
        (_, true) => Volume::Verbose,
        _ => Volume::Normal,
    };
    match args.log_format {
        LogFormat::Text => Ok(Box::new(Voice::new(args.fresh, args.named, volume))),
        LogFormat::Json if args.named => Err(UsageError(
            "--named: every line of --log-format json names the run already: leave it out".into(),
        )),
        LogFormat::Json if args.verbose => {
            Err(UsageError("--verbose: --log-format json has every step already: leave it out".into()))
        }
        LogFormat::Json => Ok(Box::new(Events::new(args.quiet))),
    }
}
