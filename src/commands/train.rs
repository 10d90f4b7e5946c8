//! `runner RECIPE...` and `runner --resume RUN`: trains recipes, or continues a run.

use super::exit::Exit;
use super::named::Named;
use super::signals;
use super::voice::Voice;
use crate::cli::TrainArgs;
use crate::session::Call;
use crate::session::machine::Cache;

/// Trains the recipes in order, or continues the run that is named.
pub(super) fn run(args: &TrainArgs) -> anyhow::Result<Exit> {
    let named = Named::here(&args.recipes);
    named.check(&args.runs.runs_dir, args.resume.is_some())?;
    let requests = signals::install()?;
    let voice = Voice::new(args.fresh, args.named);
    let call = Call::new(&voice, &requests, &args.runs.runs_dir, args.fresh).remembering(Cache::of_user());
    let call = call.rehearsing(args.dry_run);
    let ending = match &args.resume {
        Some(run) => call.resume(run, &named.overrides)?,
        None => call.train(&named.recipes, &named.overrides)?,
    };
    Ok(ending.into())
}
