//! Files of text, whatever their names say: any bytes become the tokens that the card counts, or are refused and leave
//! nothing behind. JSON lines become what another parser finds in them.

#![no_main]

mod scratch;

use libfuzzer_sys::fuzz_target;
use runner::data::prepare::{Hooks, Options, Prepared, Validation, prepare};
use runner::data::{NoProgress, TokenizerKind};
use std::fs;

const NAMES: [&str; 7] =
    ["a.txt", "a.jsonl", "a.parquet", "a.txt.gz", "a.jsonl.gz", "a.txt.zst", "a.jsonl.zst"];

fuzz_target!(|data: &[u8]| {
    let Some((&kind, bytes)) = data.split_first() else { return };
    let name = NAMES[usize::from(kind) % NAMES.len()];
    let path = scratch::write(name, bytes);
    let out = scratch::dir().join("out");
    let options = Options {
        sources: vec![path.display().to_string()],
        out: out.clone(),
        tokenizer: TokenizerKind::Bytes,
        field: "text".into(),
        split_on: (kind >= 128).then(|| "\n\n".into()),
        shard_tokens: 100,
        validation: Validation::None,
        separator: None,
        shuffle_seed: (kind % 2 == 1).then_some(1),
        // what is packed may be long
        limit_tokens: Some(1 << 20),
        threads: 1,
    };
    match prepare(&options, &Hooks { progress: &NoProgress, fault: &|_| Ok(()) }) {
        Ok(Prepared::Now(card)) => {
            let shards = card.train.files.iter().map(|name| fs::read(out.join(name)).expect("a shard"));
            let tokens: Vec<u8> =
                shards.flat_map(|shard| shard[1024..].iter().copied().step_by(2).collect::<Vec<_>>()).collect();
            assert_eq!((tokens.len() as u64, card.tokens), (card.tokens, card.train.tokens));
            if name == "a.jsonl" && options.shuffle_seed.is_none() && card.tokens < 1 << 20 {
                let lines = bytes.split(|byte| *byte == b'\n').filter(|line| !line.trim_ascii().is_empty());
                let texts = lines.map(|line| {
                    let line: serde_json::Value = serde_json::from_slice(line).expect("an object");
                    line["text"].as_str().expect("a text").to_owned()
                });
                assert_eq!(tokens, texts.collect::<String>().into_bytes());
            }
            fs::remove_dir_all(&out).expect("removed");
        }
        Ok(Prepared::Before(_)) => panic!("the directory is new"),
        Err(error) => {
            assert!(!error.to_string().is_empty());
            assert!(!out.exists(), "{error}");
        }
    }
});
