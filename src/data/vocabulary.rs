//! What the tokens of a data set stand for: the tokenizer that a recipe asks for, or the one that lies beside the
//! shards, in a `dataset.json` of `runner data prepare` or in nanoGPT's `meta.pkl`.

use super::card::{CARD, Card};
use super::format::{Format, recognize};
use super::mapping::{map, map_found};
use super::source::{Source, expand, files, files_of_each, is_name};
use super::tokenizer::{Characters, Tokenizer, TokenizerKind};
use super::{DataError, megatron, unfinished};
use crate::{regular, weights};
use glob::Pattern;
use std::collections::{BTreeSet, HashMap, HashSet};
use std::path::{Path, PathBuf};

/// What a file beside the data says about their tokens.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Stated {
    /// The file.
    pub file: PathBuf,
    /// What it describes.
    pub tokenizer: Tokenizer,
}

/// What lies beside the files that `specs` names; `None` where nothing does. Specs that lead to nothing are left out:
/// opening the data tells of them.
///
/// # Errors
/// [`DataError::Vocabulary`] for a file that cannot be read as what it is, [`DataError::Vocabularies`] where two of
/// them differ.
pub fn stated(specs: &[String]) -> Result<Option<Stated>, DataError> {
    let mut beside = Beside::default();
    let mut found: Option<Stated> = None;
    for path in files(specs) {
        let Some(stated) = beside.of(&path)? else { continue };
        match &found {
            Some(first) if first.tokenizer != stated.tokenizer => {
                return Err(DataError::Vocabularies { first: first.file.clone(), second: stated.file });
            }
            Some(_) => {}
            None => found = Some(stated),
        }
    }
    Ok(found)
}

/// How files of tokens are not those of the card beside them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Discrepancy {
    /// The card does not list them.
    Unlisted,
    /// Another user has put the card, `meta.pkl` or index there, to whom the first file does not belong.
    NotBelieved,
    /// The card lists them with other tokens: they were replaced.
    Replaced,
    /// The card lists them, a pattern of the data would match them, and they are not there.
    Gone,
}

/// Files of tokens that are not those of the card, `meta.pkl` or index of Megatron-LM beside them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Discrepant {
    /// The first of them.
    pub first: PathBuf,
    /// How many there are.
    pub files: usize,
    /// The card, `meta.pkl` or index beside the first.
    pub card: PathBuf,
    /// How they are not.
    pub how: Discrepancy,
}

/// What of the files that `specs` name is not as finished sets beside them say: those that are not listed, that were
/// replaced or that another user's list is about, and those that are gone, as where a copy broke off. What cannot be
/// read is passed over.
pub fn discrepancies(specs: &[String]) -> impl Iterator<Item = Discrepant> {
    let mut cards: HashMap<PathBuf, Option<Card>> = HashMap::new();
    let (mut beside, mut gone) = (None, None);
    let add = |found: &mut Option<Discrepant>, first: PathBuf, card: PathBuf, how: Discrepancy| {
        found.get_or_insert(Discrepant { first, files: 0, card, how }).files += 1;
    };
    let mut lost: HashSet<PathBuf> = HashSet::new();
    for (spec, files) in files_of_each(specs) {
        // what a pattern would match beside its matches
        let pattern = Path::new(spec).file_name().filter(|_| !is_name(spec));
        let pattern = pattern.and_then(|name| Pattern::new(name.to_str()?).ok());
        let mut last: Option<PathBuf> = None;
        for path in files {
            let dir = unfinished::dir_of(&path).to_owned();
            let card = dir.join(CARD);
            let read = cards.entry(dir.clone()).or_insert_with(|| Card::read(&dir).ok().flatten()).as_ref();
            let is_other = last.as_ref() != Some(&dir);
            let believed = read.filter(|_| is_other && !regular::is_put_beside(&card, &path));
            if let (Some(pattern), Some(listing)) = (&pattern, believed) {
                let listed = listing.train.files.iter().chain(&listing.val.files);
                let matched = listed.filter(|name| pattern.matches(name)).map(|name| dir.join(name));
                for path in matched.filter(|path| path.symlink_metadata().is_err()) {
                    if lost.insert(path.clone()) {
                        add(&mut gone, path, card.clone(), Discrepancy::Gone);
                    }
                }
            }
            last = Some(dir.clone());
            if path.extension().is_some_and(|extension| extension == "bin")
                && let Some((card, how)) = beside_list(&path, &dir, read)
            {
                add(&mut beside, path, card, how);
            }
        }
    }
    beside.into_iter().chain(gone)
}

/// How a shard is not one of those that the card, `meta.pkl` or index beside it is about, with that file.
fn beside_list(path: &Path, dir: &Path, card: Option<&Card>) -> Option<(PathBuf, Discrepancy)> {
    if let Some(index) = megatron::put_beside(path) {
        return Some((index, Discrepancy::NotBelieved));
    }
    let Some(listing) = card else {
        let list = dir.join(weights::META);
        let is_refused = list.is_file() && regular::is_put_beside(&list, path) && is_bare(path);
        return is_refused.then_some((list, Discrepancy::NotBelieved));
    };
    let card = dir.join(CARD);
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    match regular::is_put_beside(&card, path) {
        true => Some((card, Discrepancy::NotBelieved)),
        false if !listing.lists(&name) => Some((card, Discrepancy::Unlisted)),
        false => listing.is_of_other_tokens(path).then_some((card, Discrepancy::Replaced)),
    }
}

/// The tokenizer of a data set: the one that lies beside its files, else one of the kind that is asked for. The
/// vocabulary of characters is that of all texts and built-in texts in `specs`, in the order of code points.
///
/// # Errors
/// As of [`stated`]; [`DataError::NoText`] where characters are asked for and nothing is text; what keeps a text from
/// being read.
pub fn tokenizer(kind: TokenizerKind, specs: &[String]) -> Result<Tokenizer, DataError> {
    if let Some(stated) = stated(specs)? {
        return Ok(stated.tokenizer);
    }
    match kind {
        TokenizerKind::Gpt2 => Ok(Tokenizer::gpt2().clone()),
        TokenizerKind::Bytes => Ok(Tokenizer::bytes().clone()),
        TokenizerKind::Char => characters(specs).map(Tokenizer::chars),
    }
}

/// What the directories of shards hold, each read once.
#[derive(Default)]
struct Beside {
    cards: HashMap<PathBuf, Option<(Card, Tokenizer)>>,
    lists: HashMap<PathBuf, Option<Tokenizer>>,
}

impl Beside {
    fn of(&mut self, path: &Path) -> Result<Option<Stated>, DataError> {
        let dir = unfinished::dir_of(path);
        let is_believed = !regular::is_put_beside(&dir.join(CARD), path);
        if is_believed && !self.cards.contains_key(dir) {
            let card = Card::read(dir)?.map(|card| {
                let at = |problem| DataError::Vocabulary { path: dir.join(CARD), problem };
                card.tokenizer().map(|tokenizer| (card, tokenizer)).map_err(at)
            });
            self.cards.insert(dir.to_owned(), card.transpose()?);
        }
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        if let Some(Some((card, tokenizer))) = self.cards.get(dir).filter(|_| is_believed)
            && card.lists(&name)
        {
            return Ok(Some(Stated { file: dir.join(CARD), tokenizer: tokenizer.clone() }));
        }
        let list = dir.join(weights::META);
        // nanoGPT's own files have no header
        let is_named = path.extension().is_some_and(|extension| extension.eq_ignore_ascii_case("bin"));
        if !is_named || !list.is_file() || regular::is_put_beside(&list, path) || !is_bare(path) {
            return Ok(None);
        }
        if !self.lists.contains_key(&list) {
            let at = |problem| DataError::Vocabulary { path: list.clone(), problem };
            let characters = weights::characters(&list).map_err(at)?;
            let characters = characters.map(|all| Characters::new(all).map(Tokenizer::chars)).transpose();
            self.lists.insert(list.clone(), characters.map_err(at)?);
        }
        Ok(self.lists[&list].clone().map(|tokenizer| Stated { file: list, tokenizer }))
    }
}

fn is_bare(path: &Path) -> bool {
    let layout = map(path).and_then(|(_, bytes)| recognize(path, &bytes));
    layout.is_ok_and(|layout| layout.is_some_and(|layout| layout.format == Format::Headerless))
}

/// Hands out a text in pieces that are copies: others may write to a map, and what has been checked must not change.
/// Errors: where the text is not UTF-8.
fn each_piece(text: &[u8], add: &mut impl FnMut(&str)) -> Result<(), usize> {
    const PIECE: usize = 1 << 20;
    let (mut held, mut done) = (Vec::new(), 0);
    for piece in text.chunks(PIECE) {
        held.extend_from_slice(piece);
        let is_last = done + held.len() == text.len();
        let whole = match std::str::from_utf8(&held) {
            Ok(whole) => whole.len(),
            // a character that the piece cuts in two
            Err(error) if error.error_len().is_none() && !is_last => error.valid_up_to(),
            Err(error) => return Err(done + error.valid_up_to()),
        };
        add(std::str::from_utf8(&held[..whole]).expect("just checked"));
        held.drain(..whole);
        done += whole;
    }
    Ok(())
}

fn characters(specs: &[String]) -> Result<Characters, DataError> {
    let mut all = BTreeSet::new();
    let mut add = |text: &str| Characters::collect(text, &mut all);
    let mut first = None;
    for source in expand(specs)? {
        match source {
            Source::Builtin(lipsum) => add(&lipsum.text()),
            Source::File(found) => {
                let (file, bytes) = map_found(&found)?;
                let path = found.path;
                unfinished::holes_of_data(&path, &file, bytes.len())?;
                if recognize(&path, &bytes)?.is_none() {
                    each_piece(&bytes, &mut add)
                        .map_err(|offset| DataError::NotUtf8 { path: path.clone(), offset })?;
                }
                first = first.or(Some(path));
            }
        }
    }
    if all.is_empty() {
        return Err(DataError::NoText { path: first.unwrap_or_default() });
    }
    Characters::of(&all).map_err(|problem| DataError::Vocabulary { path: first.unwrap_or_default(), problem })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_of_a_text_cut_no_character() {
        let text = "é日😀x".repeat(300_000);
        let mut copy = String::new();
        each_piece(text.as_bytes(), &mut |piece| copy.push_str(piece)).expect("UTF-8");
        assert!(copy == text);
        let cut = text.len() - 3;
        assert_eq!(each_piece(&text.as_bytes()[..cut], &mut |_| ()), Err(text.len() - 5));
        let mut damaged = text.into_bytes();
        damaged[2_000_001] = 0xff;
        assert!(matches!(each_piece(&damaged, &mut |_| ()), Err(1_999_998..=2_000_001)));
    }

    #[test]
    fn characters_are_those_of_all_texts_in_the_order_of_code_points() {
        let dir = tempfile::tempdir().expect("a directory");
        let spec = |name: &str, text: &str| {
            std::fs::write(dir.path().join(name), text).expect("written");
            dir.path().join(name).display().to_string()
        };
        let specs = [spec("b.txt", "ba\nb"), spec("a.txt", "é!a")];
        let tokenizer = tokenizer(TokenizerKind::Char, &specs).expect("a tokenizer");
        assert_eq!(tokenizer.characters().map(Characters::text), Some("\n!abé".to_owned()));
        assert_eq!(stated(&specs).expect("nothing is wrong"), None);
        let bare = [spec("train.bin", "\x01\x00\x02\x00")];
        let message = super::tokenizer(TokenizerKind::Char, &bare).expect_err("refused").to_string();
        assert!(message.contains("train.bin` is no text"), "{message}");
    }
}
