//! What is said to be known to have been trained on, where that depends on which tokens are in rows, cut off or read.

use crate::support;

use std::path::{Path, PathBuf};
use support::{Lab, record, seen, tiny};

const BYTES: &str = "data.tokenizer=bytes";

/// Three texts of 48 bytes times 60.
fn lab() -> Lab {
    let lab = Lab::new();
    lab.write("a.txt", "so she sang, so he sang; so they sang of it all\n".repeat(60));
    lab.write("v.txt", "of it all he sang, and of her he sang the more!\n".repeat(60));
    lab.write("d.txt", "and she heard it, and they all heard the songs.\n".repeat(60));
    lab
}

fn prepare(lab: &Lab, args: &[&str]) {
    let usual = ["data", "prepare", "--tokenizer", "bytes", "--out"];
    lab.run([&usual[..], args].concat()).expect(0);
}

/// A run whose validation data are the end of its training data.
fn split(lab: &Lab, runs: &str, sets: &[&str]) -> PathBuf {
    let args = tiny(runs, &[&[BYTES], sets].concat());
    lab.run_of(lab.run(args.into_iter().chain(["--unset", "data.val"].map(str::to_owned))).expect(0))
}

/// The setting by which a run begins with the weights of another one.
fn weights_of(trunk: &Path) -> String {
    format!("model.init_from={{run=\"{}\",optimizer=false}}", trunk.display())
}

#[test]
fn the_first_rows_of_a_text_of_which_the_end_is_trained_on_are_new() {
    let lab = lab();
    prepare(&lab, &["set", "v.txt", "a.txt", "--shard-tokens", "2000"]);
    let train = [BYTES, "data.train=set/train-000002.bin", "data.val=v.txt", "eval.tokens=64"];
    let run = lab.train(&train);
    assert_eq!(record(&run)["trains_on_validation"], true);
    for (args, is_seen) in [
        (&[][..], false),
        (&["--tokens", "2848"], true),
        (&["--data", "v.txt", "--tokens", "64"], false),
        (&["--data", "v.txt"], true),
        // all of that shard
        (&["--data", "set/train-000002.bin", "--tokens", "64"], true),
    ] {
        assert_eq!(seen(&lab, &run, args), is_seen, "{args:?}");
    }
}

#[test]
fn of_a_part_that_is_split_off_only_what_is_read_counts() {
    let lab = lab();
    let trunk = lab.train_in("trunks", &[BYTES, "data.train=d.txt", "data.val=[]"]);
    let from = weights_of(&trunk);
    let three = "data.train=[\"a.txt\", \"v.txt\", \"d.txt\"]";
    let run = split(&lab, "runs", &[three, "data.val_fraction=0.5", "eval.tokens=64", &from]);
    assert_eq!(record(&run)["trained_before"], "validation_data");
    assert!(!seen(&lab, &run, &[]) && seen(&lab, &run, &["--tokens", "4256"]));
}

#[test]
fn another_part_of_the_same_file_may_have_been_seen() {
    let lab = lab();
    let trunk = split(&lab, "trunks", &["data.train=a.txt", "data.val_fraction=0.1"]);
    let from = weights_of(&trunk);
    let run = split(&lab, "runs", &["data.train=a.txt", "data.val_fraction=0.4", &from]);
    assert_eq!(record(&run)["trained_before"], "other_data");
}

#[test]
fn what_is_behind_the_last_row_is_not_trained_on() {
    let lab = lab();
    // 2,880 and 18 tokens, and 90 rows of 32 with one more
    prepare(&lab, &["set", "a.txt", "v.txt", "--shard-tokens", "2898"]);
    let run = lab.train(&[BYTES, "data.train=set/train-000001.bin", "data.val=v.txt"]);
    assert!(record(&run).get("trains_on_validation").is_none());
    assert!(!seen(&lab, &run, &[]) && !seen(&lab, &run, &["--data", "v.txt"]));
    assert!(seen(&lab, &run, &["--data", "a.txt"]));
}

#[test]
fn a_few_tokens_of_a_text_may_be_behind_its_own_last_row() {
    let lab = lab();
    // the last 10 of 2,880 tokens, of which 2,849 are in rows
    prepare(&lab, &["set", "v.txt", "a.txt", "--shard-tokens", "2870"]);
    for (train, val) in [("set/train-000002.bin", "v.txt"), ("v.txt", "set/train-000002.bin")] {
        let run = lab.train(&[BYTES, &format!("data.train={train}"), &format!("data.val={val}")]);
        assert!(record(&run).get("trains_on_validation").is_none(), "{train}");
        assert!(!seen(&lab, &run, &["--data", val]), "{train}");
    }
}

#[test]
fn the_beginning_of_a_file_whose_end_was_set_aside_is_seen() {
    let lab = lab();
    let run = split(&lab, "runs", &["data.train=a.txt", "data.val_fraction=0.1"]);
    for (args, is_seen) in [(&["--data", "a.txt", "--tokens", "64"][..], true), (&[], false)] {
        assert_eq!(seen(&lab, &run, args), is_seen, "{args:?}");
    }
    // built-in texts of one seed begin alike and end otherwise
    let short = "data.train=builtin:lipsum:seed=5,words=200";
    let trunk = lab.train_in("trunks", &[BYTES, short, "data.val=[]"]);
    let from = weights_of(&trunk);
    let long = "data.train=builtin:lipsum:seed=5,words=5000";
    let run = split(&lab, "children", &[long, "data.val_fraction=0.1", &from]);
    assert_eq!(record(&run)["trained_before"], "other_data");
}

#[test]
fn the_texts_of_shards_that_are_split_off_are_known_again() {
    let lab = lab();
    let trunk = lab.train_in("trunks", &[BYTES, "data.train=d.txt", "data.val=[]"]);
    prepare(&lab, &["set", "a.txt", "v.txt", "d.txt", "--shard-tokens", "2880"]);
    let from = weights_of(&trunk);
    let run = split(&lab, "runs", &["data.train=set/*.bin", "data.val_fraction=0.334", &from]);
    assert_eq!(record(&run)["trained_before"], "validation_data");
}

#[test]
fn the_texts_of_a_shard_that_is_cut_are_known_again() {
    let lab = lab();
    prepare(&lab, &["set", "a.txt", "v.txt", "d.txt"]);
    let run = split(&lab, "runs", &["data.train=set/*.bin", "data.val_fraction=0.34"]);
    for (data, is_seen) in [("a.txt", true), ("v.txt", true), ("d.txt", false)] {
        assert_eq!(seen(&lab, &run, &["--data", data]), is_seen, "{data}");
    }
}
