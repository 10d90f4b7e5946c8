//! `runner data`: one file per subcommand.

mod fetch;
mod inspect;
mod prepare;

use super::exit::Exit;
use crate::cli::{Data, DataArgs};

/// Runs the subcommand.
pub(super) fn run(args: &DataArgs) -> anyhow::Result<Exit> {
    match &args.command {
        Data::Fetch(args) => fetch::run(args),
        Data::Inspect(args) => inspect::run(args),
        Data::Prepare(args) => prepare::run(args),
    }
}
