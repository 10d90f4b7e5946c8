//! What prepared shards hold of the texts that they were prepared from, as far as their set's card makes it certain.

use super::card::{CARD, Card, Part};
use super::dataset::Dataset;
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
    /// In the order of their tokens.
    texts: Vec<Text>,
    /// Whether it is known which tokens are of which text.
    is_known: bool,
    /// How many shards hold all texts from beginning to end; `None` where a limit ended the set.
    all: Option<usize>,
}

/// A text that documents were taken from.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Text {
    /// By what it is known again: blake3 of the file, and of the name of the field as well where that is not `text`.
    id: String,
    /// The tokens of the set that were taken from it.
    tokens: Range<u64>,
    /// Whether it was read to its end.
    is_whole: bool,
}

/// A part of a shard, or all of it.
#[derive(Debug, Clone, Copy)]
pub struct Stretch<'a> {
    /// The shard.
    pub info: &'a ShardInfo,
    /// So many of its tokens.
    pub tokens: u64,
    /// Those of them that are in rows: what is behind the last one is never read.
    pub in_rows: u64,
    /// Tokens of a row.
    pub row: u64,
    /// Whether it begins with the shard's first token.
    pub is_first: bool,
    /// Whether that is all of the shard.
    pub is_whole: bool,
}

/// What of the shards of data is in their first `rows` rows.
#[must_use]
pub fn stretches(set: &Dataset, rows: u64) -> Vec<Stretch<'_>> {
    let (mut before, mut all) = (0u64, Vec::new());
    let row = set.block_size as u64;
    for (info, (is_first, is_whole)) in set.shards().zip(set.are_whole()) {
        let read = info.rows.min(rows.saturating_sub(before));
        before += info.rows;
        if read > 0 {
            let in_rows = read * row + 1;
            let is_all = read == info.rows;
            let tokens = if is_all { info.tokens } else { in_rows };
            all.push(Stretch { info, tokens, in_rows, row, is_first, is_whole: is_whole && is_all });
        }
    }
    all
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

/// The origins of shards, by their directories without links.
pub type Origins = HashMap<PathBuf, Origin>;

/// What the shards that `specs` name were prepared from. What cannot be read is left out.
#[must_use]
pub fn origins(specs: &[String]) -> Origins {
    let origin = |(dir, names): (PathBuf, Vec<(String, ())>)| {
        let names: HashSet<String> = names.into_iter().map(|(name, ())| name).collect();
        let card = Card::read(&dir).ok().flatten()?;
        let is_its = |name: &String| {
            let shard = dir.join(name);
            !regular::is_put_beside(&dir.join(CARD), &shard) && !card.is_of_other_tokens(&shard)
        };
        let origin = Origin::of(&card, |name| names.contains(name) && is_its(name));
        (!origin.shards.is_empty()).then_some((dir, origin))
    };
    by_place(files(specs).iter().map(|path| (path.as_path(), ()))).into_iter().filter_map(origin).collect()
}

/// What these shards hold, by their sets.
#[must_use]
pub fn held<'a>(origins: &'a Origins, shards: &[Stretch]) -> Vec<Held<'a>> {
    if origins.is_empty() {
        return Vec::new();
    }
    // where a second part lies in its shard is not known here
    let shards = shards.iter().filter(|stretch| stretch.is_first);
    let files = shards.filter_map(|stretch| Some((stretch.info.path.as_deref()?, *stretch)));
    let of_dir = |(dir, shards): (PathBuf, Vec<(String, Stretch)>)| {
        let mut longest: HashMap<String, Stretch> = HashMap::new();
        for (name, stretch) in shards {
            let known = longest.entry(name).or_insert(stretch);
            if known.tokens < stretch.tokens {
                *known = stretch;
            }
        }
        Some(origins.get(&dir)?.held(&longest))
    };
    by_place(files).into_iter().filter_map(of_dir).collect()
}

/// The names of files, with something for each, by their directories without links.
fn by_place<'p, T>(files: impl Iterator<Item = (&'p Path, T)>) -> BTreeMap<PathBuf, Vec<(String, T)>> {
    let mut places: HashMap<&Path, PathBuf> = HashMap::new();
    let mut found: BTreeMap<PathBuf, Vec<(String, T)>> = BTreeMap::new();
    for (path, of_file) in files {
        let dir = dir_of(path);
        let place =
            places.entry(dir).or_insert_with(|| dir.canonicalize().unwrap_or_else(|_| dir.to_owned()));
        let of_file = (name_of(path), of_file);
        match found.get_mut(place) {
            Some(all) => all.push(of_file),
            None => drop(found.insert(place.clone(), vec![of_file])),
        }
    }
    found
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
            let tokens = begin.zip(end).map_or(0..0, |(begin, end)| begin..end);
            texts.push(Text { id, tokens, is_whole: true });
        }
        if let Some(last) = texts.last_mut().filter(|_| is_limited) {
            last.is_whole = false;
        }
        let spans = spans(card, number("shard_tokens").unwrap_or(0));
        let is_known = end == Some(card.tokens) && spans.is_some();
        let mut spans = spans.unwrap_or_default();
        let files = || card.train.files.iter().chain(&card.val.files);
        let named = files().filter(|name| is_named(name));
        let shards = named.map(|name| (name.clone(), spans.remove(name).unwrap_or_default())).collect();
        Self { shards, texts, is_known, all: (!is_limited).then(|| files().count()) }
    }

    /// What those of the shards hold that have these names.
    fn held(&self, names: &HashMap<String, Stretch>) -> Held<'_> {
        let mut held = Held::default();
        let found = names.iter().filter_map(|(name, stretch)| Some((self.shards.get(name)?, stretch)));
        let found = found.filter(|(_, stretch)| stretch.in_rows > 0);
        if !self.is_known {
            let found: Vec<_> = found.collect();
            let whole = found.iter().filter(|(_, stretch)| stretch.is_whole).count();
            let list = match found.len() {
                0 => return held,
                _ if self.all == Some(whole) => &mut held.whole,
                _ if self.texts.len() == 1 => &mut held.part,
                _ => &mut held.one_of,
            };
            list.extend(self.texts.iter().map(|text| text.id.as_str()));
            return held;
        }
        // another file in the place of a shard
        let is_it = |(span, stretch): &(&Range<u64>, &Stretch)| {
            let tokens = span.end - span.start;
            if stretch.is_whole { stretch.tokens == tokens } else { stretch.tokens <= tokens }
        };
        let mut found: Vec<([Range<u64>; 2], u64)> = found
            .filter(is_it)
            .map(|(span, Stretch { tokens, in_rows, row, .. })| {
                ([*tokens, *in_rows.min(tokens)].map(|tokens| span.start..span.start + tokens), *row)
            })
            .collect();
        found.sort_unstable_by_key(|([span, _], _)| span.start);
        let (Some(([first, _], _)), Some(([last, _], _))) = (found.first(), found.last()) else {
            return held;
        };
        let begin = self.texts.partition_point(|text| text.tokens.end <= first.start);
        let texts = self.texts[begin..].iter().take_while(|text| text.tokens.start < last.end);
        for Text { id, tokens, is_whole } in texts {
            let from = found.partition_point(|([span, _], _)| span.end <= tokens.start);
            let here = || found[from..].iter().take_while(|([span, _], _)| span.start < tokens.end);
            let common =
                |span: &Range<u64>| span.end.min(tokens.end).saturating_sub(span.start.max(tokens.start));
            let [all, in_rows] =
                [0, 1].map(|which| here().map(|(spans, _)| common(&spans[which])).sum::<u64>());
            // less than a row is behind the last row of a shard, so whoever reads a row's length of the text in one
            // stretch and all of it in others meets what is in rows here
            let has_row = here().any(|([_, in_rows], row)| common(in_rows) >= *row);
            let length = tokens.end - tokens.start;
            if *is_whole && all == length && (has_row || in_rows == length) {
                held.whole.push(id);
            } else if has_row {
                held.part.push(id);
            }
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
    use crate::data::Format;

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

    /// What shards hold that are named with the tokens of each, those of them in rows, and whether these are all.
    fn stretches(card: &Card, shards: &[(&str, u64, u64, bool)]) -> [Vec<String>; 3] {
        let info = ShardInfo {
            name: String::new(),
            path: None,
            format: Format::LlmC,
            tokens: 0,
            rows: 0,
            holes: 0,
            range: None,
            digest: blake3::hash(b""),
        };
        let stretch = |&(name, tokens, in_rows, is_whole): &(&str, u64, u64, bool)| {
            (name.to_owned(), Stretch { info: &info, tokens, in_rows, row: 2, is_first: true, is_whole })
        };
        let origin = Origin::of(card, |_| true);
        let Held { whole, part, one_of } = origin.held(&shards.iter().map(stretch).collect());
        [whole, part, one_of].map(|texts| texts.into_iter().map(str::to_owned).collect())
    }

    /// What all of these shards hold.
    fn of(card: &Card, names: &[&str]) -> [Vec<String>; 3] {
        let tokens = |name: &str| if ["t4", "v1"].contains(&name) { 5 } else { 10 };
        let all = names.iter().map(|name| (*name, tokens(name), tokens(name), true));
        stretches(card, &Vec::from_iter(all))
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
    fn what_is_in_no_row_and_what_is_cut_off_is_not_held() {
        let mut card = card([Some(28), Some(22)]);
        // the last tokens of a shard are behind its last row, and what is in the place of one is no shard
        assert_eq!(stretches(&card, &[("t3", 10, 9, true)]), texts([&[], &["a"], &[]]));
        assert_eq!(stretches(&card, &[("t3", 10, 10, true)]), texts([&[], &["a", "b"], &[]]));
        assert_eq!(stretches(&card, &[("t3", 10, 0, true)]), texts([&[], &[], &[]]));
        assert_eq!(stretches(&card, &[("t3", 9, 9, true)]), texts([&[], &[], &[]]));
        assert_eq!(stretches(&card, &[("t3", 9, 9, false)]), texts([&[], &["a"], &[]]));
        let cut = [("t1", 10, 9, true), ("t2", 10, 9, true), ("t3", 9, 9, false)];
        assert_eq!(stretches(&card, &cut), texts([&["a"], &[], &[]]));
        card.sources[0].tokens = None;
        assert_eq!(stretches(&card, &cut), texts([&[], &[], &["a", "b"]]));
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
        let all = ["t1", "t2", "t3", "t4", "v0", "v1"];
        for mut card in
            [card([Some(30), None]), card([Some(30), Some(19)]), card([None; 2]), shuffled, damaged]
        {
            assert_eq!(of(&card, &["t1"]), texts([&[], &[], &["a", "b"]]));
            assert_eq!(of(&card, &all[..4]), texts([&[], &[], &["a", "b"]]));
            assert_eq!(of(&card, &all), texts([&["a", "b"], &[], &[]]));
            card.sources.pop();
            assert_eq!(of(&card, &["t1"]), texts([&[], &["a"], &[]]));
        }
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
