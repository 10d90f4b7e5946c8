//! All ways of merging, held against the definition.

use super::*;
use proptest::prelude::*;

/// The definition: merge the first of the lowest, again and again.
fn by_definition(bpe: &Bpe, piece: &[u8]) -> Vec<u16> {
    let mut parts = bpe.bytes_of(piece);
    while bpe.merge_once(&mut parts, NONE).is_some() {}
    parts
}

#[test]
fn every_token_is_its_own_encoding() {
    let bpe = Bpe::gpt2();
    let mut longest = 0;
    for id in 0..super::super::END_OF_TEXT as u16 {
        let token = bpe.token(id);
        longest = longest.max(token.len());
        assert_eq!(bpe.find(token), Some(id));
        assert_eq!(bpe.merge(token), [id], "{:?}", String::from_utf8_lossy(token));
        match bpe.parts(id) {
            Some((left, right)) => assert_eq!(bpe.merged(left, right), u32::from(id)),
            None => assert_eq!(token.len(), 1),
        }
    }
    assert!(longest * 8 <= WINDOW, "{longest}");
}

proptest! {
    #[test]
    fn all_ways_of_merging_are_the_definition(piece in "[a-eA-C=\\- é漢]{0,200}") {
        let bpe = Bpe::gpt2();
        let expected = by_definition(bpe, piece.as_bytes());
        prop_assert_eq!(bpe.merge(piece.as_bytes()), expected);
        let short = &piece.as_bytes()[..piece.len().min(SHORT)];
        let mut out = Vec::new();
        bpe.merge_short(short, &mut out);
        prop_assert_eq!(out, by_definition(bpe, short));
    }

    #[test]
    fn windows_are_encoded_like_the_whole(
        unit in "[a-z]{1,9}|[=-]{1,5}| {1,3}|[漢字仮名]{1,4}|[0-9]{1,3}",
        letters in "[a-zé]{0,4000}",
        times in 500usize..3000,
    ) {
        let piece = format!("{}{letters}{}", unit.repeat(times), unit.repeat(times));
        let (bpe, mut out) = (Bpe::gpt2(), Vec::new());
        bpe.encode_long(piece.as_bytes(), &mut out);
        prop_assert_eq!(out, bpe.merge(piece.as_bytes()));
    }
}
