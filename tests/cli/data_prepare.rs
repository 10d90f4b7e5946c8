//! `runner data prepare`: from text to shards, whatever the files are, however often it is killed.

use crate::support;

use runner::data::Tokenizer;
use serde_json::Value;
use std::collections::BTreeMap;
use std::fs;
use std::io::Write;
use std::path::Path;
use support::{Ended, Lab, ended};

/// Documents of different lengths, an empty one among them.
pub(crate) fn documents(count: usize) -> Vec<String> {
    let text = |n: usize| format!("Document {n}: {}é漢字 don't\n\n", "some words, ".repeat(n * 7 % 23));
    (0..count).map(|n| if n == 5 { String::new() } else { text(n) }).collect()
}

pub(crate) fn lines(documents: &[String]) -> String {
    let line = |text: &String| format!("{}\n", serde_json::json!({ "id": 7, "text": text, "more": [1, {}] }));
    documents.iter().map(line).collect()
}

/// The tokens of documents, each behind a separator.
fn prepended(documents: &[String]) -> Vec<u16> {
    let tokens = |text: &String| {
        let tokens = Tokenizer::gpt2().encode_ordinary(text).into_iter().map(|token| token as u16);
        [50256].into_iter().chain(tokens).collect::<Vec<_>>()
    };
    documents.iter().flat_map(tokens).collect()
}

fn shard(path: &Path) -> Vec<u16> {
    let bytes = fs::read(path).expect("a shard");
    let words: Vec<i32> =
        bytes[..12].as_chunks::<4>().0.iter().map(|word| i32::from_le_bytes(*word)).collect();
    let tokens: Vec<u16> =
        bytes[1024..].as_chunks::<2>().0.iter().map(|token| u16::from_le_bytes(*token)).collect();
    assert_eq!(words, [20240520, 1, tokens.len() as i32], "{}", path.display());
    tokens
}

fn card(lab: &Lab, out: &str) -> Value {
    serde_json::from_slice(&fs::read(lab.path(out).join("dataset.json")).expect("a card")).expect("JSON")
}

/// The tokens of the shards that the card lists under `part`.
fn part(lab: &Lab, out: &str, part: &str) -> Vec<u16> {
    let card = card(lab, out);
    let files = card[part]["files"].as_array().expect("a list");
    let tokens: Vec<u16> =
        files.iter().flat_map(|name| shard(&lab.path(out).join(name.as_str().expect("a name")))).collect();
    assert_eq!(card[part]["tokens"], tokens.len());
    tokens
}

/// Everything in a directory, by name.
pub(crate) fn contents(lab: &Lab, dir: &str) -> BTreeMap<String, Vec<u8>> {
    let Ok(entries) = fs::read_dir(lab.path(dir)) else { return BTreeMap::new() };
    let entry = |entry: std::io::Result<fs::DirEntry>| {
        let path = entry.expect("an entry").path();
        (
            path.file_name().expect("a name").to_string_lossy().into_owned(),
            fs::read(&path).unwrap_or_default(),
        )
    };
    entries.map(entry).collect()
}

pub(crate) fn args<'a>(source: &'a str, out: &'a str, more: &[&'a str]) -> Vec<&'a str> {
    [&["data", "prepare", source, "--out", out], more].concat()
}

pub(crate) fn prepare(lab: &Lab, source: &str, out: &str, more: &[&str]) -> Ended {
    let ended = lab.run(args(source, out, more));
    ended.expect(0);
    assert_eq!(ended.stdout, format!("{out}\n"));
    ended
}

#[test]
fn lines_become_shards_with_a_card() {
    let lab = Lab::new();
    let documents = documents(60);
    lab.write("a.jsonl", lines(&documents));
    let done =
        prepare(&lab, "a.jsonl", "out", &["--shard-tokens", "1000", "--val-first-shard", "--threads", "1"]);
    done.says(&["60 documents, ", " of text from 1 file, gpt2 (50257 ids)", "val: 1,000 tokens in 1 shard"]);
    let tokens = prepended(&documents);
    assert!(tokens.len() > 2500 && !tokens.len().is_multiple_of(1000), "{}", tokens.len());
    assert_eq!([part(&lab, "out", "val"), part(&lab, "out", "train")].concat(), tokens);
    let names: Vec<String> = contents(&lab, "out").into_keys().collect();
    assert!(names.len() >= 4 && names[0] == "dataset.json" && names[1] == "train-000001.bin", "{names:?}");
    assert_eq!(names.last().map(String::as_str), Some("val-000000.bin"));
    let card = card(&lab, "out");
    assert_eq!(
        (&card["tokenizer"], &card["vocab_size"], &card["documents"]),
        (&"gpt2".into(), &50257.into(), &60.into())
    );
    assert_eq!(card["bytes"], documents.iter().map(String::len).sum::<usize>());
    assert_eq!(card["sources"][0]["path"], "a.jsonl");
    let digest = blake3::hash(lines(&documents).as_bytes()).to_hex().to_string();
    assert_eq!(
        (&card["sources"][0]["blake3"], &card["sources"][0]["documents"]),
        (&digest.into(), &60.into())
    );
    let mut counts = BTreeMap::new();
    tokens.iter().for_each(|token| *counts.entry(token).or_insert(0.0) += 1.0 / tokens.len() as f64);
    let entropy: f64 = counts.values().map(|p: &f64| -p * p.ln()).sum();
    assert!((card["unigram_entropy"].as_f64().expect("a number") - entropy).abs() < 1e-9);
    // threads change no byte, and a second start none at all
    let before = contents(&lab, "out");
    for threads in ["2", "5"] {
        prepare(
            &lab,
            "a.jsonl",
            threads,
            &["--shard-tokens", "1000", "--val-first-shard", "--threads", threads],
        );
        assert_eq!(contents(&lab, threads), before);
    }
    let again = prepare(&lab, "a.jsonl", "out", &["--shard-tokens", "1000", "--val-first-shard"]);
    again.says(&["was prepared before: nothing to do"]);
    assert_eq!(contents(&lab, "out"), before);
}

#[test]
fn files_of_all_kinds_in_a_directory_are_one_text() {
    let lab = Lab::new();
    let documents = documents(30);
    let gzip = |bytes: &[u8]| {
        let mut packed = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
        packed.write_all(bytes).and_then(|()| packed.finish()).expect("packed")
    };
    lab.write("text/a.jsonl.gz", gzip(lines(&documents[..10]).as_bytes()));
    lab.write("text/b/deep.txt", &documents[10]);
    lab.write("text/c.txt.gz", gzip(documents[11].as_bytes()));
    let packed = ruzstd::encoding::compress_to_vec(
        lines(&documents[12..]).as_bytes(),
        ruzstd::encoding::CompressionLevel::Fastest,
    );
    lab.write("text/d.jsonl.zst", packed);
    lab.write("text/notes.pdf", "no text");
    prepare(&lab, "text", "out", &[]);
    assert_eq!(part(&lab, "out", "train"), prepended(&documents));
    // a glob, another field, the separator behind
    let field = lines(&documents).replace("\"text\"", "\"body\"");
    lab.write("b-1.jsonl", field);
    prepare(&lab, "b-*.jsonl", "behind", &["--field", "body", "--separator", "append"]);
    let mut tokens = prepended(&documents);
    tokens.rotate_left(1);
    assert_eq!(part(&lab, "behind", "train"), tokens);
    // one file that is split
    lab.write("all.txt", documents[10..].join("<|end|>\n"));
    prepare(&lab, "all.txt", "split", &["--split-on", "<|end|>\\n", "--separator", "none"]);
    assert_eq!(
        part(&lab, "split", "train"),
        Tokenizer::gpt2()
            .encode_ordinary(&documents[10])
            .into_iter()
            .chain(documents[11..].iter().flat_map(|text| Tokenizer::gpt2().encode_ordinary(text)))
            .map(|token| token as u16)
            .collect::<Vec<_>>()
    );
    // a table as pyarrow writes it
    let table = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/golden/texts/zstd.parquet");
    prepare(&lab, table, "table", &[]);
    assert_eq!(card(&lab, "table")["documents"], 500);
    let tokens = part(&lab, "table", "train");
    let text: Vec<u32> = tokens.iter().map(|token| u32::from(*token)).collect();
    let text = Tokenizer::gpt2().decode(&text);
    assert!(
        text.starts_with("<|endoftext|>Document 0, with a few words.\n<|endoftext|>the same text"),
        "{text:.80}"
    );
    assert_eq!(text.matches("<|endoftext|>").count(), 500);
}

#[test]
fn a_file_that_is_named_twice_is_told_of() {
    let lab = Lab::new();
    lab.write("texts/a.txt", "some words of a text");
    lab.write("texts/b.txt", "other words of another text");
    let says = "have the same contents";
    assert!(!prepare(&lab, "texts/*.txt", "once", &["--tokenizer", "bytes"]).stderr.contains(says));
    let ended = prepare(&lab, "texts/a.txt", "twice", &["texts/*.txt", "--tokenizer", "bytes"]);
    ended.says(&["warning: texts/a.txt and another source have the same contents"]);
}

#[test]
fn validation_data_are_set_aside_as_asked() {
    let lab = Lab::new();
    let documents = documents(40);
    lab.write("a.jsonl", lines(&documents));
    let tokens = prepended(&documents);
    prepare(&lab, "a.jsonl", "tokens", &["--val-tokens", "700", "--shard-tokens", "500"]);
    assert_eq!(part(&lab, "tokens", "val"), tokens[..700]);
    assert_eq!(part(&lab, "tokens", "train"), tokens[700..]);
    prepare(&lab, "a.jsonl", "fraction", &["--val-fraction", "0.1", "--shard-tokens", "500"]);
    let cut = tokens.len() - tokens.len() / 10;
    assert_eq!(part(&lab, "fraction", "train"), tokens[..cut]);
    assert_eq!(part(&lab, "fraction", "val"), tokens[cut..]);
    prepare(&lab, "a.jsonl", "limit", &["--limit-tokens", "321"]);
    assert_eq!(part(&lab, "limit", "train"), tokens[..321]);
}

#[test]
fn a_seed_draws_the_order_of_the_documents() {
    let lab = Lab::new();
    let documents = documents(50);
    lab.write("a.jsonl", lines(&documents));
    let shuffled = |out: &str, more: &[&str]| -> Vec<String> {
        prepare(&lab, "a.jsonl", out, more);
        let tokens: Vec<u32> = part(&lab, out, "train").into_iter().map(u32::from).collect();
        let text = Tokenizer::gpt2().decode(&tokens);
        text.split("<|endoftext|>").skip(1).map(str::to_owned).collect()
    };
    let one = shuffled("one", &["--shuffle-seed", "1", "--threads", "3"]);
    assert_eq!(shuffled("again", &["--shuffle-seed", "1", "--shard-tokens", "300"]), one);
    let two = shuffled("two", &["--shuffle-seed", "2"]);
    assert!(one != two && one != documents && two != documents);
    let sorted = |mut documents: Vec<String>| {
        documents.sort();
        documents
    };
    assert_eq!((sorted(one), sorted(two)), (sorted(documents.clone()), sorted(documents)));
}

#[test]
fn killed_anywhere_it_goes_on_and_ends_with_the_same_bytes() {
    let lab = Lab::new();
    let documents = documents(40);
    lab.write("text/a.jsonl", lines(&documents[..25]));
    lab.write("text/b.jsonl", lines(&documents[25..]));
    for (name, more) in [
        ("plain", &["--shard-tokens", "400", "--val-tokens", "100"][..]),
        ("drawn", &["--shard-tokens", "400", "--val-fraction", "0.2", "--shuffle-seed", "4"]),
    ] {
        prepare(&lab, "text", name, more);
        let expected = contents(&lab, name);
        let mut reached = 0;
        for moment in [
            "before_shard",
            "after_shard",
            "before_run",
            "before_state",
            "before_name",
            "after_state",
            "before_card",
            "after_card",
        ] {
            for visit in [1, 2, 4] {
                let out = format!("{name}-{moment}-{visit}");
                let mut command = lab.command(args("text", &out, more));
                command.env("RUNNER_FAULT", format!("prepare.{moment}:{visit}"));
                let killed = ended(command).code.is_none();
                reached += usize::from(killed);
                // the names of unfinished files, as a kill within a write leaves them, that of an earlier version too;
                // the card is the last to be written
                if killed && moment != "after_card" {
                    lab.write(&format!("{out}/.tmp-train-000002.bin-77-1"), "half");
                    lab.write(&format!("{out}/.prepare/.tmp-x"), "half");
                }
                let more = [more, &["--threads", "3"]].concat();
                prepare(&lab, "text", &out, &more);
                assert_eq!(contents(&lab, &out), expected, "{out}");
            }
        }
        assert!(reached > 12, "{reached}");
    }
}

#[test]
fn a_full_disk_leaves_whole_shards_to_go_on_from() {
    let lab = Lab::new();
    lab.write("a.jsonl", lines(&documents(40)));
    let more = ["--shard-tokens", "500"];
    prepare(&lab, "a.jsonl", "expected", &more);
    let full = |out: &str, fault: &str| {
        let mut command = lab.command(args("a.jsonl", out, &more));
        command.env("RUNNER_FAULT", format!("error:prepare.{fault}"));
        let ended = ended(command);
        ended
            .expect(1)
            .says(&["no space left on device", "check its directory's permissions and the free space"]);
        ended
    };
    full("first", "before_shard:1");
    assert!(!lab.path("first").exists(), "nothing was complete");
    let later = full("later", "before_shard:3");
    later.says(&["2 files complete so far are kept, and the same command goes on from there"]);
    let names: Vec<String> = contents(&lab, "later").into_keys().collect();
    assert_eq!(names, [".prepare", "train-000001.bin", "train-000002.bin"]);
    prepare(&lab, "a.jsonl", "later", &more);
    assert_eq!(contents(&lab, "later"), contents(&lab, "expected"));
}

#[test]
fn two_processes_do_not_prepare_into_one_directory() {
    let lab = Lab::new();
    lab.write("a.jsonl", lines(&documents(40)));
    let (live, gate) = lab.held(lab.command(args("a.jsonl", "out", &[])), "prepare.before_card");
    gate.reached();
    lab.run(args("a.jsonl", "out", &[])).expect(3).says(&["`out` is being prepared by a live process"]);
    gate.open();
    live.end().expect(0);
}

/// The figure that is printed is held on a source of twenty times its size, which is packed to save the disk's time.
#[cfg(target_os = "linux")]
#[test]
fn memory_is_bounded_by_the_figure_that_is_printed() {
    let lab = Lab::new();
    let line = format!("{{\"text\": \"{}\"}}\n", " international".repeat(2000));
    let mut packed = flate2::write::GzEncoder::new(
        fs::File::create(lab.path("big.jsonl.gz")).expect("a file"),
        flate2::Compression::fast(),
    );
    let figure = 64 << 20;
    for _ in 0..20 * figure / line.len() + 1 {
        packed.write_all(line.as_bytes()).expect("packed");
    }
    packed.finish().expect("packed");
    let (mut live, gate) =
        lab.held(lab.command(args("big.jsonl.gz", "out", &["--threads", "1"])), "prepare.before_card");
    gate.reached();
    let status = fs::read_to_string(format!("/proc/{}/status", live.id())).expect("a live process");
    let peak = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).expect("a peak");
    let peak: f64 = peak.trim().trim_end_matches(" kB").trim().parse::<f64>().expect("a number") / 1024.0;
    gate.open();
    let done = live.end();
    done.expect(0);
    let (_, said) = done.stderr.split_once("in at most ").expect("a figure");
    let (said, _) = said.split_once(" MiB of memory").expect("in MiB");
    let said: f64 = said.parse().expect("a number");
    assert!(said <= 64.0, "the source is not twenty times {said} MiB");
    assert!(peak <= said, "{peak:.1} MiB of {said} MiB");
}

#[test]
fn directories_that_lie_too_deep_are_named_at_once() {
    let lab = Lab::new();
    let deep = |levels: usize| format!("deep{}", "/d".repeat(levels));
    fs::create_dir_all(lab.path(deep(101))).expect("directories");
    let prepare = || lab.run(["data", "prepare", "deep", "--out", "shards", "--tokenizer", "bytes"]);
    fs::write(lab.path(deep(100)).join("a.txt"), "some words ".repeat(1000)).expect("a text");
    let refused = prepare();
    assert_ne!(refused.code, Some(0));
    refused.says(&["more than 100 directories deep", "/d/d"]);
    fs::remove_dir(lab.path(deep(101))).expect("it is empty");
    prepare().expect(0);
}
