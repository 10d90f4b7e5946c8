//! Whether a tokenizer of Hugging Face's libraries is GPT-2's.
//!
//! Models of GPT-2's architecture come with vocabularies of their own. Text that is encoded with another one is noise
//! to them, and no number would show it.

use super::END_OF_TEXT;
use super::bpe::Bpe;
use super::hugging_face::{MAX_BYTES, SPECIAL, spelled};
use crate::json;
use crate::regular;
use crate::wording::shortened;
use serde_json::{Map, Value};
use std::path::Path;

/// The vocabulary and the merges in files of their own, as older models have them.
const VOCAB: &str = "vocab.json";
const MERGES: &str = "merges.txt";
/// What names the kind of a tokenizer, and the kinds that may be GPT-2's.
pub(super) const CONFIG: &str = "tokenizer_config.json";
const CLASSES: [&str; 3] = ["GPT2Tokenizer", "GPT2TokenizerFast", "PreTrainedTokenizerFast"];
/// Vocabularies of BERT's tokenizer and of SentencePiece.
const OTHERS: [&str; 4] = ["vocab.txt", "spiece.model", "tokenizer.model", "sentencepiece.bpe.model"];

/// In what a `tokenizer.json` differs from GPT-2's, in words; `None` for GPT-2's.
pub(super) fn difference(document: &Value) -> Option<String> {
    let model = &document["model"];
    let shown = |value: &Value| shortened(&value.to_string(), 80);
    // older files leave the type of a BPE out
    if !model["type"].is_null() && model["type"] != "BPE" {
        return Some(format!("it is of the type {}", shown(&model["type"])));
    }
    let of_vocab = model["vocab"].as_object().map_or_else(|| Some("it has no vocabulary".into()), vocab);
    let merge = |merge: &Value| match merge {
        Value::String(merge) => merge.clone(),
        pair => format!("{} {}", pair[0].as_str().unwrap_or_default(), pair[1].as_str().unwrap_or_default()),
    };
    let found = model["merges"].as_array().into_iter().flatten().map(merge);
    if let Some(difference) = of_vocab.or_else(|| merges(found)) {
        return Some(difference);
    }
    if byte_level(document).is_some_and(|pieces| pieces["use_regex"] == false) {
        return Some("it does not cut text into pieces (`use_regex`)".into());
    }
    of_bytes(document)
}

/// What a `tokenizer.json` does besides looking up the bytes of a text, in words; `None` for nothing.
pub(super) fn of_bytes(document: &Value) -> Option<String> {
    let is_usual = byte_level(document).is_some_and(|pieces| pieces["add_prefix_space"] == false);
    if !is_usual {
        let shown = shortened(&document["pre_tokenizer"].to_string(), 80);
        return Some(format!("it cuts text in another way, `pre_tokenizer` {shown}"));
    }
    around(document)
}

/// What is done to a text before it is cut and to its tokens behind, in words; `None` for nothing.
pub(super) fn around(document: &Value) -> Option<String> {
    if !document["normalizer"].is_null() {
        return Some("it changes the text before (`normalizer`)".into());
    }
    if adds_tokens(&document["post_processor"]) {
        return Some("it puts tokens around a text (`post_processor`)".into());
    }
    let mut added = document["added_tokens"].as_array().into_iter().flatten();
    // a special token is never the text of a document
    let added = added.find(|token| token["special"] != true && token["content"] != SPECIAL)?;
    Some(format!("it has the further token {}", shortened(&added["content"].to_string(), 80)))
}

/// The step that takes a text for bytes, which may be the only one of a sequence.
fn byte_level(document: &Value) -> Option<&Value> {
    let pieces = &document["pre_tokenizer"];
    let pieces = match (pieces["type"].as_str(), pieces["pretokenizers"].as_array().map(Vec::as_slice)) {
        (Some("Sequence"), Some([one])) => one,
        _ => pieces,
    };
    (pieces["type"] == "ByteLevel").then_some(pieces)
}

/// Whether a post-processor puts tokens of its own around a text.
fn adds_tokens(post: &Value) -> bool {
    let any =
        |list: &Value, adds: fn(&Value) -> bool| list.as_array().is_none_or(|list| list.iter().any(adds));
    match post["type"].as_str() {
        Some("ByteLevel") => false,
        Some("Sequence") => any(&post["processors"], adds_tokens),
        Some("TemplateProcessing") => any(&post["single"], |piece| piece["Sequence"].is_null()),
        _ => !post.is_null(),
    }
}

/// Whether a directory without a `tokenizer.json` says that its tokenizer is GPT-2's, by the vocabulary and the merges,
/// as far as they are there, and otherwise by the name of its kind. `believed` refuses a file that may not say so.
/// Errors: in what it is another one.
pub(super) fn in_parts(dir: &Path, believed: &dyn Fn(&Path) -> Result<(), String>) -> Result<bool, String> {
    let mut says_so = false;
    for name in OTHERS {
        let path = dir.join(name);
        if path.symlink_metadata().is_ok() {
            believed(&path)?;
            return Err(refused(&path, "it is a vocabulary of another kind"));
        }
    }
    let read = |name: &str| {
        let path = dir.join(name);
        path.symlink_metadata().ok()?;
        let bytes = || {
            let bytes = regular::read_within(&path, MAX_BYTES);
            bytes.map_err(|error| format!("could not read `{}`: {error}", path.display()))
        };
        Some(believed(&path).and_then(|()| bytes()))
    };
    let document = |path: &Path, bytes: &[u8]| {
        json::value(bytes).map_err(|error| format!("`{}` is malformed: {error}", path.display()))
    };
    if let Some(bytes) = read(VOCAB).transpose()? {
        let path = dir.join(VOCAB);
        let found = document(&path, &bytes)?;
        let difference = found.as_object().map_or_else(|| Some("it is no table".into()), vocab);
        difference.map_or(Ok(()), |difference| Err(refused(&path, &difference)))?;
        says_so = true;
    } else if let Some(bytes) = read(CONFIG).transpose()? {
        let path = dir.join(CONFIG);
        let found = document(&path, &bytes)?;
        let class = &found["tokenizer_class"];
        if !class.is_null() && !class.as_str().is_some_and(|class| CLASSES.contains(&class)) {
            let class = shortened(&class.to_string(), 80);
            return Err(refused(
                &path,
                &format!("its `tokenizer_class` is {class}, and its vocabulary is not there"),
            ));
        }
        says_so |= !class.is_null();
    }
    if let Some(bytes) = read(MERGES).transpose()? {
        let text = String::from_utf8_lossy(&bytes);
        let lines = text.lines().filter(|line| !line.starts_with("#version") && !line.trim().is_empty());
        let difference = merges(lines.map(str::to_owned));
        difference.map_or(Ok(()), |difference| Err(refused(&dir.join(MERGES), &difference)))?;
        says_so = true;
    }
    Ok(says_so)
}

/// What is said of another tokenizer.
pub(super) fn refused(path: &Path, difference: &str) -> String {
    format!(
        "`{}` is of another tokenizer than GPT-2's, which this program does not have: {difference}. To use the model \
         with tokens alone, copy its weights and config.json into a directory without that file",
        path.display()
    )
}

/// In what a vocabulary differs from GPT-2's.
fn vocab(found: &Map<String, Value>) -> Option<String> {
    let bpe = Bpe::gpt2();
    let id_of = |token: &str| found.get(token).and_then(Value::as_u64);
    let differs = |id: &u16| id_of(&spelled(bpe.token(*id))) != Some((*id).into());
    if let Some(id) = (0..END_OF_TEXT as u16).find(differs) {
        let token = spelled(bpe.token(id));
        let theirs = id_of(&token).map_or_else(|| "is not in it".to_owned(), |id| format!("is {id} in it"));
        return Some(format!("the token {id} of GPT-2, `{token}`, {theirs}"));
    }
    let known = END_OF_TEXT as usize + usize::from(found.contains_key(SPECIAL));
    (found.len() != known).then(|| format!("its vocabulary has {} tokens", found.len()))
}

/// In what merges, each of two tokens with a space between, differ from GPT-2's.
fn merges(mut found: impl Iterator<Item = String>) -> Option<String> {
    let bpe = Bpe::gpt2();
    let parts = (0..END_OF_TEXT as u16).filter_map(|id| bpe.parts(id));
    let shown = |id| spelled(bpe.token(id));
    for (number, (left, right)) in (1..).zip(parts) {
        let ours = format!("{} {}", shown(left), shown(right));
        let theirs = found.next();
        if theirs.as_ref() != Some(&ours) {
            let theirs =
                theirs.map_or_else(|| "missing".to_owned(), |it| format!("`{}`", shortened(&it, 80)));
            return Some(format!("its merge {number} is {theirs} and not `{ours}`"));
        }
    }
    found.next().map(|more| format!("it has the further merge `{}`", shortened(&more, 80)))
}
