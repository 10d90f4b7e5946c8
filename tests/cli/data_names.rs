//! `runner data prepare` beside files that it has not made: it removes and replaces what its state lists, and no more.

use super::data_prepare::{args, contents, documents, lines, prepare};
use crate::support;

use std::fs;
use support::{Ended, Lab, ended};

const SMALL: [&str; 4] = ["--shard-tokens", "500", "--threads", "1"];

/// A laboratory with a source, its whole set in `whole`, and how many shards that has.
fn lab() -> (Lab, usize) {
    let lab = Lab::new();
    lab.write("a.jsonl", lines(&documents(60)));
    prepare(&lab, "a.jsonl", "whole", &SMALL);
    let shards = contents(&lab, "whole").len() - 1;
    assert!(shards >= 4, "{shards}");
    (lab, shards)
}

fn killed(lab: &Lab, out: &str, moment: &str) {
    let mut command = lab.command(args("a.jsonl", out, &SMALL));
    command.env("RUNNER_FAULT", format!("prepare.{moment}"));
    assert_eq!(ended(command).code, None);
}

fn names(lab: &Lab, out: &str) -> Vec<String> {
    contents(lab, out).into_keys().collect()
}

fn again(lab: &Lab, out: &str) -> Ended {
    lab.run(args("a.jsonl", out, &SMALL))
}

/// Shards that somebody has put beside an unfinished preparation are named, and stay; without them it ends as always.
#[test]
fn shards_that_a_preparation_has_not_made_stay() {
    let (lab, _) = lab();
    let own = fs::read(lab.path("whole/train-000001.bin")).expect("a shard");
    for (number, (states, foreign)) in [
        (1, &["train-000001.bin", "train-000002.bin", "val-000000.bin"][..]),
        (3, &["train-000003.bin", "train-000004.bin"]),
        (3, &["train-000050.bin"]),
        (3, &["val-000000.bin"]),
    ]
    .into_iter()
    .enumerate()
    {
        let out = format!("out-{number}");
        killed(&lab, &out, &format!("after_state:{states}"));
        for name in foreign {
            // whole in itself, as this program writes it
            lab.write(&format!("{out}/{name}"), &own);
        }
        let before = contents(&lab, &out);
        let what = format!("`{out}` holds {}, which no preparation of these sources has made", foreign[0]);
        again(&lab, &out).expect(2).says(&[&what, "or remove it"]);
        assert!(contents(&lab, &out) == before, "{foreign:?}");
        for name in foreign {
            fs::remove_file(lab.path(&out).join(name)).expect("removed");
        }
        prepare(&lab, "a.jsonl", &out, &SMALL);
        assert_eq!(contents(&lab, &out), contents(&lab, "whole"), "{foreign:?}");
    }
}

#[test]
fn a_file_that_appears_under_the_name_of_the_next_one_is_not_replaced() {
    let (lab, _) = lab();
    for (moment, name) in [("before_name:2", "train-000002.bin"), ("before_card", "dataset.json")] {
        let out = format!("out-{name}");
        let (live, gate) = lab.held(lab.command(args("a.jsonl", &out, &SMALL)), &format!("prepare.{moment}"));
        gate.reached();
        let foreign = lab.write(&format!("{out}/{name}"), "somebody's own");
        gate.open();
        let what = format!("`{out}` holds {name}, which no preparation of these sources has made");
        live.end().expect(2).says(&[&what]);
        assert_eq!(fs::read(&foreign).expect("it is there"), b"somebody's own");
        fs::remove_file(foreign).expect("removed");
        prepare(&lab, "a.jsonl", &out, &SMALL);
        assert_eq!(contents(&lab, &out), contents(&lab, "whole"), "{name}");
    }
}

#[test]
fn a_shard_has_its_name_once_a_state_lists_it() {
    let (lab, _) = lab();
    killed(&lab, "out", "before_name:2");
    assert_eq!(names(&lab, "out"), [".prepare", "train-000001.bin"]);
    assert!(lab.path("out/.prepare/train-000002.bin").exists());
    prepare(&lab, "a.jsonl", "out", &SMALL);
    assert_eq!(contents(&lab, "out"), contents(&lab, "whole"));
}

/// The state of an earlier version, which gave a shard its name first, and kept a whole state to go back to.
fn made_earlier(lab: &Lab, out: &str, first: &str) {
    let path = lab.path(out).join(".prepare/state.json");
    let state = |path| {
        let text = fs::read_to_string(path).expect("a state");
        let (_, state) = text.split_once(",\"state\":").expect("a checksum and a state");
        state.strip_suffix('}').expect("the end").replace(",\"lists_first\":true", "")
    };
    let before = state(lab.path(first).join(".prepare/state.json"));
    let now = state(path.clone());
    let (head, _) = now.split_once(",\"back\":").expect("what is gone back to");
    let now = format!("{head},\"before\":{before}}}");
    let checksum = blake3::hash(now.as_bytes()).to_hex();
    fs::write(path, format!("{{\"checksum\":\"{checksum}\",\"state\":{now}}}")).expect("written");
}

#[test]
fn a_preparation_of_an_earlier_version_goes_on_from_the_shard_that_its_state_does_not_list() {
    let (lab, shards) = lab();
    assert!(shards > 3);
    killed(&lab, "first", "after_state:1");
    let third = fs::read(lab.path("whole/train-000003.bin")).expect("a shard");
    killed(&lab, "out", "after_state:3");
    made_earlier(&lab, "out", "first");
    // of other contents it is not this preparation's
    let other =
        lab.write("out/train-000003.bin", fs::read(lab.path("whole/train-000001.bin")).expect("a shard"));
    let before = fs::read(&other).expect("a shard");
    again(&lab, "out").expect(2).says(&["`out` holds train-000003.bin, which no preparation"]);
    assert_eq!(fs::read(&other).expect("it is there"), before);
    lab.write("out/train-000003.bin", third);
    prepare(&lab, "a.jsonl", "out", &SMALL);
    assert_eq!(contents(&lab, "out"), contents(&lab, "whole"));
}

#[test]
fn a_preparation_of_an_earlier_version_goes_back_to_where_its_state_says() {
    let lab = Lab::new();
    let long = format!("{{\"text\": \"{}\"}}\n", " word".repeat(20_000)).repeat(12);
    lab.write("a.jsonl", long.clone() + "{\"text\": 7}\n");
    let more = ["--shard-tokens", "20000", "--threads", "1"];
    for (out, states) in [("first", 1), ("out", 3)] {
        let mut command = lab.command(args("a.jsonl", out, &more));
        command.env("RUNNER_FAULT", format!("prepare.after_state:{states}"));
        assert_eq!(ended(command).code, None);
    }
    assert_eq!(names(&lab, "out"), [".prepare", "train-000001.bin", "train-000002.bin"]);
    made_earlier(&lab, "out", "first");
    lab.run(args("a.jsonl", "out", &more)).expect(2).says(&["line 13: its field `text` is a number"]);
    assert!(names(&lab, "out").is_empty(), "{:?}", names(&lab, "out"));
}

/// Names of 3,000 bytes, each of which takes six in JSON.
#[test]
fn more_sources_than_a_set_can_list_are_refused_before_anything_is_read() {
    let lab = Lab::new();
    let deep = (0..12).fold("text".to_owned(), |dir, _| format!("{dir}/{}", "\u{1}".repeat(240)));
    lab.write(&format!("{deep}/0.txt"), "some words");
    for number in 1..2_500 {
        fs::hard_link(lab.path(format!("{deep}/0.txt")), lab.path(format!("{deep}/{number}.txt")))
            .expect("linked");
    }
    lab.run(args("text", "out", &[])).expect(2).says(&[
        "2500 files are more than the record of a data set has room for",
        "join small files, for instance to JSON lines",
    ]);
    assert!(!lab.path("out").exists(), "{:?}", names(&lab, "out"));
}

#[test]
fn a_separator_that_parts_nothing_is_told_of() {
    let lab = Lab::new();
    lab.write("crlf.txt", "one doc here\r\n\r\ntwo doc here\r\n\r\nthird\\n\r\n");
    let prepared = |out: &str, split: &str| prepare(&lab, "crlf.txt", out, &["--split-on", split]);
    let vain = "warning: --split-on parts no two documents in 1 file of text";
    for (out, split) in [("lf", r"\n\n"), ("none", "NOWHERE"), ("backslash", r"\\r\\n")] {
        prepared(out, split).says(&["1 document,", vain]);
    }
    // a set that was prepared before is no better
    prepared("lf", r"\n\n").says(&["nothing to do", vain]);
    for (out, split, count) in [("crlf", r"\r\n\r\n", 3), ("escape", r"\\n", 2)] {
        let done = prepared(out, split);
        done.says(&[&format!("{count} documents,")]);
        assert!(!done.stderr.contains("warning"), "{}", done.stderr);
    }
    for (split, shown) in [(r"\x", r"`\x`"), (r"a\", r"`\`")] {
        lab.run(args("crlf.txt", "out", &["--split-on", split])).expect(2).says(&[
            "--split-on: ",
            shown,
            "stands for nothing",
        ]);
    }
    lab.write("a.jsonl", lines(&documents(3)));
    prepare(&lab, "a.jsonl", "lines", &["--split-on", "x"]).says(&["and none of the sources is one"]);
}
