//! `runner data inspect FILE|DIR...`: what data files hold.

use super::super::exit::Exit;
use super::super::terminal::{self, Passes};
use crate::cli::{Format, InspectArgs};
use crate::data::inspect::{Boundary, Documents, data_files};
use crate::data::unfinished::check_shard;
use crate::data::{Inspection, inspect};
use crate::report::numbers::{bytes, grouped, thousands};
use crate::session::{UsageError, inputs};
use crate::wording::{tame, tame_line};
use anyhow::Context;
use serde_json::{Value as Json, json};
use std::fmt::Write;
use std::path::{Path, PathBuf};

/// Prints what each file holds; exit code 2 if one of them cannot be read, after all others.
pub(in crate::commands) fn run(args: &InspectArgs) -> anyhow::Result<Exit> {
    let cache = inputs::cache(&args.runs.runs_dir);
    let (mut found, mut exit, passes) = (Vec::new(), Exit::Finished, Passes::default());
    for path in files(&args.paths)? {
        let seen = inspect(&path, &cache, &passes).map_err(anyhow::Error::from);
        if let Err(unfinished) = check_shard(&path) {
            terminal::say(&format!("warning: {unfinished}"));
        }
        match &seen {
            Ok(seen) if args.format == Format::Text => {
                super::super::print(&text(&path, seen))?;
            }
            Ok(_) => {}
            Err(error) => {
                terminal::report(error);
                exit = Exit::of(error);
            }
        }
        found.push((path, seen));
    }
    match args.format {
        Format::Text if found.len() > 1 => super::super::print(&total(&found))?,
        Format::Text => true,
        Format::Json => {
            let files: Vec<Json> = found.iter().map(|(path, seen)| document(path, seen)).collect();
            let document = serde_json::to_string_pretty(&json!({ "files": files, "total": sums(&found) }));
            super::super::print(&(document.context("the result is plain data")? + "\n"))?
        }
    };
    Ok(exit)
}

type Found = (PathBuf, anyhow::Result<Inspection>);

/// The files that the arguments name, those of directories in sorted order.
fn files(paths: &[PathBuf]) -> anyhow::Result<Vec<PathBuf>> {
    let mut files = Vec::new();
    for path in paths {
        if !path.is_dir() {
            files.push(path.clone());
            continue;
        }
        let inside = data_files(path)?;
        if inside.is_empty() {
            let message = format!("the directory `{}` holds no .bin, .npy or .txt file", path.display());
            return Err(UsageError(message).into());
        }
        files.extend(inside);
    }
    Ok(files)
}

/// The report about a file, for people.
fn text(path: &Path, seen: &Inspection) -> String {
    let Inspection { info, first, .. } = seen;
    let mut out = format!("{}\n", tame_line(&path.display().to_string()));
    let mut line = |name: &str, value: String| {
        // writing to a string cannot fail
        let _ = writeln!(out, "  {name:<10} {value}");
    };
    line("format", format!("{}, {}", info.format, bytes(seen.bytes as f64)));
    line("tokens", thousands(info.tokens));
    if let Some((min, max)) = info.range {
        line("range", format!("{min} to {max}"));
    }
    if info.holes > 0 {
        line("holes", format!("{}, which are read as zeros", grouped(info.holes, "byte")));
    }
    line("documents", documents(seen.documents.as_ref()));
    if let Some(entropy) = seen.entropy {
        line("entropy", format!("{entropy:.4} nats per token, of the tokens' frequencies"));
    }
    line("digest", format!("blake3 {}", info.digest));
    line("first", first.iter().map(ToString::to_string).collect::<Vec<_>>().join(" "));
    line(
        "text",
        match &seen.text {
            Some(text) => format!("{:?}", tame(text)),
            None => "none: the first tokens are outside GPT-2's vocabulary".into(),
        },
    );
    out
}

fn documents(documents: Option<&Documents>) -> String {
    let Some(documents) = documents else { return "no separator (token 50256) among the tokens".into() };
    let by = match documents.by {
        Boundary::Before => "50256 before each",
        Boundary::Behind => "50256 behind each",
        Boundary::Between => "50256 between them",
        Boundary::Index => "by the index",
    };
    format!(
        "{} ({by}), of {} to {}, {:.1} on average",
        thousands(documents.count),
        thousands(documents.shortest),
        grouped(documents.longest, "token"),
        documents.tokens as f64 / documents.count as f64
    )
}

/// One line about all files that were read.
fn total(found: &[Found]) -> String {
    let sums = sums(found);
    let number = |name: &str| sums[name].as_u64().unwrap_or_default();
    format!(
        "{}, {}, {}\n",
        grouped(number("files"), "file"),
        grouped(number("tokens"), "token"),
        bytes(number("bytes") as f64)
    )
}

fn sums(found: &[Found]) -> Json {
    let read = || found.iter().filter_map(|(_, seen)| seen.as_ref().ok());
    json!({
        "files": read().count(),
        "bytes": read().map(|seen| seen.bytes).sum::<u64>(),
        "tokens": read().map(|seen| seen.info.tokens).sum::<u64>(),
        "documents": read().filter_map(|seen| seen.documents).map(|documents| documents.count).sum::<u64>(),
    })
}

/// The report about a file, for programs.
fn document(path: &Path, seen: &anyhow::Result<Inspection>) -> Json {
    let path = path.display().to_string();
    let seen = match seen {
        Ok(seen) => seen,
        Err(error) => return json!({ "path": path, "error": format!("{error:#}") }),
    };
    let by = |by| match by {
        Boundary::Before => "separator_before",
        Boundary::Behind => "separator_behind",
        Boundary::Between => "separator_between",
        Boundary::Index => "index",
    };
    json!({
        "path": path,
        "format": seen.info.format.to_string(),
        "bytes": seen.bytes,
        "holes": seen.info.holes,
        "tokens": seen.info.tokens,
        "min": seen.info.range.map(|(min, _)| min),
        "max": seen.info.range.map(|(_, max)| max),
        "documents": seen.documents.map(|documents| json!({
            "by": by(documents.by),
            "count": documents.count,
            "shortest": documents.shortest,
            "longest": documents.longest,
            "tokens": documents.tokens,
        })),
        "entropy": seen.entropy,
        "blake3": seen.info.digest.to_string(),
        "first": seen.first,
        "text": seen.text,
    })
}
