//! What the data say about their tokens: a layer above the preset, with the tokenizer and the number of token ids.
//!
//! A prepared set states its tokenizer in a file beside its shards. The vocabulary of characters is that of the texts
//! themselves. What is not there states nothing; opening it tells why.

use super::check::Relation;
use super::diagnostics::{Diagnostics, Problem};
use super::keys::known;
use super::layers::{Layer, Stack};
use super::origin::SaidBy;
use super::parse::Entry;
use super::source::{Medium, Place, Source};
use super::value::Value;
use crate::data::{DataError, TokenizerKind, vocabulary};
use std::path::PathBuf;
use std::sync::Arc;

/// The key that says how text becomes tokens.
const TOKENIZER: &str = "data.tokenizer";
/// The keys whose files are read.
const TRAIN: &str = "data.train";
const VAL: &str = "data.val";
/// The key whose default is the tokenizer's.
const VOCAB_SIZE: &str = "model.vocab_size";

/// Inserts what the data state above the preset. `model.vocab_size` is left out where weights state it.
pub(super) fn insert(stack: &mut Stack, weights_state_it: bool, diagnostics: &mut Diagnostics) {
    let asked = match stack.winner(TOKENIZER).map(|entry| &entry.value) {
        Some(Value::Text(word)) => TokenizerKind::ALL.into_iter().find(|kind| kind.word() == word),
        _ => None,
    };
    let specs = specs(stack);
    let stated = match vocabulary::stated(&specs) {
        Ok(stated) => stated,
        Err(error) => return complain(stack, &error, diagnostics),
    };
    let (file, kind, size) = match stated {
        Some(stated) => (stated.file, stated.tokenizer.kind(), stated.tokenizer.vocab_size()),
        None => {
            let Some(kind) = asked.filter(|kind| *kind != TokenizerKind::Gpt2) else { return };
            let tokenizer = match vocabulary::tokenizer(kind, &specs) {
                Ok(tokenizer) => tokenizer,
                // the next reading might succeed, and the recipe would have another model
                Err(error @ (DataError::Read { .. } | DataError::TooManyMaps { .. })) => {
                    return complain(stack, &error, diagnostics);
                }
                // what is wrong with the data themselves is told where they are opened
                Err(_) => return,
            };
            let first = specs.first().map(PathBuf::from).unwrap_or_default();
            (first, kind, tokenizer.vocab_size())
        }
    };
    if let Some(asked) = asked.filter(|asked| *asked != kind) {
        let file = super::stated::seen(&file);
        let title = format!("`{TOKENIZER}` is \"{asked}\", but `{}` says \"{kind}\"", file.display());
        let relation = Relation::broken_by(TOKENIZER, title).and(TRAIN);
        let relation = relation.help("leave data.tokenizer out: prepared sets carry theirs");
        if let Some(problem) = relation.blame(stack) {
            diagnostics.push(problem);
        }
        return;
    }
    let source = Source { medium: Medium::File(super::stated::seen(&file)), text: String::new(), rank: 0 };
    let source = Arc::new(source);
    let entry = |path, value| Entry { key: known(path), value, place: Place::whole(&source) };
    let mut entries = vec![entry(TOKENIZER, Value::Text(kind.word().to_owned()))];
    if kind != TokenizerKind::Gpt2 && !weights_state_it {
        entries.push(entry(VOCAB_SIZE, Value::Integer(size as i64)));
    }
    let above = stack.layers.iter().take_while(|layer| layer.said_by.is_below_data()).count();
    stack.layers.insert(above, Layer { said_by: SaidBy::Data(file), entries });
}

/// Tells of data that keep what they state from being known.
fn complain(stack: &Stack, error: &DataError, diagnostics: &mut Diagnostics) {
    if let Some(entry) = stack.winner(TRAIN) {
        diagnostics.push(Problem::new(format!("data.train: {error}"), entry.place.clone()));
    }
}

/// The files, globs and built-in names of all data.
fn specs(stack: &Stack) -> Vec<String> {
    let mut specs = Vec::new();
    for key in [TRAIN, VAL] {
        match stack.winner(key).map(|entry| &entry.value) {
            Some(Value::Texts(texts)) => specs.extend(texts.iter().cloned()),
            Some(Value::Sets(sets)) => specs.extend(sets.values().flatten().cloned()),
            Some(Value::Mixture(parts)) => specs.extend(parts.iter().map(|(path, _)| path.clone())),
            _ => {}
        }
    }
    specs
}
