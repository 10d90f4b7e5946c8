//! What makes tokens of the text. A vocabulary of characters is that of all sources, which are held from then on: of
//! other contents it would be another one.

use super::sources::TextFile;
use super::state::{Begun, State, Workplace};
use super::{Hooks, Options, PrepareError, pipeline, reading};
use crate::data::progress::Task;
use crate::data::tokenizer::{Characters, Tokenizer, TokenizerKind};
use std::collections::BTreeSet;
use std::ops::ControlFlow;

/// The tokenizer; one of characters from all of the text, which is read for it once.
pub(super) fn tokenizer(
    options: &Options,
    files: &[TextFile],
    place: &Workplace,
    state: &mut State,
    hooks: &Hooks,
) -> Result<Tokenizer, PrepareError> {
    match options.tokenizer {
        TokenizerKind::Gpt2 => return Ok(Tokenizer::gpt2().clone()),
        TokenizerKind::Bytes => return Ok(Tokenizer::bytes().clone()),
        TokenizerKind::Char => {}
    }
    let known = state.characters.as_ref().filter(|_| !state.vocabulary_sources.is_empty());
    let characters = match known {
        Some(known) => Characters::new(known.chars().collect()).map_err(PrepareError::Options)?,
        None => {
            let (characters, sources) = collect(options, files, hooks)?;
            // the state of an earlier version does not say of which contents its characters are
            let is_other = state.characters.as_ref().is_some_and(|known| *known != characters.text());
            if is_other && state.tokens() > 0 {
                return Err(place.unfinished("with other characters than its sources have now"));
            }
            state.vocabulary_sources = sources;
            characters
        }
    };
    state.characters = Some(characters.text());
    Ok(Tokenizer::chars(characters))
}

/// The characters of all sources, and the sources as they were then.
fn collect(
    options: &Options,
    files: &[TextFile],
    hooks: &Hooks,
) -> Result<(Characters, Vec<Begun>), PrepareError> {
    let task = Task::start(hooks.progress, "collecting characters", files.iter().map(|f| f.bytes).sum());
    let (mut all, mut sources) = (BTreeSet::new(), Vec::new());
    // parts may be cut anywhere between two characters
    let reading = reading(options, Tokenizer::bytes());
    for file in files {
        let mut open = file.open()?;
        let (identity, digest) = pipeline::begin(file, &mut open)?;
        let card = file.card(digest);
        let read = reading.documents(file, open, &|by| task.advance(by), &mut |part| {
            Characters::collect(part.text, &mut all);
            ControlFlow::Continue(())
        });
        pipeline::check_read(file.path(), &identity, digest, read)?;
        sources.push(Begun { card, identity });
    }
    if all.is_empty() {
        return Err(PrepareError::NoText { files: files.len() });
    }
    Ok((Characters::of(&all).map_err(PrepareError::Options)?, sources))
}
