//! `runner RECIPE...` and `runner --resume RUN`: trains recipes, or continues a run.

use super::exit::Exit;
use super::signals;
use super::voice::Voice;
use crate::cli::TrainArgs;
use crate::session::Call;

/// Trains the recipes in order, or continues the run that is named.
pub(super) fn run(args: &TrainArgs) -> anyhow::Result<Exit> {
    let requests = signals::install()?;
    let voice = Voice::new(args.fresh, args.named);
    let call = Call::new(&voice, &requests, &args.runs.runs_dir, args.fresh);
    let overrides = super::overrides(&args.overrides);
    let ending = match &args.resume {
        Some(run) => call.resume(run, &overrides)?,
        None => call.train(&args.recipes, &overrides)?,
    };
    Ok(ending.into())
}
