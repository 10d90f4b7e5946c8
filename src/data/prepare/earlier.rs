//! What an earlier call has prepared or begun, and whether these options and sources are those that it is of.

use super::sources::{self, TextFile};
use super::state::State;
use super::{Hooks, Options, PrepareError, pipeline};
use crate::data::card::{CARD, Card, SourceCard};
use crate::data::progress::Task;
use crate::data::tokenizer::TokenizerKind;
use crate::wording::count;
use std::path::PathBuf;

/// The card of a set that is there already; an error for a set of something else.
pub(super) fn finished(
    options: &Options,
    files: &[TextFile],
    hooks: &Hooks,
) -> Result<Option<Card>, PrepareError> {
    let dir = &options.out;
    if dir.exists() && !dir.is_dir() {
        return Err(PrepareError::Occupied { dir: dir.clone(), what: "no files: it is one itself".into() });
    }
    let Some(card) = Card::read(dir)? else { return Ok(None) };
    check_options(options, &card.options, "another preparation")?;
    let task = Task::start(hooks.progress, "checking the shards", 2 * card.tokens);
    for part in [&card.train, &card.val] {
        if let Some(damage) = part.damage(&|name| dir.join(name), &|by| task.advance(by))? {
            let what = format!("a {CARD} but {damage}");
            return Err(PrepareError::Occupied { dir: dir.clone(), what });
        }
    }
    drop(task);
    // what comes after the limit does not matter, unless its characters do; earlier versions do not list those
    let lists_all =
        options.tokenizer == TokenizerKind::Char && card.sources.iter().all(|s| s.format.is_some());
    let may_be_more = options.is_limit(card.tokens) && !lists_all;
    if card.sources.len() > files.len() || card.sources.len() < files.len() && !may_be_more {
        let then = count(card.sources.len(), "file");
        let what = format!("what was prepared from {then}, not from {}", files.len());
        return Err(PrepareError::Occupied { dir: dir.clone(), what });
    }
    let total = files.iter().map(|file| file.bytes).sum();
    let task = Task::start(hooks.progress, "checking the sources", total);
    for (source, file) in card.sources.iter().zip(files) {
        check_format(options, file, source)?;
        check_digest(options, file, &source.blake3)?;
        task.advance(file.bytes);
    }
    Ok(Some(card))
}

fn check_digest(options: &Options, file: &TextFile, expected: &str) -> Result<(), PrepareError> {
    let mut open = file.open()?;
    if pipeline::digest(file.path(), &mut open)?.to_hex().as_str() == expected {
        return Ok(());
    }
    Err(PrepareError::SourceChanged { path: file.path().to_owned(), dir: options.out.clone() })
}

/// Refuses a source that its name now says to be read otherwise.
fn check_format(options: &Options, file: &TextFile, source: &SourceCard) -> Result<(), PrepareError> {
    let now = file.format();
    match sources::recorded(source).filter(|then| *then != now) {
        None => Ok(()),
        Some(then) => {
            let (path, dir) = (file.path().to_owned(), options.out.clone());
            Err(PrepareError::Renamed { path, now, dir, then })
        }
    }
}

/// Refuses a directory that was begun with other options, and names the first that differs.
pub(super) fn check_options(
    options: &Options,
    theirs: &serde_json::Value,
    what: &str,
) -> Result<(), PrepareError> {
    let ours = options.identity();
    let differing =
        ours.as_object().into_iter().flatten().find(|(name, value)| theirs.get(name) != Some(value));
    let Some((name, value)) = differing else { return Ok(()) };
    let theirs = theirs.get(name).cloned().unwrap_or_default();
    let what = format!("{what}, with {name} {theirs} instead of {value}");
    Err(PrepareError::Occupied { dir: options.out.clone(), what })
}

/// Refuses sources that have changed since they were read. Those that were not begun yet may be others, unless the
/// vocabulary has their characters.
pub(super) fn check_sources(
    options: &Options,
    files: &[TextFile],
    state: &State,
    hooks: &Hooks,
) -> Result<(), PrepareError> {
    let has_characters = !state.vocabulary_sources.is_empty();
    let held = if has_characters { &state.vocabulary_sources } else { &state.sources };
    let task = Task::start(hooks.progress, "checking the sources", held.iter().map(|s| s.card.bytes).sum());
    for (number, begun) in held.iter().enumerate() {
        task.advance(begun.card.bytes);
        let Some(file) = files.get(number) else {
            let path = PathBuf::from(&begun.card.path);
            return Err(PrepareError::SourceChanged { path, dir: options.out.clone() });
        };
        check_format(options, file, &begun.card)?;
        if !pipeline::is_unchanged(file.path(), &begun.identity, &begun.card.blake3)? {
            return Err(PrepareError::SourceChanged {
                path: file.path().to_owned(),
                dir: options.out.clone(),
            });
        }
    }
    let is_read = state.is_read || state.is_complete;
    let is_closed = has_characters || is_read && !options.is_limit(state.tokens());
    if files.len() > held.len() && is_closed {
        let (then, now) = (count(held.len(), "file"), files.len());
        let done = if has_characters { "with the characters of" } else { "that has read all of" };
        let what = format!("an unfinished preparation {done} {then}, not of {now}");
        return Err(PrepareError::Occupied { dir: options.out.clone(), what });
    }
    Ok(())
}
