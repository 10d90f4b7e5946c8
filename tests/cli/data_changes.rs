//! `runner data prepare` with sources that turn out to be wrong, or change, after shards are complete; and with a disk
//! that is full.

use super::data_prepare::{args, contents, documents, lines, prepare};
use crate::support;

use std::collections::BTreeMap;
use std::fs;
use support::{Lab, ended};

/// Shards of which some are complete before the end of the first source.
const SMALL: [&str; 4] = ["--shard-tokens", "20000", "--threads", "1"];

/// JSON lines of 20,000 tokens, and of 100 kB. What is encoded at a time is 512 KiB.
fn long(lines: usize) -> String {
    format!("{{\"text\": \"{}\"}}\n", " word".repeat(20_000)).repeat(lines)
}

/// No file of a killed or failed write is left, whatever else is.
fn nothing_is_half_written(files: &BTreeMap<String, Vec<u8>>) {
    let known = |name: &str| [".prepare", "dataset.json"].contains(&name) || name.ends_with(".bin");
    assert!(files.keys().all(|name| known(name)), "{:?}", files.keys());
}

#[test]
fn a_source_that_is_wrong_after_whole_shards_can_be_mended_and_gone_on_with() {
    let table = |name: &str| {
        fs::read(format!("{}/tests/golden/texts/{name}.parquet", env!("CARGO_MANIFEST_DIR")))
            .expect("a table")
    };
    // shards of the second source are complete as well when it turns out to be wrong
    let fine = long(12) + &lines(&documents(60));
    let text = documents(60).concat().repeat(100);
    let mut page = table("gzip");
    page[1200] ^= 1;
    let cases: [(&str, Vec<u8>, Vec<u8>, &str); 6] = [
        (
            "b.jsonl",
            fine.replace("\"text\":\"Document 57", "\"body\":\"Document 57").into(),
            fine.clone().into(),
            "line 70: it has no field `text`: choose one of",
        ),
        (
            "b.jsonl",
            [fine.as_bytes(), b"{\"text\": \"\xe9\"}"].concat(),
            fine.clone().into(),
            "line 73: it is not UTF-8",
        ),
        (
            "b.jsonl",
            fine.as_bytes()[..fine.len() - 9].to_vec(),
            fine.clone().into(),
            "line 72: it is no JSON",
        ),
        ("b.txt", [text.as_bytes(), b"\xe9"].concat(), text.clone().into(), "b.txt"),
        ("b.parquet", page, table("gzip"), "a page is damaged: fetch the file again"),
        ("b.parquet", table("null"), table("plain"), "row 2: its text is null"),
    ];
    for (number, (name, wrong, right, message)) in cases.into_iter().enumerate() {
        let lab = Lab::new();
        lab.write("text/a.jsonl", lines(&documents(50)).repeat(20));
        for more in [&[][..], &["--shuffle-seed", "1"]] {
            let out = format!("out-{number}-{}", more.len());
            let more = [&SMALL, more].concat();
            lab.write(&format!("text/{name}"), &wrong);
            let failed = lab.run(args("text", &out, &more));
            failed.expect(2).says(&[name, message]);
            let files = contents(&lab, &out);
            nothing_is_half_written(&files);
            let is_spooled = more.len() > SMALL.len();
            if is_spooled {
                assert!(files.is_empty(), "no run of the spool was complete: {:?}", files.keys());
            } else {
                // those of the first source
                let names: Vec<&String> = files.keys().collect();
                assert_eq!(names, [".prepare", "train-000001.bin", "train-000002.bin"]);
                failed.says(&["complete so far are kept, and the same command goes on from there"]);
            }
            lab.write(&format!("text/{name}"), &right);
            prepare(&lab, "text", &out, &more);
            let whole = format!("{out}-whole");
            prepare(&lab, "text", &whole, &more);
            assert_eq!(contents(&lab, &out), contents(&lab, &whole), "{name}: {message}");
        }
    }
}

#[test]
fn a_preparation_that_dies_at_its_limit_counts_what_an_undisturbed_one_does() {
    let lab = Lab::new();
    // a document of several parts, in which the limit is at the end of a shard
    lab.write("a.jsonl", format!("{{\"text\": \"{}\"}}\n", " word".repeat(200_000)));
    let sets = [&SMALL[..], &["--limit-tokens", "120000"]].concat();
    prepare(&lab, "a.jsonl", "whole", &sets);
    let whole = contents(&lab, "whole");
    let mut deaths = 0;
    for state in 2..12 {
        let out = format!("out-{state}");
        let mut command = lab.command(args("a.jsonl", &out, &sets));
        command.env("RUNNER_FAULT", format!("prepare.after_state:{state}"));
        deaths += u32::from(ended(command).code.is_none());
        prepare(&lab, "a.jsonl", &out, &sets);
        assert_eq!(contents(&lab, &out), whole, "{state}");
    }
    assert!(deaths >= 6, "a state after each shard: {deaths}");
}

#[test]
fn the_shards_of_the_only_source_go_when_it_is_wrong() {
    let lab = Lab::new();
    lab.write("a.jsonl", long(12) + "{\"text\": 7}\n");
    let refused = || {
        lab.run(args("a.jsonl", "out", &SMALL)).expect(2).says(&["line 13: its field `text` is a number"]);
        assert!(contents(&lab, "out").is_empty(), "{:?}", contents(&lab, "out").keys());
    };
    refused();
    assert!(!lab.path("out").exists());
    // a killed process has left its directory, with shards of the source
    let mut command = lab.command(args("a.jsonl", "out", &SMALL));
    command.env("RUNNER_FAULT", "prepare.after_state:3");
    assert_eq!(ended(command).code, None);
    assert!(contents(&lab, "out").contains_key("train-000002.bin"));
    refused();
}

/// Lines in a file that is longer than what waits between threads: it is still read when the first shard is written.
const MANY: usize = 100;

/// What happens to a source.
type Change<'a> = &'a dyn Fn(&Lab);

#[test]
fn a_source_that_changes_while_it_is_read_is_noticed() {
    let whole = long(MANY);
    let write = |lab: &Lab, text: &str| drop(lab.write("text/b.jsonl", text));
    let changes: [(&str, Change); 4] = [
        ("it grows", &|lab| write(lab, &format!("{whole}{{\"text\": \"more\"}}\n"))),
        ("it shrinks", &|lab| write(lab, &whole[..whole.len() - 500_000])),
        ("other words", &|lab| write(lab, &whole.replace("word", "term"))),
        ("another takes its place", &|lab| {
            lab.write("other", whole.replace("word", "term"));
            fs::rename(lab.path("other"), lab.path("text/b.jsonl")).expect("renamed");
        }),
    ];
    let more = ["--shard-tokens", "50000", "--threads", "1"];
    for (what, change) in changes {
        let lab = Lab::new();
        lab.write("text/a.jsonl", long(3));
        lab.write("text/b.jsonl", &whole);
        let (live, gate) = lab.held(lab.command(args("text", "out", &more)), "prepare.after_state:4");
        gate.reached();
        change(&lab);
        gate.open();
        let ended = live.end();
        ended.expect(2).says(&["text/b.jsonl` changed while it was read"]);
        let files = contents(&lab, "out");
        nothing_is_half_written(&files);
        // those of the first source alone; the next one has tokens of both
        let shards: Vec<&str> =
            files.keys().map(String::as_str).filter(|name| name.ends_with(".bin")).collect();
        assert_eq!(shards, ["train-000001.bin"], "{what}");
        if what == "it shrinks" {
            // its last line is cut
            write(&lab, &whole);
        }
        prepare(&lab, "text", "out", &more);
        prepare(&lab, "text", "fresh", &more);
        assert_eq!(contents(&lab, "out"), contents(&lab, "fresh"), "{what}");
    }
}

#[test]
fn a_source_with_another_date_has_not_changed() {
    let lab = Lab::new();
    lab.write("a.jsonl", long(MANY));
    let more = ["--shard-tokens", "50000", "--threads", "1"];
    let (live, gate) = lab.held(lab.command(args("a.jsonl", "out", &more)), "prepare.after_state:2");
    gate.reached();
    fs::hard_link(lab.path("a.jsonl"), lab.path("linked")).expect("linked");
    gate.open();
    live.end().expect(0);
    prepare(&lab, "a.jsonl", "fresh", &more);
    assert_eq!(contents(&lab, "out"), contents(&lab, "fresh"));
}

#[test]
fn a_limit_does_not_hide_a_source_that_changed() {
    let lab = Lab::new();
    lab.write("a.jsonl", long(MANY));
    let more = ["--shard-tokens", "50000", "--threads", "1", "--limit-tokens", "1900000"];
    let (live, gate) = lab.held(lab.command(args("a.jsonl", "out", &more)), "prepare.after_state:2");
    gate.reached();
    lab.write("a.jsonl", long(MANY).replace("word", "term"));
    gate.open();
    live.end().expect(2).says(&["a.jsonl` changed while it was read"]);
    assert!(!lab.path("out").exists(), "{:?}", contents(&lab, "out").keys());
}

/// A file that may not grow any more fails in the middle of a write, as on a full disk.
#[test]
fn a_write_that_fails_half_way_leaves_nothing() {
    let lab = Lab::new();
    lab.write("a.jsonl", long(MANY));
    let mut command = lab.launcher("sh");
    // in blocks of 512 or 1024 bytes: more than a state takes, and less than a shard
    command.args(["-c", "trap '' XFSZ; ulimit -f 1500; exec \"$RUNNER\" data prepare a.jsonl --out out"]);
    let failed = ended(command);
    failed.expect(1).says(&["out/train-000001.bin", "check its directory's permissions and the free space"]);
    assert!(!lab.path("out").exists(), "{:?}", contents(&lab, "out").keys());
    prepare(&lab, "a.jsonl", "out", &[]);
}

#[test]
fn what_was_prepared_among_the_sources_is_no_source() {
    let lab = Lab::new();
    lab.write("text/a.jsonl", lines(&documents(20)));
    prepare(&lab, "text", "text/out", &[]);
    let before = contents(&lab, "text/out");
    prepare(&lab, "text", "text/out", &[]).says(&["was prepared before: nothing to do"]);
    assert_eq!(contents(&lab, "text/out"), before);
    prepare(&lab, "text", "text/other", &[]);
}
