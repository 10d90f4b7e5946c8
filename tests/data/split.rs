//! `data.val_fraction`: the last tokens of the training data are validation data, and nothing else.

use crate::data_support;

use data_support::{Place, npy};
use proptest::prelude::*;
use runner::data::Dataset;

/// The tokens that rows take as inputs and as targets, row by row.
fn rows(set: &Dataset) -> Vec<(Vec<u32>, Vec<u32>)> {
    let row = |row| {
        let (mut inputs, mut targets) = (vec![0; set.block_size()], vec![0; set.block_size()]);
        set.fill(row, &mut inputs, &mut targets);
        (inputs, targets)
    };
    (0..set.rows()).map(row).collect()
}

/// The rows of a text of these tokens, read from its beginning.
fn rows_of(tokens: &[u32], block_size: usize) -> Vec<(Vec<u32>, Vec<u32>)> {
    let count = tokens.len().saturating_sub(1) / block_size;
    let row = |row: usize| {
        let at = row * block_size;
        (tokens[at..at + block_size].to_vec(), tokens[at + 1..at + 1 + block_size].to_vec())
    };
    (0..count).map(row).collect()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, failure_persistence: None, ..ProptestConfig::default() })]

    /// Shards of tokens that are all different, so that a token says where it stands.
    #[test]
    fn the_parts_are_the_shards_cut_at_one_token(
        lengths in prop::collection::vec(0_u64..400, 1..5),
        fraction in 0.001..0.999_f64,
        block_size in 1_usize..20,
    ) {
        let place = Place::new();
        let mut next = 0_u64;
        let mut texts: Vec<Vec<u32>> = Vec::new();
        let mut specs = Vec::new();
        for (i, length) in lengths.iter().enumerate() {
            let tokens: Vec<u16> = (next..next + length).map(|token| token as u16).collect();
            next += length;
            texts.push(tokens.iter().map(|&token| u32::from(token)).collect());
            specs.push(place.llmc(&format!("{i}.bin"), tokens));
        }
        let specs: Vec<&str> = specs.iter().map(String::as_str).collect();
        let Ok(whole) = place.open(&specs, block_size) else { return Ok(()) };
        let digest = whole.digest();
        let cut = next - (fraction * next as f64) as u64;
        // by hand: each text cut at the token with this number
        let part = |keep: &dyn Fn(u32) -> bool| -> Vec<Vec<u32>> {
            texts.iter().map(|text| text.iter().copied().filter(|&token| keep(token)).collect()).collect()
        };
        let (train, val) = (part(&|token| u64::from(token) < cut), part(&|token| u64::from(token) >= cut));
        let expected = |texts: &[Vec<u32>]| -> Vec<_> {
            texts.iter().flat_map(|text| rows_of(text, block_size)).collect()
        };
        let is_too_short = expected(&train).is_empty() || expected(&val).is_empty();
        let (train_set, val_set) = match whole.split(fraction) {
            Ok(parts) => parts,
            Err(error) => {
                prop_assert!(is_too_short, "{error}");
                prop_assert!(error.to_string().contains("tokens are too few"), "{error}");
                return Ok(());
            }
        };
        prop_assert!(!is_too_short);
        // the rows are those of files that hold the parts
        prop_assert_eq!(rows(&train_set), expected(&train));
        prop_assert_eq!(rows(&val_set), expected(&val));
        // so no token of a validation row is in a training row, as an input or as a target
        let used = |set: &Dataset| rows(set).into_iter().flat_map(|(i, t)| i.into_iter().chain(t));
        prop_assert!(used(&train_set).all(|token| u64::from(token) < cut));
        prop_assert!(used(&val_set).all(|token| u64::from(token) >= cut));
        // and none is lost but the rest of a row at the end of each text
        prop_assert_eq!(train_set.tokens() + val_set.tokens(), next);
        for (set, texts) in [(&train_set, &train), (&val_set, &val)] {
            let inputs = set.rows() * block_size as u64;
            let rest: u64 = texts.iter().map(|text| text.len() as u64).sum::<u64>() - inputs;
            prop_assert!(rest <= texts.len() as u64 * block_size as u64, "{rest}");
            // a message about a row names the token where it begins
            for (row, (inputs, _)) in rows(set).iter().enumerate() {
                let (name, at) = set.locate(row as u64);
                let shard = specs.iter().position(|spec| *spec == name).expect("a shard");
                let first: u64 = lengths[..shard].iter().sum();
                prop_assert_eq!(u64::from(inputs[0]), first + at);
            }
        }
        let digests = [digest, train_set.digest(), val_set.digest()];
        prop_assert!(digests[1] != digests[2] && digests[0] != digests[2]);
    }
}

#[test]
fn every_format_is_cut_alike() {
    let place = Place::new();
    let tokens = || 0..101_u16;
    let bytes: Vec<u8> = tokens().flat_map(u16::to_le_bytes).collect();
    let wide: Vec<u8> = tokens().flat_map(|token| i32::from(token).to_le_bytes()).collect();
    let specs = [
        place.llmc("a.bin", tokens()),
        place.file("b.bin", &bytes),
        place.file("c.npy", npy("<u2", 101, &bytes)),
        place.file("d.npy", npy("<i4", 101, &wide)),
    ];
    for spec in specs {
        let (train, val) = place.open(&[&spec], 4).expect("opened").split(0.25).expect("cut");
        // the last 25 of 101 tokens
        assert_eq!((train.tokens(), val.tokens()), (76, 25), "{spec}");
        assert_eq!((rows(&train)[17].0[0], rows(&val)[0].0.clone()), (68, vec![76, 77, 78, 79]), "{spec}");
        for (part, tokens) in [(&train, 76_f64), (&val, 25.0)] {
            let entropy = part.unigram_entropy();
            assert!((entropy - tokens.ln()).abs() < 1e-12, "{spec}: {entropy}");
        }
        assert_eq!((val.locate(1).1, val.shards().next().expect("one").rows), (80, 6));
    }
    let text = place.file("e.txt", "Lorem ipsum dolor sit amet, ".repeat(40));
    for spec in [&text, "builtin:lipsum:words=300"] {
        let whole = place.open(&[spec], 4).expect("opened");
        let all: Vec<u32> = rows_tokens(&whole);
        let (train, val) = whole.split(0.25).expect("cut");
        assert_eq!(rows_tokens(&train)[..], all[..rows_tokens(&train).len()]);
        assert_eq!(rows(&val)[0].0[0], all[train.tokens() as usize]);
    }
}

fn rows_tokens(set: &Dataset) -> Vec<u32> {
    rows(set).into_iter().flat_map(|(inputs, _)| inputs).collect()
}

#[test]
fn the_cut_is_the_same_for_rows_of_any_length_and_its_digest_too() {
    let place = Place::new();
    let (a, b) = (place.llmc("a.bin", 0..300), place.llmc("b.bin", 300..1000));
    let parts = |block_size, fraction| {
        place.open(&[&a, &b], block_size).expect("opened").split(fraction).expect("cut")
    };
    let (train, val) = parts(8, 0.1);
    for block_size in [1, 7, 64] {
        let other = parts(block_size, 0.1);
        assert_eq!((other.0.digest(), other.1.digest()), (train.digest(), val.digest()));
        assert_eq!((other.0.tokens(), other.1.tokens()), (900, 100));
    }
    let (other, more) = parts(8, 0.2);
    assert_ne!((other.digest(), more.digest()), (train.digest(), val.digest()));
    // a cut between two shards leaves both whole, as if each had been named by its own key
    let (first, second) = parts(8, 0.7);
    assert!(first.are_whole().chain(second.are_whole()).all(|(_, is_whole)| is_whole));
    assert_eq!(first.digest(), place.open(&[&a], 8).expect("opened").digest());
    assert_eq!(second.digest(), place.open(&[&b], 8).expect("opened").digest());
}
