//! Recipes with something wrong in them, by chance.

use proptest::prelude::*;
use runner::recipe::keys::KEYS;

/// One change to a recipe's bytes.
#[derive(Debug, Clone)]
pub(crate) enum Mutation {
    Replace(prop::sample::Index, u8),
    Insert(prop::sample::Index, Vec<u8>),
    Delete(prop::sample::Index, u8),
    Copy(prop::sample::Index, prop::sample::Index, u8),
    Truncate(prop::sample::Index),
}

/// Any change; those that insert know the language.
pub(crate) fn mutation() -> impl Strategy<Value = Mutation> {
    let index = any::<prop::sample::Index>;
    let key = prop::sample::select(KEYS.iter().map(|key| key.path).collect::<Vec<_>>());
    let value = prop::sample::select(vec![
        "1",
        "-1",
        "0",
        "1e999",
        "nan",
        "\"\"",
        "\"a\"",
        "[]",
        "[1]",
        "{}",
        "{a=1}",
        "true",
        "1979-05-27",
        "99999999999999999999",
        "[",
        "\"",
        "'''",
        "\"\\u0000\"",
        "[[",
        "9223372036854775807",
        "\"cuda:1\"",
        "\"gpt3-xl\"",
        "\"wsd\"",
        "0x7f",
    ]);
    let line = (key, value).prop_map(|(key, value)| format!("\n{key} = {value}\n").into_bytes());
    let piece = prop::sample::select(vec![
        "[model]\n",
        "\n[",
        "]]",
        "=",
        ".",
        "\"",
        "'",
        "#",
        "é",
        "\r\n",
        "extends = \"recipe.toml\"\n",
    ]);
    prop_oneof![
        (index(), any::<u8>()).prop_map(|(at, byte)| Mutation::Replace(at, byte)),
        (index(), line).prop_map(|(at, line)| Mutation::Insert(at, line)),
        (index(), piece).prop_map(|(at, piece)| Mutation::Insert(at, piece.as_bytes().to_vec())),
        (index(), any::<u8>()).prop_map(|(at, length)| Mutation::Delete(at, length)),
        (index(), index(), any::<u8>()).prop_map(|(from, to, length)| Mutation::Copy(from, to, length)),
        index().prop_map(Mutation::Truncate),
    ]
}

fn mutate(bytes: &mut Vec<u8>, mutation: Mutation) {
    let at = |index: prop::sample::Index, bytes: &[u8]| index.index(bytes.len() + 1);
    match mutation {
        Mutation::Replace(index, byte) => {
            let at = at(index, bytes);
            if let Some(place) = bytes.get_mut(at) {
                *place = byte;
            }
        }
        Mutation::Insert(index, piece) => {
            let at = at(index, bytes);
            bytes.splice(at..at, piece);
        }
        Mutation::Delete(index, length) => {
            let at = at(index, bytes);
            bytes.drain(at..(at + usize::from(length)).min(bytes.len()));
        }
        Mutation::Copy(from, to, length) => {
            let from = at(from, bytes);
            let piece = bytes[from..(from + usize::from(length)).min(bytes.len())].to_vec();
            let to = at(to, bytes);
            bytes.splice(to..to, piece);
        }
        Mutation::Truncate(index) => bytes.truncate(at(index, bytes)),
    }
}

/// `text` after some changes.
pub(crate) fn mutated(text: &str, mutations: Vec<Mutation>) -> Vec<u8> {
    let mut bytes = text.as_bytes().to_vec();
    mutations.into_iter().for_each(|mutation| mutate(&mut bytes, mutation));
    bytes
}
