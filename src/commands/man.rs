//! `runner man DIR`: manual pages, from the same definitions as `--help`.

use super::exit::Exit;
use super::terminal;
use crate::cli::manual::{ENVIRONMENT, EXAMPLES, EXIT_CODES, Example, FILES};
use crate::cli::{Cli, ManArgs};
use crate::regular::{self, OFlags};
use crate::wording::count;
use anyhow::Context;
use clap::{Command, CommandFactory};
use clap_mangen::Man;
use clap_mangen::roff::{Inline, Roff, bold, roman};
use std::io::Write;
use std::path::Path;

/// Writes a page for the program and one for each command, and prints the directory.
pub(super) fn run(args: &ManArgs) -> anyhow::Result<Exit> {
    let dir = &args.dir;
    std::fs::create_dir_all(dir)
        .with_context(|| format!("could not make the directory `{}`", dir.display()))?;
    let mut command = Cli::command().disable_help_subcommand(true);
    command.build();
    let pages = write(command, "runner", dir)?;
    super::print_path(dir)?;
    terminal::say(&format!("{}: `man -M` reads them in a directory `man1`", count(pages as u64, "page")));
    Ok(Exit::Finished)
}

/// Writes the page of a command and those of the commands below it; how many.
fn write(command: Command, words: &str, dir: &Path) -> anyhow::Result<usize> {
    let mut pages = 1;
    for below in command.get_subcommands() {
        pages += write(below.clone(), &format!("{words} {}", below.get_name()), dir)?;
    }
    let path = dir.join(format!("{}.1", words.replace(' ', "-")));
    let page = page(command, words)?;
    // nobody has named the file, so a link in its place does not say where the page should go
    regular::open_unlinked_with(&path, OFlags::WRONLY | OFlags::CREATE)
        .and_then(|mut file| file.set_len(0).and_then(|()| file.write_all(&page)))
        .with_context(|| format!("could not write `{}`", path.display()))?;
    Ok(pages)
}

fn page(command: Command, words: &str) -> anyhow::Result<Vec<u8>> {
    let has_commands = command.has_subcommands();
    let man = Man::new(command.version(env!("CARGO_PKG_VERSION")))
        .title(words.replace(' ', "-").to_uppercase())
        .source(concat!("runner ", env!("CARGO_PKG_VERSION")))
        .manual("runner");
    let mut out = Vec::new();
    man.render_title(&mut out)?;
    man.render_name_section(&mut out)?;
    man.render_synopsis_section(&mut out)?;
    man.render_description_section(&mut out)?;
    man.render_options_section(&mut out)?;
    if has_commands {
        man.render_subcommands_section(&mut out)?;
    }
    let mut more = Roff::new();
    if let Some((_, examples)) = EXAMPLES.iter().find(|(name, _)| *name == words) {
        section(&mut more, "EXAMPLES", examples.iter().map(|(line, about): &Example| (*line, *about)));
    }
    section(&mut more, "FILES", FILES.iter().copied());
    section(&mut more, "ENVIRONMENT", ENVIRONMENT.iter().copied());
    let codes: Vec<(String, &str)> =
        EXIT_CODES.iter().map(|(code, about)| (code.to_string(), *about)).collect();
    section(&mut more, "EXIT STATUS", codes.iter().map(|(code, about)| (code.as_str(), *about)));
    more.to_writer(&mut out)?;
    Ok(out)
}

/// A section of words, each with a text below it.
fn section<'a>(roff: &mut Roff, title: &str, entries: impl Iterator<Item = (&'a str, &'a str)>) {
    roff.control("SH", [title]);
    for (term, about) in entries {
        let term: Vec<Inline> = vec![bold(term)];
        roff.control("TP", []).text(term).text([roman(about)]);
    }
}
