//! Mixtures: which row comes when, and what makes two of them the same.

use crate::data_support;

use data_support::Place;
use runner::data::{DataError, Dataset, NoProgress, OpenOptions, TokenStream};

/// The sources with these weights, with rows of 4 tokens.
fn open(place: &Place, parts: &[(&str, f64)]) -> Result<Dataset, DataError> {
    let parts: Vec<(String, f64)> =
        parts.iter().map(|(name, weight)| ((*name).to_owned(), *weight)).collect();
    let (cache, progress) = (place.cache(), &NoProgress);
    Dataset::open_mixture(
        &parts,
        OpenOptions {
            block_size: 4,
            vocab_size: 50257,
            tokenizer: runner::data::Tokenizer::gpt2(),
            cache: &cache,
            progress,
        },
    )
}

/// The first token of each row of a part of the stream.
fn firsts(set: &Dataset, shuffle: bool, from: u64, rows: usize) -> Vec<u32> {
    let (mut inputs, mut targets) = (vec![0; 4 * rows], vec![0; 4 * rows]);
    TokenStream::new(set, 7, shuffle).fill(from, rows, &mut inputs, &mut targets);
    inputs.chunks(4).map(|row| row[0]).collect()
}

#[test]
fn any_thousand_rows_have_the_proportions_and_each_source_its_own_epochs() {
    let place = Place::new();
    // 200, 30 and 1000 rows, known by their tokens; the second is two files
    let a = place.llmc("a.bin", 0..801);
    place.llmc("b-1.bin", 10_000..10_081);
    place.llmc("b-2.bin", 10_100..10_141);
    let (b, c) = (place.spec("b-*.bin"), place.llmc("c.bin", 20_000..24_001));
    let set = open(&place, &[(&a, 5.0), (&b, 1.0), (&c, 4.0)]).expect("opened");
    assert_eq!(set.rows(), 200 + 30 + 1000);
    let shown: Vec<_> = set.sources().iter().map(|source| (source.name.as_str(), source.share)).collect();
    assert_eq!(shown, [(a.as_str(), 500), (&b, 100), (&c, 400)]);
    for shuffle in [false, true] {
        let read = firsts(&set, shuffle, 0, 10_000);
        let of = |k: u32| move |token: &&u32| **token / 10_000 == k;
        for from in [0, 1, 499, 5000, 9000] {
            let window = &read[from..from + 1000];
            for (k, share) in [(0, 500), (1, 100), (2, 400)] {
                assert_eq!(window.iter().filter(of(k)).count(), share, "source {k} from row {from} on");
            }
        }
        // even a batch of ten has its share
        assert!(read.chunks(10).all(|rows| rows.iter().filter(of(1)).count() == 1));
        for (k, rows) in [(0, 200), (1, 30), (2, 1000)] {
            let own: Vec<u32> = read.iter().filter(of(k)).copied().collect();
            for epoch in own.chunks_exact(rows) {
                let mut sorted = epoch.to_vec();
                sorted.sort_unstable();
                sorted.dedup();
                assert_eq!(sorted.len(), rows, "every row of source {k} once");
                assert_eq!(sorted == epoch, !shuffle, "in the order of the files only if asked for");
            }
        }
        // in batches of any size, from anywhere
        let (mut at, mut size) = (0, 1);
        while at + size < read.len() {
            assert_eq!(firsts(&set, shuffle, at as u64, size), read[at..at + size]);
            (at, size) = (at + size, size * 3 % 37 + 1);
        }
    }
}

#[test]
fn the_digest_depends_on_shares_contents_and_order_and_not_on_names() {
    let place = Place::new();
    let (a, b) = (place.llmc("a.bin", 0..801), place.llmc("b.bin", 1000..1801));
    let digest = |parts: &[(&str, f64)]| open(&place, parts).expect("opened").digest();
    let original = digest(&[(&a, 0.7), (&b, 0.3)]);
    assert_eq!(original, digest(&[(&a, 7.0), (&b, 3.0)]), "weights are ratios");
    assert_eq!(original, digest(&[(&place.llmc("c.bin", 0..801), 0.7), (&b, 0.3)]));
    for other in [[(a.as_str(), 0.6), (b.as_str(), 0.4)], [(&b, 0.3), (&a, 0.7)], [(&a, 0.7), (&a, 0.3)]] {
        assert_ne!(original, digest(&other), "{other:?}");
    }
    // one source is no mixture
    let plain = place.open(&[&a], 4).expect("opened");
    let single = open(&place, &[(&a, 0.2)]).expect("opened");
    assert_eq!((single.digest(), single.sources().len()), (plain.digest(), 0));
    assert_eq!(firsts(&single, true, 0, 300), firsts(&plain, true, 0, 300));
    assert_ne!(plain.digest(), open(&place, &[(&a, 1.0), (&a, 1.0)]).expect("opened").digest());
}

#[test]
fn what_makes_no_mixture_is_refused() {
    let place = Place::new();
    let (a, b) = (place.llmc("a.bin", 0..801), place.llmc("b.bin", 0..3));
    let refused = |parts: &[(&str, f64)]| open(&place, parts).err().expect("refused").to_string();
    assert!(refused(&[(&a, 1.0), (&a, 1e-4)]).contains("comes to none of 1000 rows"));
    assert!(refused(&[(&a, 1.0), (&b, 1.0)]).contains("has 3 tokens"));
    assert!(refused(&[(&a, 1.0), (&place.spec("none-*"), 1.0)]).contains("matches no file"));
    let both = open(&place, &[(&a, 1.0), (&a, 1.0)]).expect("opened");
    assert!(both.split(0.5).err().expect("refused").to_string().contains("no last part"));
}
