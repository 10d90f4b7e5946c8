//! `runner data`: one file per subcommand.

mod inspect;

use super::exit::Exit;
use crate::cli::{Data, DataArgs};

/// Runs the subcommand.
pub(super) fn run(args: &DataArgs) -> anyhow::Result<Exit> {
    match &args.command {
        Data::Inspect(args) => inspect::run(args),
    }
}
