//! Tokenizers as Hugging Face's `tokenizers` reads them, so that a checkpoint is a complete model: `tokenizer.json`,
//! `tokenizer_config.json` and `generation_config.json`.
//!
//! All three are a BPE there: GPT-2's with its merges, bytes without any, and characters without any and without
//! GPT-2's alphabet for bytes.

use super::bpe::Bpe;
use super::{Characters, END_OF_TEXT, Inner, Tokenizer, TokenizerKind, VOCAB_SIZE, recognized};
use crate::json;
use crate::regular;
use crate::weights;
use serde_json::{Map, Value, json};
use std::path::Path;
use std::sync::LazyLock;

/// The file that holds the vocabulary.
const TOKENIZER: &str = "tokenizer.json";
/// The text of GPT-2's only special token.
pub(super) const SPECIAL: &str = "<|endoftext|>";
/// No tokenizer comes near this size.
pub(super) const MAX_BYTES: u64 = 64 << 20;

impl Tokenizer {
    /// The files by which Hugging Face's libraries know this tokenizer, for a model of `vocab_size` ids that takes
    /// `block_size` tokens: their names and contents.
    #[must_use]
    pub fn companions(&self, vocab_size: usize, block_size: usize) -> Vec<(&'static str, String)> {
        // a special id that the model does not have would be an index outside of its embedding
        let special = self.separator().filter(|&id| usize::from(id) < vocab_size);
        let mut config = json!({
            "tokenizer_class": "PreTrainedTokenizerFast",
            "model_max_length": block_size,
            "clean_up_tokenization_spaces": false,
        });
        let mut generation = json!({ "do_sample": true });
        if let Some(id) = special {
            for name in ["bos_token", "eos_token", "unk_token"] {
                config[name] = SPECIAL.into();
            }
            for name in ["bos_token_id", "eos_token_id", "pad_token_id"] {
                generation[name] = id.into();
            }
        }
        let pretty = |name, value: Value| (name, format!("{value:#}\n"));
        vec![
            (TOKENIZER, self.to_json()),
            pretty(recognized::CONFIG, config),
            pretty("generation_config.json", generation),
        ]
    }

    fn to_json(&self) -> String {
        static GPT2: LazyLock<String> = LazyLock::new(|| document(&Tokenizer::gpt2().model(), true, true));
        match self.kind() {
            TokenizerKind::Gpt2 => GPT2.clone(),
            TokenizerKind::Char => document(&self.model(), false, false),
            TokenizerKind::Bytes => document(&self.model(), true, false),
        }
    }

    /// The vocabulary and the merges.
    fn model(&self) -> Value {
        let mut vocab = Map::new();
        let mut merges = Vec::new();
        match &self.0 {
            Inner::Gpt2 => {
                let bpe = Bpe::gpt2();
                let shown = |id| spelled(bpe.token(id));
                for id in 0..END_OF_TEXT as u16 {
                    vocab.insert(shown(id), id.into());
                    // a token has no space in this alphabet
                    let merge =
                        bpe.parts(id).map(|(left, right)| format!("{} {}", shown(left), shown(right)));
                    merges.extend(merge);
                }
                vocab.insert(SPECIAL.into(), END_OF_TEXT.into());
            }
            Inner::Char(characters) => {
                vocab.extend(characters.text().chars().enumerate().map(|(id, c)| (c.to_string(), id.into())));
            }
            Inner::Bytes => {
                vocab.extend((0..=u8::MAX).map(|byte| (spelled(&[byte]), byte.into())));
            }
        }
        json!({
            "type": "BPE",
            "dropout": null,
            "unk_token": null,
            "continuing_subword_prefix": "",
            "end_of_word_suffix": "",
            "fuse_unk": false,
            "byte_fallback": false,
            "vocab": vocab,
            "merges": merges,
        })
    }

    /// The tokenizer that lies in a model's directory, or beside a file of weights, if one does: the one that
    /// `tokenizer.json` describes if that is GPT-2's or one of characters or bytes as this program writes them, or the
    /// characters of nanoGPT's `meta.pkl`.
    ///
    /// # Errors
    /// What is wrong with a vocabulary, or that it is none of those, with the file's name.
    pub fn stated_by_model(model: &Path) -> Result<Option<Self>, String> {
        let first = weights::files(model).ok().and_then(|files| files.into_iter().next());
        let believed = |note: &Path| {
            let checked = first.as_ref().map_or(Ok(()), |first| weights::check_beside(note, first));
            checked.map_err(|problem| format!("`{}` cannot be used: {problem}", note.display()))
        };
        let dir = weights::dir_of(model);
        let (path, list) = (dir.join(TOKENIZER), dir.join(weights::META));
        let is_there = path.symlink_metadata().is_ok();
        if !is_there && list.is_file() {
            believed(&list)?;
            let characters = weights::characters(&list).and_then(|all| all.map(Characters::new).transpose());
            let characters = characters.map_err(|problem| format!("`{}`: {problem}", list.display()))?;
            return Ok(characters.map(Self::chars));
        }
        if !is_there {
            return recognized::in_parts(dir, &believed).map(|says_so| says_so.then(|| Self::gpt2().clone()));
        }
        believed(&path)?;
        let bytes = regular::read_within(&path, MAX_BYTES);
        let bytes = bytes.map_err(|error| format!("could not read `{}`: {error}", path.display()))?;
        let document = json::value(&bytes);
        let document = document.map_err(|error| format!("`{}` is malformed: {error}", path.display()))?;
        let model = &document["model"];
        let merges = model["merges"].as_array().map_or(0, Vec::len);
        if let Some(vocab) = model["vocab"].as_object().filter(|_| merges == 0 && model["type"] == "BPE") {
            let is = |byte: u8| vocab.get(&spelled(&[byte])).and_then(Value::as_u64) == Some(byte.into());
            let usual = |difference: Option<String>| {
                difference.map_or(Ok(()), |difference| Err(recognized::refused(&path, &difference)))
            };
            if document["pre_tokenizer"].is_null() {
                usual(recognized::around(&document))?;
                let characters = numbered(vocab).ok_or("it does not number single characters".to_owned());
                let characters = characters.and_then(Characters::new);
                return characters
                    .map(|characters| Some(Self::chars(characters)))
                    .map_err(|problem| format!("`{}`: {problem}", path.display()));
            }
            if vocab.len() == 256 && (0..=u8::MAX).all(is) {
                usual(recognized::of_bytes(&document))?;
                return Ok(Some(Self::bytes().clone()));
            }
        }
        match recognized::difference(&document) {
            None => Ok(Some(Self::gpt2().clone())),
            Some(difference) => Err(recognized::refused(&path, &difference)),
        }
    }
}

/// The characters of a vocabulary in the order of their ids; `None` for another vocabulary.
fn numbered(vocab: &Map<String, Value>) -> Option<Vec<char>> {
    let mut all = vec![None; vocab.len()];
    for (text, id) in vocab {
        let mut characters = text.chars();
        let c = characters.next().filter(|_| characters.next().is_none())?;
        let place = all.get_mut(usize::try_from(id.as_u64()?).ok()?)?;
        if place.replace(c).is_some() {
            return None;
        }
    }
    all.into_iter().collect()
}

fn document(model: &Value, is_bytes: bool, has_special: bool) -> String {
    let bytes = |uses_pattern: bool| {
        json!({
            "type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": uses_pattern,
        })
    };
    let special = json!({
        "id": END_OF_TEXT, "content": SPECIAL, "single_word": false, "lstrip": false, "rstrip": false,
        "normalized": false, "special": true,
    });
    let document = json!({
        "version": "1.0",
        "truncation": null,
        "padding": null,
        "added_tokens": if has_special { vec![special] } else { Vec::new() },
        "normalizer": null,
        "pre_tokenizer": if is_bytes { bytes(has_special) } else { Value::Null },
        "post_processor": null,
        "decoder": if is_bytes { bytes(has_special) } else { json!({ "type": "Fuse" }) },
        "model": model,
    });
    debug_assert!(
        !has_special || document["model"]["vocab"].as_object().is_some_and(|v| v.len() == VOCAB_SIZE)
    );
    format!("{document}\n")
}

/// Bytes in GPT-2's alphabet of printable characters: those that are printable stand for themselves, the others for
/// the characters from U+0100 on, in their order.
pub(super) fn spelled(bytes: &[u8]) -> String {
    static ALPHABET: LazyLock<[char; 256]> = LazyLock::new(|| {
        let mut others = '\u{100}'..;
        std::array::from_fn(|byte| match byte as u8 {
            own @ (b'!'..=b'~' | 0xa1..=0xac | 0xae..) => char::from(own),
            _ => others.next().unwrap_or_default(),
        })
    });
    bytes.iter().map(|&byte| ALPHABET[usize::from(byte)]).collect()
}
