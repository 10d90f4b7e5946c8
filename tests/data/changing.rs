//! Texts that somebody changes through a memory map while they are read, which gives them no new date, and puts back.

use crate::data_support;

use data_support::Place;
use memmap2::MmapMut;
use runner::data::prepare::{Hooks, Options, Validation, prepare};
use runner::data::{DataError, Progress, TokenizerKind};
use std::fs::File;
use std::path::Path;
use std::sync::Mutex;
use std::time::Duration;

/// Changes the end of a mapped text when it is about to be read, and puts it back when it has been.
struct Changing {
    text: Mutex<MmapMut>,
    what: &'static str,
}

impl Changing {
    fn new(path: &Path, what: &'static str) -> Self {
        let file = File::options().read(true).write(true).open(path).expect("opened");
        // SAFETY: nothing else in this test writes to the file
        let text = Mutex::new(unsafe { MmapMut::map_mut(&file) }.expect("mapped"));
        let changing = Self { text, what };
        changing.end_with(b"right");
        changing
    }

    fn end_with(&self, word: &[u8; 5]) {
        let mut text = self.text.lock().expect("unpoisoned");
        let from = text.len() - word.len();
        text[from..].copy_from_slice(word);
    }
}

impl Progress for Changing {
    fn start(&self, what: &str, _: u64) {
        if what.starts_with(self.what) {
            self.end_with(b"wrong");
        }
    }

    fn advance(&self, _: u64) {}

    fn finish(&self) {
        self.end_with(b"right");
    }
}

/// A text of some megabytes.
fn text() -> String {
    "so it was and so it is, ".repeat(100_000) + "right"
}

#[test]
fn a_text_that_was_another_one_for_a_moment_is_not_cached_under_its_digest() {
    let place = Place::new();
    let name = place.file("a.txt", text());
    let changing = Changing::new(&place.path("a.txt"), "tokenizing");
    let refused = place.open_with(&[&name], 8, 50257, &changing).err().expect("refused");
    assert!(matches!(refused, DataError::Changed { .. }), "{refused}");
    assert!(place.cached().is_empty(), "{:?}", place.cached());
    let set = place.open(&[&name], 8).expect("as it was");
    assert_eq!(std::fs::read_to_string(&name).expect("read"), text());
    let same = Place::new();
    let copy = same.file("b.txt", text());
    assert_eq!(same.open(&[&copy], 8).expect("opened").unigram_entropy(), set.unigram_entropy());
}

#[test]
fn a_source_that_was_another_one_for_a_moment_is_refused() {
    let place = Place::new();
    for (name, tokenizer) in [("a.txt", TokenizerKind::Gpt2), ("a.txt", TokenizerKind::Char)] {
        let source = place.file(name, text());
        let what = if tokenizer == TokenizerKind::Char { "collecting" } else { "preparing" };
        let changing = Changing::new(&place.path(name), what);
        let options = Options {
            sources: vec![source],
            out: place.path(what),
            tokenizer,
            field: "text".into(),
            split_on: None,
            shard_tokens: 100_000,
            validation: Validation::None,
            separator: None,
            shuffle_seed: None,
            limit_tokens: None,
            threads: 2,
        };
        // the digest is of the text as it is at first
        let progress = &Late { changing: &changing, seen: Mutex::new(false) };
        let refused = prepare(&options, &Hooks { progress, fault: &|_| Ok(()) }).expect_err("refused");
        assert!(refused.to_string().contains("changed while it was read"), "{refused}");
        assert!(!place.path(what).join("dataset.json").exists());
    }
}

/// What is written through a map is dated once, and again only when the system has written it out.
#[test]
fn tokens_that_are_changed_where_the_same_bytes_were_written_before_are_noticed() {
    let place = Place::new();
    let name = place.llmc("a.bin", (0..4000).map(|token| token % 5));
    let set = place.open(&[&name], 8).expect("opened");
    // after which a look at the file tells whether something was done to it
    let settled = || {
        std::thread::sleep(Duration::from_millis(2500));
        set.check().expect("the same bytes");
    };
    settled();
    let path = place.path("a.bin");
    let file = File::options().read(true).write(true).open(&path).expect("opened");
    // SAFETY: nothing else in this test writes to the file
    let mut map = unsafe { MmapMut::map_mut(&file) }.expect("mapped");
    let dated = || file.metadata().and_then(|found| found.modified()).expect("dated");
    let (before, last) = (dated(), map.len() - 1);
    let same = map[last];
    map[last] = std::hint::black_box(same);
    if dated() == before {
        // a file in memory
        return;
    }
    settled();
    map[last] ^= 1;
    assert!(matches!(set.check(), Err(DataError::InUse { .. })));
    map[last] ^= 1;
    set.check().expect("put back");
}

/// Changes the text once the first part of it has been read, which is after its digest was taken.
struct Late<'a> {
    changing: &'a Changing,
    seen: Mutex<bool>,
}

impl Progress for Late<'_> {
    fn start(&self, _: &str, _: u64) {}

    fn advance(&self, _: u64) {
        let mut seen = self.seen.lock().expect("unpoisoned");
        if !std::mem::replace(&mut *seen, true) {
            self.changing.end_with(b"wrong");
        }
    }

    fn finish(&self) {
        self.changing.end_with(b"right");
    }
}
