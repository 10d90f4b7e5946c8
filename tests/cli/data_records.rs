//! What `runner data prepare` has on record of its sources: how each was read, how many there were, and those that the
//! characters of a vocabulary are from.

use super::data_prepare::{args, contents, documents, lines, prepare};
use crate::support;

use std::fs;
use support::{Lab, ended};

const SMALL: [&str; 4] = ["--shard-tokens", "500", "--threads", "1"];
const CHAR: [&str; 6] = ["--tokenizer", "char", "--shard-tokens", "500", "--threads", "1"];

/// A preparation of `text` that is killed when it has kept its state so many times.
fn killed(lab: &Lab, out: &str, more: &[&str], states: u32) {
    let mut command = lab.command(args("text", out, more));
    command.env("RUNNER_FAULT", format!("prepare.after_state:{states}"));
    assert_eq!(ended(command).code, None);
}

/// The call is refused with these parts of a message, and changes nothing.
fn refused(lab: &Lab, out: &str, more: &[&str], parts: &[&str]) {
    let before = contents(lab, out);
    lab.run(args("text", out, more)).expect(2).says(parts);
    assert_eq!(contents(lab, out), before, "{parts:?}");
}

/// Writes the state of an unfinished preparation with other contents, as the program writes it.
fn rewritten(lab: &Lab, out: &str, change: impl Fn(&str) -> String) {
    let path = lab.path(out).join(".prepare/state.json");
    let text = fs::read_to_string(&path).expect("read");
    let (_, kept) = text.split_once(",\"state\":").expect("a checksum and a state");
    let state = kept.strip_suffix('}').expect("the end");
    let other = change(state);
    assert_ne!(other, state);
    let checksum = blake3::hash(other.as_bytes()).to_hex();
    fs::write(&path, format!("{{\"checksum\":\"{checksum}\",\"state\":{other}}}")).expect("written");
}

fn renamed(lab: &Lab, from: &str, to: &str) {
    fs::rename(lab.path(from), lab.path(to)).expect("renamed");
}

#[test]
fn a_source_whose_new_name_has_it_read_otherwise_is_refused() {
    let lab = Lab::new();
    // a text as well as lines of JSON
    lab.write("text/a.txt", lines(&documents(40)));
    prepare(&lab, "text", "whole", &SMALL);
    killed(&lab, "out", &SMALL, 3);
    renamed(&lab, "text/a.txt", "text/a.jsonl");
    let other = "`text/a.jsonl` is read as .jsonl for its name, and";
    refused(&lab, "whole", &SMALL, &[other, "`whole` was prepared from it as .txt: name it as before"]);
    refused(&lab, "out", &SMALL, &[other, "`out` was prepared from it as .txt"]);
    renamed(&lab, "text/a.jsonl", "text/b.txt");
    prepare(&lab, "text", "out", &SMALL);
    prepare(&lab, "text", "whole", &SMALL).says(&["was prepared before: nothing to do"]);
    // a name that says the same changes nothing
    renamed(&lab, "text/b.txt", "text/b.jsonl");
    prepare(&lab, "text", "lines", &SMALL);
    renamed(&lab, "text/b.jsonl", "text/c.ndjson");
    prepare(&lab, "text", "lines", &SMALL).says(&["was prepared before: nothing to do"]);
}

#[test]
fn of_what_an_earlier_version_prepared_the_names_on_record_say_how_it_was_read() {
    let lab = Lab::new();
    lab.write("text/a.txt", lines(&documents(40)));
    prepare(&lab, "text", "whole", &SMALL);
    let card = lab.path("whole/dataset.json");
    let text = fs::read_to_string(&card).expect("read");
    let earlier: Vec<&str> = text.lines().filter(|line| !line.contains("\"format\"")).collect();
    fs::write(&card, earlier.join("\n")).expect("written");
    killed(&lab, "out", &SMALL, 3);
    rewritten(&lab, "out", |state| state.replace(",\"format\":\"txt\"", ""));
    prepare(&lab, "text", "whole", &SMALL).says(&["was prepared before: nothing to do"]);
    renamed(&lab, "text/a.txt", "text/a.jsonl");
    for out in ["whole", "out"] {
        refused(&lab, out, &SMALL, &["`text/a.jsonl` is read as .jsonl", "was prepared from it as .txt"]);
    }
    renamed(&lab, "text/a.jsonl", "text/a.txt");
    prepare(&lab, "text", "out", &SMALL);
    prepare(&lab, "text", "fresh", &SMALL);
    assert_eq!(contents(&lab, "out"), contents(&lab, "fresh"));
}

#[test]
fn a_limit_that_was_not_reached_hides_no_new_source() {
    let lab = Lab::new();
    lab.write("text/a.txt", "a few words");
    let limited = |limit: &'static str| [&SMALL[..], &["--limit-tokens", limit]].concat();
    prepare(&lab, "text", "short", &limited("1000"));
    prepare(&lab, "text", "full", &limited("4"));
    lab.write("text/b.txt", "and more words");
    refused(
        &lab,
        "short",
        &limited("1000"),
        &["`short` holds what was prepared from 1 file, not from 2: choose another directory"],
    );
    prepare(&lab, "text", "full", &limited("4")).says(&["was prepared before: nothing to do"]);
    // everything is in the spool when a source comes
    fs::remove_file(lab.path("text/b.txt")).expect("removed");
    let drawn = |limit| [&limited(limit)[..], &["--shuffle-seed", "3"]].concat();
    killed(&lab, "out", &drawn("1000"), 2);
    killed(&lab, "out-full", &drawn("4"), 2);
    lab.write("text/b.txt", "and more words");
    let what = "`out` holds an unfinished preparation that has read all of 1 file, not of 2";
    refused(&lab, "out", &drawn("1000"), &[what]);
    prepare(&lab, "text", "out-full", &drawn("4"));
}

#[test]
fn the_sources_of_a_vocabulary_of_characters_are_held_from_the_start() {
    let lab = Lab::new();
    let (text, other) = ("some words, ".repeat(200), "other words: xyz");
    lab.write("text/a.txt", &text);
    lab.write("text/b.txt", other);
    prepare(&lab, "text", "whole", &CHAR);
    killed(&lab, "out", &CHAR, 3);
    let changed = "`text/b.txt` has changed since `out` was prepared from it";
    // without a character of the vocabulary, with one that is not in it, and with the same ones
    for edit in ["other words", "other words: xyzé", "words: xyz other"] {
        lab.write("text/b.txt", edit);
        refused(&lab, "out", &CHAR, &[changed]);
    }
    fs::remove_file(lab.path("text/b.txt")).expect("removed");
    refused(&lab, "out", &CHAR, &[changed]);
    lab.write("text/b.txt", other);
    lab.write("text/c.txt", "more");
    let what = "`out` holds an unfinished preparation with the characters of 2 files, not of 3";
    refused(&lab, "out", &CHAR, &[what]);
    fs::remove_file(lab.path("text/c.txt")).expect("removed");
    // another date is no change
    lab.write("text/b.txt", other);
    prepare(&lab, "text", "out", &CHAR);
    assert_eq!(contents(&lab, "out"), contents(&lab, "whole"));
}

#[test]
fn characters_beyond_a_limit_are_on_record_too() {
    let lab = Lab::new();
    lab.write("text/a.txt", "some words");
    lab.write("text/b.txt", "xyz");
    let limited = [&CHAR[..], &["--limit-tokens", "10"]].concat();
    prepare(&lab, "text", "out", &limited).says(&["10 tokens"]);
    lab.write("text/b.txt", "xy");
    refused(&lab, "out", &limited, &["`text/b.txt` has changed since `out` was prepared from it"]);
    lab.write("text/b.txt", "xyz");
    lab.write("text/c.txt", "z");
    refused(&lab, "out", &limited, &["`out` holds what was prepared from 2 files, not from 3"]);
    fs::remove_file(lab.path("text/c.txt")).expect("removed");
    prepare(&lab, "text", "out", &limited).says(&["was prepared before: nothing to do"]);
    // an earlier version had those on record that it took tokens from
    let path = lab.path("out/dataset.json");
    let mut card: serde_json::Value =
        serde_json::from_slice(&fs::read(&path).expect("read")).expect("a card");
    card["sources"].as_array_mut().expect("a list").truncate(1);
    card["sources"][0].as_object_mut().expect("a source").remove("format");
    fs::write(&path, card.to_string()).expect("written");
    prepare(&lab, "text", "out", &limited).says(&["was prepared before: nothing to do"]);
}

#[test]
fn an_unfinished_preparation_of_an_earlier_version_goes_on_if_the_characters_are_still_those() {
    let lab = Lab::new();
    lab.write("text/a.txt", "some words, ".repeat(200));
    lab.write("text/b.txt", "other words: xyz");
    prepare(&lab, "text", "whole", &CHAR);
    killed(&lab, "out", &CHAR, 3);
    rewritten(&lab, "out", |state| {
        let mut parts = state.split(",\"vocabulary_sources\":[");
        let first = parts.next().expect("a part").to_owned();
        let others = parts.map(|part| part.split_once("}}]").expect("the end of a list of sources").1);
        others.fold(first, |all, part| all + part)
    });
    lab.write("text/b.txt", "other words: xy");
    refused(&lab, "out", &CHAR, &["`out` holds an unfinished preparation with other characters than"]);
    lab.write("text/b.txt", "other words: xyz");
    prepare(&lab, "text", "out", &CHAR);
    assert_eq!(contents(&lab, "out"), contents(&lab, "whole"));
}

#[test]
fn a_source_that_changes_once_its_characters_are_known_is_refused() {
    let lab = Lab::new();
    // longer than what waits between threads, so that the next one has not begun at the first shard
    let long = "some words, ".repeat(1_000_000);
    let more = ["--tokenizer", "char", "--shard-tokens", "2000000", "--threads", "1"];
    lab.write("text/a.txt", &long);
    lab.write("text/b.txt", "other words: xyz");
    for edit in ["other words", "other words: xyzé"] {
        lab.write("text/b.txt", "other words: xyz");
        // before anything is read, and when a shard is complete
        let (live, gate) = lab.held(lab.command(args("text", "new", &more)), "prepare.after_state:1");
        gate.reached();
        lab.write("text/b.txt", edit);
        gate.open();
        let changed = |out: &str| format!("`text/b.txt` has changed since `{out}` was prepared from it");
        live.end().expect(2).says(&[&changed("new")]);
        lab.write("text/b.txt", "other words: xyz");
        let (live, gate) = lab.held(lab.command(args("text", "out", &more)), "prepare.after_state:2");
        gate.reached();
        lab.write("text/b.txt", edit);
        gate.open();
        let failed = live.end();
        failed.expect(2).says(&[&changed("out"), "remove that one to start over"]);
        assert!(!failed.stderr.contains("goes on"), "{}", failed.stderr);
        refused(&lab, "out", &more, &[&changed("out")]);
        lab.write("text/b.txt", "other words: xyz");
        prepare(&lab, "text", "out", &more);
        prepare(&lab, "text", "fresh", &more);
        assert_eq!(contents(&lab, "out"), contents(&lab, "fresh"));
        for out in ["new", "out", "fresh"] {
            let _ = fs::remove_dir_all(lab.path(out));
        }
    }
    // in the one that is being read, a character that the vocabulary lacks
    let (live, gate) = lab.held(lab.command(args("text", "out", &more)), "prepare.after_state:2");
    gate.reached();
    lab.write("text/a.txt", long.replace("some", "söme"));
    gate.open();
    live.end().expect(2).says(&["`text/a.txt` changed while it was read: start again"]);
    assert!(!lab.path("out").exists(), "{:?}", contents(&lab, "out").keys());
}
