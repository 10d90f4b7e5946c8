//! Data sets through the public interface: formats, rows, digests and the text cache.

use crate::data_support;

use data_support::{Place, npy};
use proptest::prelude::*;
use runner::data::{
    DataError, Dataset, Format, NoProgress, Progress, TokenStream, Tokenizer, inspect, write_llmc,
};
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Mutex;

fn bytes(tokens: impl IntoIterator<Item = u16>) -> Vec<u8> {
    tokens.into_iter().flat_map(u16::to_le_bytes).collect()
}

fn row(set: &Dataset, row: u64) -> (Vec<u32>, Vec<u32>) {
    let mut inputs = vec![0; set.block_size()];
    let mut targets = inputs.clone();
    set.fill(row, &mut inputs, &mut targets);
    (inputs, targets)
}

fn all_tokens(set: &Dataset) -> Vec<u32> {
    (0..set.rows()).flat_map(|r| row(set, r).0).collect()
}

#[test]
fn every_format_gives_the_same_rows() {
    let place = Place::new();
    let tokens = || (0..41u16).map(|t| t * 1000);
    let wide: Vec<u8> = tokens().flat_map(|t| i32::from(t).to_le_bytes()).collect();
    let specs = [
        (place.llmc("a.bin", tokens()), Format::LlmC),
        (place.file("b.bin", bytes(tokens())), Format::Headerless),
        (place.file("c.npy", npy("<u2", 41, &bytes(tokens()))), Format::Npy),
        (place.file("d.npy", npy("<i4", 41, &wide)), Format::Npy),
        // a magic number overrides the extension
        (place.file("e.txt", fs::read(place.path("a.bin")).expect("read")), Format::LlmC),
    ];
    for (spec, format) in specs {
        let set = place.open(&[&spec], 8).expect("opened");
        let info = set.shards().next().expect("a shard");
        assert_eq!((info.format, info.tokens, info.rows, info.range), (format, 41, 5, Some((0, 40_000))));
        assert_eq!(set.rows(), 5);
        let (inputs, targets) = row(&set, 4);
        assert_eq!(inputs, (32..40).map(|t| t * 1000).collect::<Vec<_>>(), "{spec}");
        assert_eq!(targets, (33..41).map(|t| t * 1000).collect::<Vec<_>>(), "{spec}");
    }
}

#[test]
fn shards_follow_each_other_and_short_ones_add_nothing() {
    let place = Place::new();
    let specs = [
        place.llmc("0.bin", [99; 3]),
        place.llmc("1.bin", 100..109),
        place.llmc("2.bin", [99; 4]),
        place.llmc("3.bin", 200..216),
        place.llmc("4.bin", []),
    ];
    let specs: Vec<&str> = specs.iter().map(String::as_str).collect();
    let set = place.open(&specs, 4).expect("opened");
    // (9 - 1) / 4 and (16 - 1) / 4
    assert_eq!(set.shards().map(|info| info.rows).collect::<Vec<_>>(), [0, 2, 0, 3, 0]);
    assert_eq!((set.rows(), set.tokens()), (5, 32));
    assert_eq!(row(&set, 1), (vec![104, 105, 106, 107], vec![105, 106, 107, 108]));
    assert_eq!(row(&set, 2), (vec![200, 201, 202, 203], vec![201, 202, 203, 204]));
    assert_eq!(set.locate(1), (specs[1], 4));
    assert_eq!(set.locate(4), (specs[3], 8));
}

#[test]
fn the_stream_reads_every_row_once_per_epoch() {
    let place = Place::new();
    let spec = place.llmc("a.bin", 0..101);
    let set = place.open(&[&spec], 4).expect("opened");
    let (mut inputs, mut targets) = (vec![0; 4 * 60], vec![0; 4 * 60]);

    let in_order = TokenStream::new(&set, 7, false);
    in_order.fill(20, 60, &mut inputs, &mut targets);
    assert_eq!(inputs, (80..320).map(|t| t % 100).collect::<Vec<_>>());
    assert_eq!(targets, (80..320).map(|t| t % 100 + 1).collect::<Vec<_>>());

    let shuffled = TokenStream::new(&set, 7, true);
    shuffled.fill(25, 50, &mut inputs[..200], &mut targets[..200]);
    let (second, third) = inputs[..200].split_at(100);
    assert_ne!(second, third);
    for epoch in [second, third] {
        let mut sorted = epoch.to_vec();
        sorted.sort_unstable();
        assert_eq!(sorted, (0..100).collect::<Vec<_>>());
    }
    // in batches of any size
    let whole = inputs[..200].to_vec();
    for (i, expected) in whole.chunks(20).enumerate() {
        shuffled.fill(25 + 5 * i as u64, 5, &mut inputs[..20], &mut targets[..20]);
        assert_eq!(inputs[..20], *expected);
    }
}

#[test]
fn the_digest_depends_on_contents_and_their_order() {
    let place = Place::new();
    let (a, b) = (place.llmc("a.bin", 0..50), place.llmc("b.bin", 50..100));
    let digest = |specs: &[&str]| place.open(specs, 4).expect("opened").digest();
    let original = digest(&[&a, &b]);
    assert_eq!(original.len(), 64);
    assert_ne!(original, digest(&[&b, &a]));
    assert_ne!(original, digest(&[&a]));

    fs::create_dir(place.path("moved")).expect("a directory");
    fs::rename(&a, place.path("moved/z.bin")).expect("moved");
    assert_eq!(original, digest(&[&place.spec("moved/z.bin"), &b]));

    fs::remove_file(&b).expect("removed");
    let other = place.llmc("b.bin", (50..99).chain([7]));
    assert_ne!(original, digest(&[&place.spec("moved/z.bin"), &other]));
    // a shard that states the digest of other tokens is none
    let mut contents = fs::read(&other).expect("read");
    *contents.last_mut().expect("a byte") ^= 1;
    let damaged = place.open(&[&place.file("b.bin", contents.clone())], 4);
    assert!(matches!(damaged, Err(DataError::Damaged { .. })));
    // and one that states none is what it holds
    contents[12..44].fill(0);
    assert_ne!(original, digest(&[&place.spec("moved/z.bin"), &place.file("b.bin", contents)]));

    // as text, the same bytes are other tokens
    let (tokens, text) = (place.file("c.bin", "abcdefgh ijk"), place.file("c.txt", "abcdefgh ijk"));
    assert_ne!(digest(&[&tokens]), place.open(&[&text], 1).expect("opened").digest());
}

/// A run's identity depends on the digest, so this test repeats its definition.
#[test]
fn the_digest_follows_its_definition() {
    let place = Place::new();
    let (tokens, text) = (bytes(0..50), "Lorem ipsum dolor sit amet");
    let set = place.open(&[&place.file("a.bin", &tokens), &place.file("b.txt", text)], 4).expect("opened");
    let digests = [blake3::hash(&tokens), blake3::hash(text.as_bytes())];
    let parts = [b"toks", &digests[0].as_bytes()[..], b"text", digests[1].as_bytes()];
    assert_eq!(set.digest(), blake3::hash(&parts.concat()).to_hex().as_str());
}

const TEXT: &str =
    "First Citizen:\nBefore we proceed any further, hear me speak.\n\n  All:\tSpeak, speak.\r\n\n\n ";

/// Records the reports.
#[derive(Default)]
struct Log(Mutex<Vec<String>>);

impl Progress for Log {
    fn start(&self, what: &str, total: u64) {
        self.0
            .lock()
            .expect("unpoisoned")
            .push(format!("{} {total}", what.split(' ').next().expect("a word")));
    }

    fn advance(&self, by: u64) {
        self.0.lock().expect("unpoisoned").push(format!("+{by}"));
    }

    fn finish(&self) {
        self.0.lock().expect("unpoisoned").push("done".into());
    }
}

#[test]
fn text_is_encoded_once_and_a_damaged_cache_is_replaced() {
    let place = Place::new();
    let text = TEXT.repeat(50);
    let expected = Tokenizer::gpt2().encode_ordinary(&text);
    let spec = place.file("a.txt", &text);
    let open = |spec: &str| {
        let log = Log::default();
        let set = place.open_with(&[spec], 1, 50257, &log).expect("opened");
        let info = set.shards().next().expect("a shard");
        assert_eq!((info.format, info.name.as_str()), (Format::Text, spec));
        assert_eq!(info.digest, blake3::hash(text.as_bytes()));
        assert_eq!(all_tokens(&set), expected[..expected.len() - 1]);
        log.0.into_inner().expect("unpoisoned")
    };
    let encoding = [format!("tokenizing {}", text.len()), format!("+{}", text.len()), "done".into()];
    let cached: [String; 0] = [];

    assert_eq!(open(&spec), encoding);
    assert_eq!(open(&spec), cached);
    fs::rename(&spec, place.path("b.txt")).expect("renamed");
    let spec = place.spec("b.txt");
    assert_eq!(open(&spec), cached, "a new name changes nothing");

    let shard = place.cached().pop().expect("a cached shard");
    assert_eq!(place.cached().len(), 1, "and nothing temporary is left");
    let good = fs::read(&shard).expect("read");
    let mut flipped = good.clone();
    flipped[2000] ^= 1;
    let stale_length = [&good[..], &[0, 0]].concat();
    let cut = &good[..good.len() - 2];
    for damaged in [&flipped[..], cut, &good[..100], &stale_length, b"", b"garbage"] {
        fs::write(&shard, damaged).expect("written");
        assert_eq!(open(&spec), encoding);
        assert_eq!(fs::read(&shard).expect("read"), good);
    }
    // the cached file is an ordinary shard
    let shard = place.open(&[&shard.display().to_string()], 1).expect("opened");
    assert_eq!(all_tokens(&shard), expected[..expected.len() - 1]);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// Rows from shards of any length equal slices of the tokens.
    #[test]
    fn rows_are_slices(lengths in proptest::collection::vec(0u16..60, 1..6), block_size in 1usize..12) {
        let place = Place::new();
        let specs: Vec<String> =
            lengths.iter().enumerate().map(|(i, &n)| place.llmc(&format!("{i}.bin"), 0..n)).collect();
        let specs: Vec<&str> = specs.iter().map(String::as_str).collect();
        let expected: Vec<(usize, u32)> = lengths
            .iter()
            .enumerate()
            .flat_map(|(i, &n)| {
                let rows = n.saturating_sub(1) as usize / block_size;
                (0..rows).map(move |r| (i, (r * block_size) as u32))
            })
            .collect();
        match place.open(&specs, block_size) {
            Err(error) => {
                let too_short = matches!(error, DataError::TooShort { .. });
                prop_assert!(too_short && expected.is_empty(), "{}", error);
            }
            Ok(set) => {
                prop_assert_eq!(set.rows() as usize, expected.len());
                for (r, &(shard, first)) in expected.iter().enumerate() {
                    prop_assert_eq!(set.locate(r as u64), (specs[shard], u64::from(first)));
                    let next = first + block_size as u32;
                    let expected = ((first..next).collect(), (first + 1..next + 1).collect());
                    prop_assert_eq!(row(&set, r as u64), expected);
                }
            }
        }
    }
}

#[test]
fn built_in_text_has_the_digest_and_rows_of_a_file_with_it() {
    let place = Place::new();
    let built_in = place.open(&["builtin:lipsum:words=3000"], 64).expect("opened");
    let info = built_in.shards().next().expect("a shard");
    assert_eq!((info.name.as_str(), info.format), ("builtin:lipsum:seed=1,words=3000", Format::Builtin));

    let text = Tokenizer::gpt2().decode(&all_tokens(&built_in));
    let whole = runner::data::lipsum::Lipsum { seed: 1, words: 3000 }.text();
    assert!(whole.starts_with(&text) && text.len() > whole.len() * 9 / 10);
    let file = place.open(&[&place.file("l.txt", &whole)], 64).expect("opened");
    assert_eq!(all_tokens(&file), all_tokens(&built_in));
    assert_eq!(file.digest(), built_in.digest());
    assert_ne!(
        place.open(&["builtin:lipsum:seed=2,words=3000"], 64).expect("opened").digest(),
        built_in.digest()
    );
}

#[test]
fn unigram_entropy_is_the_entropy_of_the_token_counts() {
    let place = Place::new();
    let even = place.llmc("even.bin", (0..1024).map(|i| i % 8));
    let constant = place.llmc("constant.bin", [300; 1024]);
    let entropy = |specs: &[&str]| place.open(specs, 8).expect("opened").unigram_entropy();
    assert!((entropy(&[&even]) - 8f64.ln()).abs() < 1e-12);
    assert_eq!(entropy(&[&constant]), 0.0);
    // one id is half of the tokens, eight others are a sixteenth each
    let mixed = 0.5 * 2f64.ln() + 0.5 * 16f64.ln();
    assert!((entropy(&[&even, &constant]) - mixed).abs() < 1e-12);
}

#[test]
fn inspection_shows_the_file() {
    let place = Place::new();
    place.llmc("a.bin", (0..100).rev().chain([60_000]));
    let seen = inspect(&place.path("a.bin"), &place.cache(), &NoProgress).expect("inspected");
    assert_eq!((seen.info.tokens, seen.info.range), (101, Some((0, 60_000))));
    assert_eq!(seen.first, (68..100).rev().collect::<Vec<_>>());
    assert_eq!(seen.info.digest, blake3::hash(&fs::read(place.path("a.bin")).expect("read")));

    place.file("b.txt", "Hello, I'm a language model,");
    let seen = inspect(&place.path("b.txt"), &place.cache(), &NoProgress).expect("inspected");
    assert_eq!(seen.first, [15496, 11, 314, 1101, 257, 3303, 2746, 11]);
}

#[test]
fn written_shards_have_the_header_of_llm_c() {
    let place = Place::new();
    let path = place.path("new/deep/a.bin");
    assert_eq!(write_llmc(&path, [7, 50256, 513]).expect("written"), 3);
    let file = fs::read(&path).expect("read");
    let words: Vec<i32> =
        file[..12].chunks(4).map(|w| i32::from_le_bytes(w.try_into().expect("four bytes"))).collect();
    assert_eq!(words, [20_240_520, 1, 3]);
    assert_eq!(file[1024..], [7, 0, 0x50, 0xc4, 1, 2]);
    assert_eq!(file.len(), 1024 + 6);
    assert_eq!(entries(path.parent().expect("a directory")), 1, "nothing temporary is left");
}

fn entries(directory: &Path) -> usize {
    fs::read_dir(directory).expect("a directory").count()
}

#[test]
fn rows_of_a_file_that_was_changed_are_found_even_if_it_was_put_back() {
    let place = Place::new();
    let spec = place.llmc("a.bin", (0..400).map(|i| i * 3));
    let path = place.path("a.bin");
    let good = std::fs::read(&path).expect("read");
    let write = |at: u64, bytes: &[u8]| {
        let file = std::fs::File::options().write(true).open(&path).expect("open");
        std::os::unix::fs::FileExt::write_all_at(&file, bytes, at).expect("written");
    };
    let at = 1024 + 2 * 40;
    let (mut inputs, mut targets) = ([0; 8], [0; 8]);
    // row 5 begins with token 40
    for (bytes, restored, says) in [
        (7u16, false, Some("its contents are others")),
        (7, true, Some("the row from token 40 on")),
        (60_000, true, Some("token 60000 at index 40 ")),
        (120, true, None),
    ] {
        let set = place.open(&[&spec], 8).expect("opened");
        set.fill(5, &mut inputs, &mut targets);
        set.check().expect("as it was opened");
        write(at, &bytes.to_le_bytes());
        set.fill(5, &mut inputs, &mut targets);
        assert_eq!(inputs[0], if bytes == 60_000 { 0 } else { u32::from(bytes) });
        assert_eq!(set.outside().is_err(), bytes == 60_000);
        if restored {
            write(0, &good);
        }
        let found = set.check().and_then(|()| set.check_contents()).map_err(|error| error.to_string());
        match says {
            Some(says) => assert!(found.as_ref().is_err_and(|error| error.contains(says)), "{found:?}"),
            None => assert_eq!(found, Ok(())),
        }
        write(0, &good);
    }
}

/// Changes a text while it is encoded, and puts it elsewhere.
struct Mover(PathBuf);

impl Progress for Mover {
    fn start(&self, what: &str, _total: u64) {
        if what.starts_with("tokenizing ") {
            // in place, for what is cut off could not be read any more
            let file = fs::File::options().write(true).open(&self.0).expect("open");
            std::os::unix::fs::FileExt::write_all_at(&file, b"other words", 20).expect("written");
            fs::rename(&self.0, self.0.with_extension("moved")).expect("renamed");
        }
    }

    fn advance(&self, _by: u64) {}

    fn finish(&self) {}
}

#[test]
fn tokens_of_a_text_that_changed_and_went_while_it_was_encoded_are_not_kept() {
    let place = Place::new();
    let text = TEXT.repeat(50);
    let spec = place.file("a.txt", &text);
    let failed = place.open_with(&[&spec], 1, 50257, &Mover(place.path("a.txt"))).err().expect("refused");
    assert!(failed.to_string().contains(&spec), "{failed}");
    assert!(place.cached().is_empty(), "{:?}", place.cached());
    place.file("a.txt", &text);
    let expected = Tokenizer::gpt2().encode_ordinary(&text);
    assert_eq!(all_tokens(&place.open(&[&spec], 1).expect("opened")), expected[..expected.len() - 1]);
}
