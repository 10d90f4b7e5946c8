//! `runner data prepare` over files that it has written before and that are no longer what they were.

use super::data_prepare::{args, contents, documents, lines, prepare};
use crate::support;

use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use support::{Ended, Lab, ended, wait};

const PLAIN: [&str; 4] = ["--shard-tokens", "400", "--threads", "1"];
const DRAWN: [&str; 6] = ["--shard-tokens", "400", "--threads", "1", "--shuffle-seed", "4"];

/// What happens to a file.
const CHANGES: [&str; 7] =
    ["removed", "cut off", "one bit", "longer", "another shard", "a pipe", "zeros without end"];

fn change(path: &Path, how: &str) {
    let bytes = fs::read(path).expect("a file");
    fs::remove_file(path).expect("removed");
    let write = |bytes: &[u8]| fs::write(path, bytes).expect("written");
    match how {
        "removed" => {}
        "cut off" => write(&bytes[..bytes.len() - 100]),
        "one bit" => {
            let mut bytes = bytes;
            *bytes.last_mut().expect("some") ^= 1;
            write(&bytes);
        }
        "longer" => write(&[&bytes[..], &[0, 0]].concat()),
        "another shard" => {
            // whole in itself
            runner::data::write_llmc(path, [1, 2, 3]).expect("written");
        }
        "a pipe" => {
            let made = std::process::Command::new("mkfifo").arg(path).status();
            assert!(made.expect("mkfifo is there").success());
        }
        _ => std::os::unix::fs::symlink("/dev/zero", path).expect("a link"),
    }
}

/// The same command again, which must not wait.
fn again(lab: &Lab, out: &str, more: &[&str]) -> Ended {
    let mut live = lab.start(args("a.jsonl", out, more));
    wait("the end of a command that has nothing to wait for", || live.is_over());
    live.end()
}

/// A preparation that was killed.
fn killed(lab: &Lab, more: &[&str], moment: &str) {
    lab.write("a.jsonl", lines(&documents(100)));
    let mut command = lab.command(args("a.jsonl", "out", more));
    command.env("RUNNER_FAULT", format!("prepare.{moment}"));
    assert_eq!(ended(command).code, None);
}

/// Changes a file in every way, with a refusal that names it; put back, the preparation ends as one that nothing
/// happened to.
fn every_change(lab: &Lab, file: &str, more: &[&str], says: &str) {
    let path = lab.path("out").join(file);
    let whole = fs::read(&path).expect("a file");
    // the changed one is no file to read
    let others = || -> BTreeMap<PathBuf, Vec<u8>> {
        let entries = fs::read_dir(lab.path("out")).expect("a directory");
        let paths = entries.map(|entry| entry.expect("an entry").path());
        let others = paths.filter(|other| *other != path && other.is_file());
        others.map(|path| (path.clone(), fs::read(path).expect("a file"))).collect()
    };
    let before = others();
    for how in CHANGES {
        change(&path, how);
        let refused = again(lab, "out", more);
        refused.expect(2).says(&[&format!("`out` holds {says}"), file, "or remove it"]);
        assert!(others() == before, "{file} {how}");
        if how != "removed" {
            fs::remove_file(&path).expect("removed");
        }
        fs::write(&path, &whole).expect("put back");
    }
}

#[test]
fn a_finished_set_whose_shards_are_not_what_they_were_is_not_called_finished() {
    let lab = Lab::new();
    lab.write("a.jsonl", lines(&documents(40)));
    let more = [&PLAIN[..], &["--val-tokens", "100"]].concat();
    prepare(&lab, "a.jsonl", "out", &more);
    let card: Value =
        serde_json::from_slice(&fs::read(lab.path("out/dataset.json")).expect("a card")).expect("JSON");
    for (part, file) in [("train", "train-000002.bin"), ("val", "val-000000.bin")] {
        every_change(&lab, file, &more, "a dataset.json but not its shard");
        let digests = card[part]["blake3"].as_array().expect("a list");
        assert_eq!(digests.len(), card[part]["files"].as_array().expect("a list").len());
        let at = card[part]["files"].as_array().expect("a list").iter().position(|name| name == file);
        let tokens = &fs::read(lab.path("out").join(file)).expect("a shard")[1024..];
        assert_eq!(digests[at.expect("listed")], blake3::hash(tokens).to_hex().to_string());
    }
    prepare(&lab, "a.jsonl", "out", &more).says(&["was prepared before: nothing to do"]);
    // a card of an earlier version has no digests, and shards say for themselves whether they are whole
    let mut earlier = card;
    for part in ["train", "val"] {
        earlier[part].as_object_mut().expect("an object").remove("blake3");
    }
    lab.write("out/dataset.json", earlier.to_string());
    prepare(&lab, "a.jsonl", "out", &more).says(&["was prepared before: nothing to do"]);
    change(&lab.path("out/train-000001.bin"), "one bit");
    again(&lab, "out", &more).expect(2).says(&["train-000001.bin as it was written"]);
    // whose size is none that it may have, it is not read: these holes would take hours
    let shard = fs::OpenOptions::new().write(true).open(lab.path("out/train-000001.bin")).expect("a shard");
    shard.set_len(1 << 42).expect("a sparse file");
    again(&lab, "out", &more).expect(2).says(&["train-000001.bin as it was written"]);
}

#[test]
fn what_a_killed_preparation_has_written_is_looked_at_before_it_goes_on() {
    for (more, moment, file) in [
        (&PLAIN[..], "after_state:4", "train-000002.bin"),
        (&DRAWN, "after_state:5", "train-000001.bin"),
        (&DRAWN, "after_state:5", ".prepare/run-000000"),
    ] {
        let lab = Lab::new();
        killed(&lab, more, moment);
        every_change(&lab, file, more, "an unfinished preparation but not its");
        prepare(&lab, "a.jsonl", "out", more);
        prepare(&lab, "a.jsonl", "fresh", more);
        assert_eq!(contents(&lab, "out"), contents(&lab, "fresh"), "{file}");
    }
}

#[test]
fn a_state_that_has_begun_more_sources_than_it_knows_is_refused() {
    let lab = Lab::new();
    let more = [&PLAIN[..], &["--tokenizer", "char"]].concat();
    killed(&lab, &more, "after_state:3");
    let path = lab.path("out/.prepare/state.json");
    let mut file: Value = serde_json::from_slice(&fs::read(&path).expect("a state")).expect("JSON");
    let sources = file["state"]["sources"].as_array().expect("sources").clone();
    assert_eq!(sources.len(), 1);
    file["state"]["sources"] = json!([sources[0], sources[0], sources[0]]);
    file["checksum"] = blake3::hash(file["state"].to_string().as_bytes()).to_hex().as_str().into();
    fs::write(&path, file.to_string()).expect("written");
    let refused = again(&lab, "out", &more);
    refused.expect(2).says(&["`out` holds an unfinished preparation", "or remove it"]);
}

#[test]
fn a_state_whose_numbers_cannot_be_is_refused() {
    for (more, edits) in [
        (
            &PLAIN[..],
            &[
                ("/shards/0/tokens", json!(u64::MAX)),
                ("/shards/0/tokens", json!(399)),
                ("/shards", json!([])),
                ("/counts/5", json!(u64::MAX)),
                ("/position/file", json!(1_000_000)),
                ("/position/document", json!(u64::MAX)),
                ("/documents", json!(u64::MAX)),
                ("/bytes", json!(u64::MAX)),
                ("/is_read", json!(true)),
            ][..],
        ),
        (
            &DRAWN,
            &[
                ("/shards/0/tokens", json!(u64::MAX)),
                ("/runs", json!([])),
                ("/runs/0/tokens", json!(u64::MAX)),
                ("/counts/5", json!(1u64 << 40)),
            ],
        ),
    ] {
        let lab = Lab::new();
        killed(&lab, more, "after_state:5");
        let path = lab.path("out/.prepare/state.json");
        let whole = fs::read(&path).expect("a state");
        for (place, value) in edits {
            let mut file: Value = serde_json::from_slice(&whole).expect("JSON");
            *file["state"].pointer_mut(place).expect(place) = value.clone();
            // as it is, and with a checksum that somebody has computed again
            for says in ["it was changed or damaged", "or remove it"] {
                fs::write(&path, file.to_string()).expect("written");
                let before = contents(&lab, "out");
                let refused = again(&lab, "out", more);
                refused.expect(2).says(&["`out` holds an unfinished preparation", says]);
                assert!(contents(&lab, "out") == before, "{place} {value}");
                let state = file["state"].to_string();
                file["checksum"] = blake3::hash(state.as_bytes()).to_hex().as_str().into();
            }
        }
        fs::write(&path, &whole).expect("put back");
        prepare(&lab, "a.jsonl", "out", more);
    }
}
