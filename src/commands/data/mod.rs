//! `runner data`: one file per subcommand.

mod prepare;

use super::exit::Exit;
use crate::cli::{Data, DataArgs};

/// Runs the subcommand.
pub(super) fn run(args: &DataArgs) -> anyhow::Result<Exit> {
    match &args.command {
        Data::Prepare(args) => prepare::run(args),
    }
}
