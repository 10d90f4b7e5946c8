//! What prepared shards hold of the texts that they were prepared from, as far as their set's card makes it certain.

use super::card::{CARD, Card, Part};
use super::shard::ShardInfo;
use super::source::files;
use super::unfinished::dir_of;
use crate::regular;
use serde_json::Value;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::ops::Range;
use std::path::{Path, PathBuf};

/// What the shards of a finished set were prepared from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Origin {
    /// The shards that are named, with the tokens of the whole set that each has.
    shards: HashMap<String, Range<u64>>,
    texts: Vec<Text>,
    /// How many shards for training hold all texts from beginning to end; `None` where shards for validation have a
    /// part of them, or a limit ended the set.
    all: Option<usize>,
}

/// A text that documents were taken from.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Text {
    /// By what it is known again: blake3 of the file, and of the name of the field as well where that is not `text`.
    id: String,
    /// The tokens of the set that were taken from it; `None` where its documents lie among those of others, and for
    /// cards of earlier versions.
    tokens: Option<Range<u64>>,
    /// Whether it was read to its end.
    is_whole: bool,
}

/// What some shards of a set hold of its texts.
#[derive(Debug, Default)]
pub struct Held<'a> {
    /// Texts from beginning to end.
    pub whole: Vec<&'a str>,
    /// Texts of which they hold a part.
    pub part: Vec<&'a str>,
    /// Texts of which they hold something of at least one.
    pub one_of: Vec<&'a str>,
}

impl Held<'_> {
    /// Whether something is held of a text for which `is_one` holds, which is told whether all of the text is.
    pub fn has(&self, is_one: impl Fn(&str, bool) -> bool) -> bool {
        self.whole.iter().any(|text| is_one(text, true))
            || self.part.iter().any(|text| is_one(text, false))
            || !self.one_of.is_empty() && self.one_of.iter().all(|text| is_one(text, false))
    }
}

/// The origins of shards, by their directories.
pub type Origins = HashMap<PathBuf, Origin>;

/// What the shards that `specs` name were prepared from. What cannot be read is left out.
#[must_use]
pub fn origins(specs: &[String]) -> Origins {
    let mut by_dir: HashMap<PathBuf, HashSet<String>> = HashMap::new();
    for path in files(specs) {
        by_dir.entry(dir_of(&path).to_owned()).or_default().insert(name_of(&path));
    }
    let origin = |(dir, names): (PathBuf, HashSet<String>)| {
        let card = Card::read(&dir).ok().flatten()?;
        let is_its = |name: &String| !regular::is_put_beside(&dir.join(CARD), &dir.join(name));
        let origin = Origin::of(&card, |name| names.contains(name) && is_its(name));
        (!origin.shards.is_empty()).then_some((dir, origin))
    };
    by_dir.into_iter().filter_map(origin).collect()
}

/// What these shards hold, by their sets.
#[must_use]
pub fn held<'a>(origins: &'a Origins, shards: impl Iterator<Item = &'a ShardInfo>) -> Vec<Held<'a>> {
    let mut by_dir: BTreeMap<&Path, HashSet<String>> = BTreeMap::new();
    for path in shards.filter_map(|info| info.path.as_ref()) {
        by_dir.entry(dir_of(path)).or_default().insert(name_of(path));
    }
    let of_dir = |(dir, names): (&Path, _)| Some(origins.get(dir)?.held(&names));
    by_dir.into_iter().filter_map(of_dir).collect()
}

fn name_of(path: &Path) -> String {
    path.file_name().unwrap_or_default().to_string_lossy().into_owned()
}

impl Origin {
    /// What a card says of those of its shards that are named.
    fn of(card: &Card, is_named: impl Fn(&String) -> bool) -> Self {
        let number = |name: &str| card.options.get(name).and_then(Value::as_u64);
        let is_limited = number("limit_tokens").is_some_and(|limit| card.tokens >= limit);
        let field = card.options.get("field").and_then(Value::as_str).unwrap_or("text");
        let sources = card.sources.iter().filter(|source| source.documents > 0);
        let mut texts: Vec<Text> = Vec::new();
        let mut end = Some(0u64).filter(|_| number("shuffle_seed").is_none());
        for source in sources {
            let begin = end;
            end = begin.zip(source.tokens).and_then(|(begin, tokens)| begin.checked_add(tokens));
            let is_text = field == "text" || source.format.as_ref().is_some_and(|f| f.starts_with("txt"));
            let id = match is_text {
                true => source.blake3.clone(),
                false => blake3::hash(format!("{} {field}", source.blake3).as_bytes()).to_string(),
            };
            texts.push(Text { id, tokens: begin.zip(end).map(|(begin, end)| begin..end), is_whole: true });
        }
        if let Some(last) = texts.last_mut().filter(|_| is_limited) {
            last.is_whole = false;
        }
        let spans = spans(card, number("shard_tokens").unwrap_or(0));
        if end != Some(card.tokens) || spans.is_none() {
            texts.iter_mut().for_each(|text| text.tokens = None);
        }
        let all = card.train.files.iter().chain(&card.val.files).filter(|name| is_named(name));
        let mut spans = spans.unwrap_or_default();
        let shards = all.map(|name| (name.clone(), spans.remove(name).unwrap_or_default())).collect();
        let is_split = !card.val.files.is_empty() || is_limited;
        Self { shards, texts, all: (!is_split).then_some(card.train.files.len()) }
    }

    /// What those of the shards hold that have these names.
    fn held(&self, names: &HashSet<String>) -> Held<'_> {
        let mut spans: Vec<&Range<u64>> = names.iter().filter_map(|name| self.shards.get(name)).collect();
        let mut held = Held::default();
        if spans.is_empty() {
            return held;
        }
        let is_all = self.all == Some(spans.len());
        let is_known = self.texts.iter().all(|text| text.tokens.is_some());
        spans.sort_unstable_by_key(|span| span.start);
        let ends = [spans[0].start, spans[spans.len() - 1].end];
        let is_apart = |tokens: &Range<u64>| tokens.end <= ends[0] || tokens.start >= ends[1];
        for text in self.texts.iter().filter(|text| !is_known || !text.tokens.as_ref().is_some_and(is_apart))
        {
            let list = match &text.tokens {
                Some(tokens) if is_known => {
                    let from = spans.partition_point(|span| span.end <= tokens.start);
                    let here = spans[from..].iter().take_while(|span| span.start < tokens.end);
                    let here: u64 = here.map(|s| s.end.min(tokens.end) - s.start.max(tokens.start)).sum();
                    match here {
                        // a separator may be all of it
                        0 | 1 => continue,
                        here if text.is_whole && here == tokens.end - tokens.start => &mut held.whole,
                        _ => &mut held.part,
                    }
                }
                _ if is_all => &mut held.whole,
                _ if self.texts.len() == 1 => &mut held.part,
                _ => &mut held.one_of,
            };
            list.push(&text.id);
        }
        held
    }
}

/// The tokens of the whole set that each of its shards has; `None` where the card's numbers do not go together.
fn spans(card: &Card, shard_tokens: u64) -> Option<HashMap<String, Range<u64>>> {
    // a fraction is cut from the end, all other validation data from the beginning
    let is_val_last = card.options.get("validation").is_some_and(|of| of.get("fraction").is_some());
    let parts = if is_val_last { [&card.train, &card.val] } else { [&card.val, &card.train] };
    let mut spans = HashMap::new();
    let mut begin = 0u64;
    for Part { tokens, files, .. } in parts {
        let end = begin.checked_add(*tokens)?;
        for name in files {
            let next = begin.checked_add(shard_tokens)?.min(end);
            if next == begin {
                return None;
            }
            spans.insert(name.clone(), begin..next);
            begin = next;
        }
        if begin != end {
            return None;
        }
    }
    (begin == card.tokens).then_some(spans)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A set of two texts of 30 and 20 tokens in shards of 10, of which the last 15 tokens are validated on.
    fn card(tokens: [Option<u64>; 2]) -> Card {
        let source = |(name, tokens): (&str, Option<u64>)| {
            let tokens = tokens.map_or(String::new(), |tokens| format!("\"tokens\": {tokens},"));
            format!(
                "{{\"path\": \"{name}\", \"format\": \"txt\", \"bytes\": 9, {tokens} \"blake3\": \"{name}\", \
                 \"documents\": 1}}"
            )
        };
        let sources = ["a", "b"].into_iter().zip(tokens).map(source).collect::<Vec<_>>().join(", ");
        let text = format!(
            "{{\"version\": 1, \"tokenizer\": \"bytes\", \"vocab_size\": 256, \"documents\": 2, \"tokens\": 50, \
             \"bytes\": 50, \"unigram_entropy\": 1.0, \"train\": {{\"tokens\": 35, \"files\": [\"t1\", \"t2\", \"t3\", \
             \"t4\"]}}, \"val\": {{\"tokens\": 15, \"files\": [\"v0\", \"v1\"]}}, \"options\": {{\"field\": \"text\", \
             \"shard_tokens\": 10, \"validation\": {{\"fraction\": 0.3}}}}, \"sources\": [{sources}]}}"
        );
        serde_json::from_str(&text).expect("a card")
    }

    fn of(card: &Card, names: &[&str]) -> [Vec<String>; 3] {
        let origin = Origin::of(card, |_| true);
        let Held { whole, part, one_of } = origin.held(&names.iter().map(ToString::to_string).collect());
        [whole, part, one_of].map(|texts| texts.into_iter().map(str::to_owned).collect())
    }

    fn texts(names: [&[&str]; 3]) -> [Vec<String>; 3] {
        names.map(|names| names.iter().map(ToString::to_string).collect())
    }

    #[test]
    fn what_shards_hold_follows_from_the_tokens_of_the_texts() {
        let card = card([Some(30), Some(20)]);
        assert_eq!(of(&card, &["t1", "t2", "t3"]), texts([&["a"], &[], &[]]));
        assert_eq!(of(&card, &["t1", "t3"]), texts([&[], &["a"], &[]]));
        assert_eq!(of(&card, &["t1", "t2", "t3", "t4"]), texts([&["a"], &["b"], &[]]));
        assert_eq!(of(&card, &["v0", "v1"]), texts([&[], &["b"], &[]]));
        assert_eq!(of(&card, &["t4", "v0", "v1"]), texts([&["b"], &[], &[]]));
        assert_eq!(of(&card, &["other"]), texts([&[], &[], &[]]));
    }

    #[test]
    fn a_limit_leaves_the_end_of_the_last_text_out() {
        let mut card = card([Some(30), Some(20)]);
        card.options["limit_tokens"] = 50.into();
        assert_eq!(of(&card, &["t1", "t2", "t3", "t4", "v0", "v1"]), texts([&["a"], &["b"], &[]]));
    }

    #[test]
    fn without_the_tokens_of_texts_a_part_may_be_of_either() {
        let mut shuffled = card([Some(30), Some(20)]);
        shuffled.options["shuffle_seed"] = 7.into();
        let mut damaged = card([Some(30), Some(20)]);
        damaged.tokens = 51;
        let mut whole = card([None; 2]);
        for card in [card([Some(30), None]), card([Some(30), Some(19)]), whole.clone(), shuffled, damaged] {
            assert_eq!(of(&card, &["t1"]), texts([&[], &[], &["a", "b"]]));
            assert_eq!(of(&card, &["t1", "t2", "t3", "t4"]), texts([&[], &[], &["a", "b"]]));
        }
        whole.val = Part::default();
        assert_eq!(of(&whole, &["t1", "t2", "t3", "t4"]), texts([&["a", "b"], &[], &[]]));
        assert_eq!(of(&whole, &["t1", "t2", "t3"]), texts([&[], &[], &["a", "b"]]));
        whole.sources.pop();
        assert_eq!(of(&whole, &["t1", "t2", "t3"]), texts([&[], &["a"], &[]]));
    }

    #[test]
    fn what_is_held_for_certain_is_told() {
        let held = |whole, part, one_of| Held { whole, part, one_of };
        assert!(held(vec!["a"], vec![], vec![]).has(|text, is_whole| text == "a" && is_whole));
        assert!(held(vec![], vec!["a"], vec![]).has(|text, is_whole| text == "a" && !is_whole));
        assert!(!held(vec![], vec![], vec!["a", "b"]).has(|text, _| text == "a"));
        assert!(held(vec![], vec![], vec!["a", "b"]).has(|_, _| true));
        assert!(!held(vec![], vec![], vec![]).has(|_, _| true));
    }
}
