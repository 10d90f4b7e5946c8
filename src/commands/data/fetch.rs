//! `runner data fetch`: downloads data. The directory of the files is all that goes to stdout.

use super::super::exit::Exit;
use super::super::terminal::{Passes, say};
use crate::cli::FetchArgs;
use crate::data::fetch::{CATALOGUE, Request, Settings, Source, fetch};
use crate::report::numbers::{bytes, grouped};
use std::fmt::Write;
use std::time::Duration;

/// Fetches what the arguments name, or lists the names.
pub(in crate::commands) fn run(args: &FetchArgs) -> anyhow::Result<Exit> {
    let Some(what) = args.what.clone().filter(|_| !args.list) else {
        super::super::print(&list(&Settings::from_env().endpoint))?;
        return Ok(Exit::Finished);
    };
    let request = Request {
        what,
        out: args.out.clone(),
        shards: args.shards.map(|shards| shards as usize),
        from: args.from.clone(),
        jobs: args.jobs as usize,
        retries: args.retries,
        timeout: Duration::from_secs(args.timeout),
    };
    let fetched = fetch(&request, &Settings::from_env(), &Passes::default(), &say)?;
    let all = fetched.files.len();
    let mut line = format!(
        "{}: {}, {}",
        fetched.out.display(),
        grouped(all as u64, "file"),
        bytes(fetched.bytes as f64)
    );
    if fetched.present > 0 {
        let whose = if fetched.present == all { "all".to_owned() } else { fetched.present.to_string() };
        // writing to a string cannot fail
        let _ = write!(line, ", {whose} there before");
    }
    if fetched.unverified > 0 {
        let known = match fetched.unmeasured {
            0 => "but their sizes are right".to_owned(),
            all if all == fetched.unverified => "nor a size in its list: they are as they came".to_owned(),
            some => format!("of {some} no size in its list either: these are as they came"),
        };
        let _ = write!(line, "; of {} the server gives no digest, {known}", fetched.unverified);
    }
    say(&line);
    super::super::print_path(&fetched.out)?;
    Ok(Exit::Finished)
}

/// The names, for people.
fn list(endpoint: &str) -> String {
    let mut out = String::new();
    for known in CATALOGUE {
        let from = match known.source {
            Source::Hub { repo, .. } => format!("{endpoint}/datasets/{repo}"),
            Source::File { url, .. } => url.to_owned(),
        };
        // writing to a string cannot fail
        let _ = writeln!(
            out,
            "{}\n  {}\n  size     {}\n  licence  {}\n  from     {from}\n  to       {}",
            known.name, known.about, known.size, known.licence, known.out
        );
    }
    out
}
