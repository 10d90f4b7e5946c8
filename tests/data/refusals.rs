//! Every fault that data can have, and the message that names it.

use crate::data_support;

use data_support::{Place, npy};
use runner::data::NoProgress;
use std::fs;

fn refusal(place: &Place, specs: &[&str], block_size: usize) -> String {
    place.open(specs, block_size).err().expect("refused").to_string()
}

#[test]
fn tokens_outside_the_vocabulary_are_named_with_their_place() {
    let place = Place::new();
    let spec = place.llmc("a.bin", (0..2000).chain([50304, 50305]));
    let refusal =
        |spec: &str, vocab| place.open_with(&[spec], 4, vocab, &NoProgress).err().map(|e| e.to_string());
    assert_eq!(refusal(&spec, 50306), None);
    assert!(refusal(&spec, 50305).expect("refused").contains("token 50305 at index 2001"));
    let message = refusal(&spec, 50257).expect("refused");
    assert!(
        message
            .starts_with(&format!("`{spec}` has token 50304 at index 2000, but model.vocab_size is 50257"))
    );

    let negative: Vec<u8> = [1i32, 2, -1, 3, 4, 5].iter().flat_map(|t| t.to_le_bytes()).collect();
    let spec = place.file("b.npy", npy("<i4", 6, &negative));
    assert!(refusal(&spec, 50257).expect("refused").contains("token -1 at index 2"));

    let spec = place.file("c.txt", "Hello there");
    assert!(
        refusal(&spec, 256).expect("refused").starts_with(&format!("`{spec}` has token 15496 at index 0"))
    );
}

#[test]
fn data_without_a_row_is_refused_with_a_fitting_block_size() {
    let place = Place::new();
    let (a, b) = (place.llmc("a.bin", 0..5), place.llmc("b.bin", 0..9));
    assert_eq!(
        refusal(&place, &[&b], 9),
        format!(
            "`{b}` has 9 tokens, but a row of block_size 9 needs 10: \
             set model.block_size to 8 or less, or use longer data"
        )
    );
    assert!(place.open(&[&b], 8).is_ok());
    assert!(
        refusal(&place, &[&a, &b], 9).starts_with(&format!("`{b}`, the longest of 2 files, has 9 tokens"))
    );
    let one = place.file("one.txt", "a");
    assert!(
        refusal(&place, &[&one], 4)
            .ends_with("has 1 token, but a row of block_size 4 needs 5: use longer data")
    );
}

#[test]
fn unreadable_files_are_refused() {
    let place = Place::new();
    let missing = place.spec("missing.bin");
    assert!(refusal(&place, &[&missing], 4).starts_with(&format!("`{missing}` does not exist")));
    let directory = place.0.path().display().to_string();
    assert!(
        refusal(&place, &[&directory], 4)
            .contains(&format!("is a directory: name its files, for instance `{directory}/*.bin`"))
    );
    assert!(refusal(&place, &["/dev/null"], 4).contains("`/dev/null` is not a regular file"));
    let empty = place.file("empty.txt", "");
    assert!(refusal(&place, &[&empty], 4).starts_with(&format!("`{empty}` is empty")));
    let latin1 = place.file("latin1.txt", b"caf\xe9 au lait");
    assert!(refusal(&place, &[&latin1], 4).starts_with(&format!("`{latin1}` is not UTF-8 at byte 3")));
    assert!(!place.cache_dir().exists() || place.cached().is_empty(), "a refused text leaves nothing");
    let whole = place.llmc("whole.bin", 0..100);
    let mut cut = fs::read(&whole).expect("read");
    cut.truncate(cut.len() - 2);
    let cut = place.file("cut.bin", cut);
    assert!(
        refusal(&place, &[&cut], 4).contains("declares 100 tokens in its header (200 bytes), but 198 bytes")
    );
}

#[test]
fn a_cache_that_cannot_be_written_is_named() {
    let place = Place::new();
    place.file("cache", "a file where a directory should be");
    let spec = place.file("a.txt", "Hello there, all of you");
    let message = refusal(&place, &[&spec], 4);
    assert!(message.starts_with(&format!("could not write `{}`", place.spec("cache"))), "{message}");
}
