//! What `runner data prepare` refuses, and that it leaves nothing behind: wrong input, and directories of something
//! else.

use super::data_prepare::{args, contents, documents, lines, prepare};
use crate::support;

use runner::regular::has_hole_before;
use std::fs;
use std::io::Write;
use support::{Lab, ended, tiny};

/// A refusal, which leaves nothing behind.
fn refused(lab: &Lab, source: &str, more: &[&str], parts: &[&str]) {
    let ended = lab.run(args(source, "out", more));
    ended.expect(2).says(parts);
    assert_eq!(ended.stdout, "");
    assert!(!lab.path("out").exists(), "{source} {more:?}: {:?}", contents(lab, "out").keys());
}

#[test]
fn wrong_input_is_refused_and_nothing_is_left() {
    let lab = Lab::new();
    let fine = lines(&documents(3));
    lab.write("fine.jsonl", &fine);
    refused(&lab, "none.jsonl", &[], &["`none.jsonl` does not exist"]);
    refused(&lab, "no-*.jsonl", &[], &["`no-*.jsonl` matches no file"]);
    refused(
        &lab,
        "fine.jsonl",
        &["--field", "body"],
        &["fine.jsonl`, line 1: it has no field `body`: choose one of id, text, more"],
    );
    refused(&lab, "fine.jsonl", &["--field", "id"], &["line 1: its field `id` is a number, not a text"]);
    lab.write("broken.jsonl", format!("{fine}{{\"text\": \"cut"));
    refused(&lab, "broken.jsonl", &[], &["broken.jsonl`, line 4: it is no JSON object"]);
    lab.write("latin.jsonl", [fine.as_bytes(), b"{\"text\": \"\xe9\"}"].concat());
    refused(&lab, "latin.jsonl", &[], &["latin.jsonl`, line 4: it is not UTF-8 at byte 10"]);
    lab.write("latin.txt", b"caf\xe9");
    refused(&lab, "latin.txt", &[], &["latin.txt", "UTF-8", "3"]);
    lab.write("empty.txt", "");
    refused(&lab, "empty.txt", &[], &["`empty.txt` is empty: it has no text to prepare"]);
    lab.write("blank.jsonl", "\n\n");
    refused(&lab, "blank.jsonl", &[], &["there is no text in 1 file"]);
    refused(&lab, "blank.jsonl", &["--tokenizer", "char"], &["there is no text in 1 file"]);
    lab.write("a.pdf", "x");
    refused(&lab, "a.pdf", &[], &["`a.pdf` is not known to be text"]);
    fs::create_dir(lab.path("void")).expect("a directory");
    refused(&lab, "void", &[], &["`void` has no file below it"]);
    lab.write("cut.txt.gz", [0x1f, 0x8b, 8, 0, 0, 0]);
    refused(&lab, "cut.txt.gz", &[], &["cut.txt.gz`, its compressed contents: it cannot be unpacked"]);
    let table =
        fs::read(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/golden/texts/gzip.parquet")).expect("a table");
    let mut broken = table.clone();
    broken[1200] ^= 1;
    lab.write("broken.parquet", broken);
    refused(
        &lab,
        "broken.parquet",
        &[],
        &["broken.parquet`, row ", "a page is damaged: fetch the file again"],
    );
    lab.write("fine.parquet", &table);
    let field = |field| ["--field", field];
    refused(
        &lab,
        "fine.parquet",
        &field("body"),
        &["fine.parquet`, its schema: it has no field `body`", "id, tags, text"],
    );
    for other in ["id", "tags"] {
        let problem = format!("fine.parquet`, its schema: its column `{other}` does not hold texts");
        refused(&lab, "fine.parquet", &field(other), &[&problem, "choose another with --field"]);
    }
    lab.write("cut.parquet", &table[..2000]);
    refused(&lab, "cut.parquet", &[], &["cut.parquet`, its footer: it is not there"]);
    refused(
        &lab,
        "fine.jsonl",
        &["--val-tokens", "100000"],
        &["all ", " tokens of the text would be for validation"],
    );
    let one = ["--tokenizer", "bytes", "--limit-tokens", "11", "--val-fraction", "0.05"];
    refused(&lab, "fine.jsonl", &one, &["--val-fraction 0.05 of 11 tokens is not one token for validation"]);
    refused(&lab, "fine.jsonl", &["--val-fraction", "1"], &["--val-fraction: a number between 0 and 1"]);
    refused(&lab, "fine.jsonl", &["--shard-tokens", "1"], &["--shard-tokens: a shard has between 2 and"]);
    refused(
        &lab,
        "fine.jsonl",
        &["--tokenizer", "bytes", "--separator", "append"],
        &["--separator append: the vocabulary"],
    );
    refused(&lab, "fine.jsonl", &["--val-tokens", "5", "--val-first-shard"], &["cannot be used with"]);
    refused(&lab, "builtin:lipsum", &[], &["needs no preparation"]);
}

/// To read terabytes of a hole would take hours.
#[test]
fn files_that_only_claim_to_be_large_are_not_read() {
    let lab = Lab::new();
    for name in ["a.txt", "a.txt.gz", "a.jsonl", "a.jsonl.zst", "a.parquet"] {
        lab.write(name, [b"\x1f\x8b\x08\0\0\0\0\0\0\0".as_slice(), &[b'a'; 1 << 16]].concat());
        let file = fs::OpenOptions::new().append(true).open(lab.path(name)).expect("open");
        let read = || fs::File::open(lab.path(name)).expect("there");
        // a file system of small files, or without holes, or one that does not tell of them
        if file.set_len(1 << 43).is_err() || !has_hole_before(&read(), 1 << 43) {
            return;
        }
        (&file).write_all(b"PAR1").expect("written");
        let parts =
            [name, "8,796,09", " bytes in holes, which are read as zeros", "make or get the file again"];
        refused(&lab, name, &[], &parts);
        refused(&lab, name, &["--tokenizer", "char"], &parts);
        fs::remove_file(lab.path(name)).expect("removed");
    }
}

#[test]
fn a_text_with_a_hole_is_not_prepared_and_a_file_that_is_mostly_a_hole_is_not_read() {
    let lab = Lab::new();
    let holed = |name: &str, length: u64| {
        let path = lab.write(name, vec![b'a'; 1 << 16]);
        let file = fs::OpenOptions::new().append(true).open(&path).expect("open");
        file.set_len(length).and_then(|()| (&file).write_all(&[b'b'; 1 << 16])).expect("written");
        has_hole_before(&fs::File::open(path).expect("there"), length)
    };
    if !holed("a.txt", 1 << 20) || !holed("train.bin", 3 << 30) {
        return;
    }
    let parts = ["a.txt", " bytes in holes, which are read as zeros: what wrote it may have ended early"];
    refused(&lab, "a.txt", &[], &parts);
    refused(&lab, "a.txt", &["--tokenizer", "char"], &parts);
    let inspected = lab.run(["data", "inspect", "a.txt"]);
    assert!(inspected.expect(0).stdout.contains(" bytes, which are read as zeros"), "{inspected:?}");
    let json = lab.run(["data", "inspect", "a.txt", "--format", "json"]);
    let json: serde_json::Value = serde_json::from_str(&json.expect(0).stdout).expect("JSON");
    assert!(json["files"][0]["holes"].as_u64().is_some_and(|bytes| bytes >= 1 << 19), "{json}");
    let parts = ["train.bin` has 3,2", " bytes in holes"];
    lab.run(["data", "inspect", "train.bin"]).expect(2).says(&parts);
    lab.run(tiny("runs", &["data.train=train.bin", "data.val=[]"])).expect(2).says(&parts);
}

#[test]
fn a_directory_of_something_else_is_left_alone() {
    let lab = Lab::new();
    lab.write("a.jsonl", lines(&documents(20)));
    lab.write("b.jsonl", lines(&documents(21)));
    prepare(&lab, "a.jsonl", "out", &[]);
    let before = contents(&lab, "out");
    let elsewhere = |source: &str, more: &[&str], parts: &[&str]| {
        lab.run(args(source, "out", more)).expect(2).says(parts);
        assert_eq!(contents(&lab, "out"), before);
    };
    elsewhere(
        "a.jsonl",
        &["--shard-tokens", "500"],
        &["`out` holds another preparation, with shard_tokens 100000000 instead of 500"],
    );
    elsewhere("b.jsonl", &[], &["`b.jsonl` has changed since `out` was prepared from it"]);
    lab.shard("mine/train-000001.bin", &[1, 2, 3]);
    let before = contents(&lab, "mine");
    lab.run(args("a.jsonl", "mine", &[]))
        .expect(2)
        .says(&["`mine` holds train-000001.bin, which no preparation of these"]);
    assert_eq!(contents(&lab, "mine"), before);
    lab.write("file", "x");
    lab.run(args("a.jsonl", "file", &[])).expect(2).says(&["`file` holds no files: it is one itself"]);
}

#[test]
fn a_source_that_changes_between_two_starts_is_refused() {
    let lab = Lab::new();
    let text = lines(&documents(40));
    lab.write("a.jsonl", &text);
    let more = ["--shard-tokens", "500"];
    prepare(&lab, "a.jsonl", "expected", &more);
    let mut command = lab.command(args("a.jsonl", "out", &more));
    command.env("RUNNER_FAULT", "prepare.after_state:3");
    assert_eq!(ended(command).code, None);
    let before = contents(&lab, "out");
    lab.write("a.jsonl", text.replace("Document 39", "Document 93"));
    lab.run(args("a.jsonl", "out", &more))
        .expect(2)
        .says(&["`a.jsonl` has changed since `out` was prepared from it"]);
    lab.run(args("a.jsonl", "out", &[]))
        .expect(2)
        .says(&["`out` holds an unfinished preparation, with shard_tokens 500"]);
    assert_eq!(contents(&lab, "out"), before);
    // another date is no change
    lab.write("a.jsonl", &text);
    prepare(&lab, "a.jsonl", "out", &more);
    assert_eq!(contents(&lab, "out"), contents(&lab, "expected"));
}
