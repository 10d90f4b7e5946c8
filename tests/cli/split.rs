//! `data.val_fraction` through the program: what is trained on, what is validated on, and what is refused.

use crate::support;

use std::fs;
use support::{Lab, essence, record, seen, shard, tiny, tokens, train_csv, val_csv};

/// `tiny.toml` without validation data of its own.
const SPLIT: &str = "data.val=[]";

#[test]
fn a_split_trains_and_validates_as_two_files_do() {
    let lab = Lab::new();
    let all = tokens(4000, 1);
    let (head, tail) = all.split_at(3200);
    lab.write("data/head.bin", shard(head));
    lab.write("data/tail.bin", shard(tail));
    let by_hand = lab.train(&["data.train=data/head.bin", "data.val=data/tail.bin"]);
    let split = lab.train(&[SPLIT, "data.val_fraction=0.2"]);
    assert_ne!(split.file_name(), by_hand.file_name(), "another way to say it is another experiment");
    for log in ["loss", "grad_norm"] {
        assert_eq!(support::column(&split, log), support::column(&by_hand, log));
    }
    assert_eq!(val_csv(&split).numbers("val_loss"), val_csv(&by_hand).numbers("val_loss"));
    let entropy = |run| record(run)["results"]["val_unigram_entropy"].as_f64().expect("a number");
    assert_eq!(entropy(&split), entropy(&by_hand), "of the validation part alone");
    assert_eq!(train_csv(&split).numbers("epoch"), train_csv(&by_hand).numbers("epoch"));
    // the run says so itself
    let recipe = fs::read_to_string(split.join("recipe.toml")).expect("read");
    assert!(recipe.contains("val_fraction = 0.2\n"), "{recipe}");
    let again = lab.run([split.join("recipe.toml").to_str().expect("UTF-8")]);
    again.expect(0).says(&["already finished"]);
}

#[test]
fn interrupted_or_on_several_ranks_it_is_the_same_split() {
    let lab = Lab::new();
    let sets = [SPLIT, "data.val_fraction=0.15", "schedule.max_steps=9"];
    let whole = lab.train_in("whole", &sets);
    let crashed = lab.crash("cut", &sets, "csv.before_row:7");
    lab.run(tiny("cut", &sets)).expect(0);
    assert!(essence(&crashed) == essence(&whole));
    let ranks = [&sets[..], &["batch.world_size=2"]].concat();
    let ranks = lab.train_in("ranks", &ranks);
    let (one, two) = (val_csv(&whole).numbers("val_loss"), val_csv(&ranks).numbers("val_loss"));
    assert!(
        one.len() == two.len() && one.iter().zip(&two).all(|(a, b)| (a - b).abs() < 1e-4),
        "{one:?} {two:?}"
    );
    // another fraction is another run, and a resumed one keeps its own
    assert_ne!(lab.train_in("whole", &[SPLIT, "data.val_fraction=0.16", "schedule.max_steps=9"]), whole);
    let run = whole.display().to_string();
    lab.run(["--resume", &run, "data.val_fraction=0.3"]).expect(2).says(&["data.val_fraction (0.15 -> 0.3)"]);
}

#[test]
fn texts_and_built_in_texts_are_split_too() {
    let lab = Lab::new();
    let vocab = "model.vocab_size=50257";
    for train in ["data.train=builtin:lipsum:words=2000", "data.train=latin.txt"] {
        lab.write("latin.txt", "Lorem ipsum dolor sit amet, consectetur adipiscing elit.\n".repeat(60));
        let run = lab.train(&[train, SPLIT, "data.val_fraction=0.25", vocab, "schedule.max_steps=4"]);
        assert!(val_csv(&run).numbers("val_loss").len() >= 2);
    }
}

#[test]
fn the_plan_says_both_parts_and_small_ones_get_a_lint() {
    let lab = Lab::new();
    let plan = |words: &[&str]| {
        let ended = lab.run([&["plan", "tiny.toml", SPLIT][..], words].concat());
        ended.expect(0);
        ended.stdout
    };
    // (3600 - 1) / 32 and (400 - 1) / 32
    let text = plan(&["data.val_fraction=0.1"]);
    for part in [
        "3,600 tokens for training in 112 rows",
        "the last 0.1 of data.train's tokens are kept for validation",
        "validation on 8 of 12 rows every 5 steps",
    ] {
        assert!(text.contains(part), "no `{part}` in\n{text}");
    }
    assert!(!text.contains("lint small-val") && !text.contains("lint val-overlap"), "{text}");
    let text = plan(&["data.val_fraction=0.02"]);
    let remark =
        "lint small-val: data.val_fraction = 0.02 leaves 2 rows for validation, fewer than the 8 of a step";
    assert!(text.contains(remark) && text.contains("data.val_fraction = 0.065 leaves about 8"), "{text}");
    // the same file twice: its end is trained on as well, or its beginning validated on
    for fraction in ["data.val_fraction=0.1", "data.val_fraction=0.7"] {
        let text = plan(&[fraction, "data.train=[\"data/train.bin\", \"data/train.bin\"]"]);
        assert!(text.contains("lint val-overlap"), "{fraction}: {text}");
    }
}

#[test]
fn a_validation_text_among_the_sources_of_prepared_shards_is_told_of() {
    let lab = Lab::new();
    lab.write("a.txt", "so she sang, so he sang; so they sang of it all\n".repeat(60));
    lab.write("v.txt", "so they sang of it all, so he sang\n".repeat(40));
    let prepare = ["data", "prepare", "a.txt", "v.txt", "--tokenizer", "bytes", "--shard-tokens", "2000"];
    lab.run([&prepare[..], &["--out", "set"]].concat()).expect(0);
    let sets = |shards| [format!("data.train={shards}"), "data.val=v.txt".to_owned()];
    // the second has the end of the one text and the beginning of the other
    for (shards, is_told) in
        [("set/*.bin", true), ("set/train-000001.bin", false), ("set/train-000002.bin", true)]
    {
        let sets = sets(shards);
        // all of the validation data are read
        let run = lab.train(&[&sets[0], &sets[1], "eval.tokens=100000"]);
        assert_eq!(record(&run).get("trains_on_validation").is_some(), is_told, "{shards}");
        assert_eq!(seen(&lab, &run, &[]), is_told, "{shards}");
        assert_eq!(seen(&lab, &run, &["--data", "v.txt"]), is_told, "{shards}");
        let planned = lab.run([&["plan", "tiny.toml"], &[sets[0].as_str(), sets[1].as_str()][..]].concat());
        assert_eq!(planned.expect(0).stdout.contains("lint val-overlap"), is_told, "{}", planned.stdout);
    }
}

#[test]
fn validation_shards_of_a_text_that_is_trained_on_are_told_of() {
    let lab = Lab::new();
    for (name, text) in
        [("a", "so she sang, so he sang; so they sang of it all\n"), ("v", "of it all he sang\n")]
    {
        lab.write(&format!("{name}.txt"), text.repeat(80));
    }
    let prepare = |args: &[&str]| {
        let usual = ["data", "prepare", "--tokenizer", "bytes", "--out"];
        lab.run([&usual[..], args].concat()).expect(0);
    };
    prepare(&["whole", "a.txt"]);
    prepare(&["split", "a.txt", "--val-fraction", "0.3"]);
    prepare(&["other", "v.txt"]);
    // all of the one text and the beginning of the other
    prepare(&["two", "v.txt", "a.txt", "--val-fraction", "0.3"]);
    prepare(&["both", "v.txt", "a.txt"]);
    for (train, val, is_told) in [
        ("a.txt", "whole/*.bin", true),
        ("a.txt", "split/val-*.bin", true),
        ("whole/*.bin", "split/val-*.bin", true),
        ("split/train-*.bin", "split/val-*.bin", false),
        ("a.txt", "other/*.bin", false),
        ("v.txt", "two/val-*.bin", false),
        ("two/val-*.bin", "v.txt", false),
        ("two/train-*.bin", "a.txt", true),
        ("two/train-*.bin", "other/*.bin", true),
        ("two/train-*.bin", "split/val-*.bin", false),
        ("[\"a.txt\", \"v.txt\"]", "two/val-*.bin", true),
        ("two/train-*.bin", "[\"a.txt\", \"v.txt\"]", true),
        ("both/train-*.bin", "two/val-*.bin", true),
        ("split/train-*.bin", "a.txt", true),
        ("split/train-*.bin", "both/train-*.bin", true),
        ("two/train-*.bin", "whole/train-*.bin", true),
    ] {
        let sets = [format!("data.train={train}"), format!("data.val={val}")];
        // all of the validation data are read
        let run = lab.train(&[&sets[0], &sets[1], "eval.tokens=100000"]);
        assert_eq!(record(&run).get("trains_on_validation").is_some(), is_told, "{train} {val}");
        assert_eq!(seen(&lab, &run, &[]), is_told, "{train} {val}");
        if !val.starts_with('[') {
            assert_eq!(seen(&lab, &run, &["--data", val]), is_told, "{train} {val}");
        }
    }
}

/// Which of the shards of a text have what is trained on is not known where that is only some of it.
#[test]
fn shards_are_named_as_far_as_is_certain_of_them() {
    let lab = Lab::new();
    lab.write("a.txt", "so she sang, so he sang; so they sang of it all\n".repeat(80));
    for (out, tokens) in [("halves", "1920"), ("thirds", "1280")] {
        let prepare =
            ["data", "prepare", "a.txt", "--tokenizer", "bytes", "--out", out, "--shard-tokens", tokens];
        lab.run(prepare).expect(0);
    }
    for (train, says) in [
        ("halves/train-000002.bin", "among the training data: some of thirds/train-000001.bin and 2 more"),
        ("halves/*.bin", "among the training data: thirds/train-000001.bin and 2 more"),
        ("thirds/train-000002.bin", "among the training data: thirds/train-000002.bin\n"),
    ] {
        let planned = lab.run(["plan", "tiny.toml", &format!("data.train={train}"), "data.val=thirds/*.bin"]);
        assert!(planned.expect(0).stdout.contains(says), "{train}: {}", planned.stdout);
    }
}

/// What is said to be known to have been trained on is.
#[test]
fn what_was_set_aside_of_a_text_is_not_taken_for_seen() {
    let lab = Lab::new();
    lab.write("a.txt", "so she sang, so he sang; so they sang of it all\n".repeat(60));
    lab.write("b.txt", "of it all he sang, and of her he sang the more!\n".repeat(60));
    let prepare = |args: &[&str]| {
        let usual = ["data", "prepare", "--tokenizer", "bytes", "--out"];
        lab.run([&usual[..], args].concat()).expect(0);
    };
    prepare(&["part", "a.txt", "--val-fraction", "0.1"]);
    prepare(&["both", "a.txt", "b.txt", "--val-fraction", "0.5"]);
    prepare(&["limited", "a.txt", "b.txt", "--limit-tokens", "2000"]);
    let bytes = "data.tokenizer=bytes";
    let split = |runs: &str, sets: &[&str]| {
        let args = tiny(runs, &[&[bytes, "data.train=a.txt", "data.val_fraction=0.1"], sets].concat());
        lab.run_of(lab.run(args.into_iter().chain(["--unset", "data.val"].map(str::to_owned))).expect(0))
    };
    let run = split("runs", &[]);
    for (data, is_seen) in [("a.txt", true), ("part/train-*.bin", false), ("part/val-*.bin", false)] {
        assert_eq!(seen(&lab, &run, &["--data", data]), is_seen, "{data}");
    }
    assert!(!seen(&lab, &run, &[]));
    for (train, data, is_seen) in [
        ("both/train-*.bin", "b.txt", false),
        ("both/train-*.bin", "both/train-*.bin", true),
        ("limited/*.bin", "b.txt", false),
        ("a.txt", "both/val-*.bin", false),
        ("a.txt", "both/train-*.bin", true),
    ] {
        let run = lab.train_in("others", &[bytes, &format!("data.train={train}"), "data.val=[]"]);
        assert_eq!(seen(&lab, &run, &["--data", data]), is_seen, "{train} {data}");
    }
    // of several files, those that are read
    let two = "data.val=[\"a.txt\", \"b.txt\"]";
    let run = lab.train_in("two", &[bytes, "data.train=b.txt", two, "eval.tokens=1000"]);
    assert_eq!(record(&run)["trains_on_validation"], true);
    for (args, is_seen) in [
        (&["--data", "a.txt", "b.txt"][..], true),
        (&["--data", "a.txt", "b.txt", "--tokens", "1000"], false),
        (&["--data", "b.txt", "a.txt", "--tokens", "1000"], true),
        (&[], false),
        (&["--tokens", "5000"], true),
    ] {
        assert_eq!(seen(&lab, &run, args), is_seen, "{args:?}");
    }
    // what the weights have seen whole, in one of several files
    let trunk = lab.train_in("trunks", &[bytes, "data.train=[\"b.txt\", \"a.txt\"]", "data.val=[]"]);
    let child =
        split("children", &[&format!("model.init_from={{run=\"{}\",optimizer=false}}", trunk.display())]);
    assert_eq!(record(&child)["trained_before"], "validation_data");
    assert!(seen(&lab, &child, &[]));
}

#[test]
fn what_makes_no_split_is_refused_at_its_key() {
    let lab = Lab::new();
    for (sets, parts) in [
        (
            &["data.val_fraction=0.1"][..],
            &["`data.val_fraction` is 0.1, but `data.val` names validation data already", "--unset data.val"]
                [..],
        ),
        (
            &[SPLIT, "data.val_fraction=0"],
            &["`data.val_fraction` is 0, out of range", "greater than 0 and less than 1"],
        ),
        (&[SPLIT, "data.val_fraction=1"], &["out of range"]),
        (&[SPLIT, "data.val_fraction=10%"], &["must be a number"]),
        (
            &[SPLIT, "data.val_fraction=0.005"],
            &["data.val_fraction: the last 20 of 4000 tokens are too few: a row of block_size 32 needs 33"],
        ),
        (&[SPLIT, "data.val_fraction=0.995"], &["the first 20 of 4000 tokens are too few"]),
        (
            &[SPLIT, "eval.every=3"],
            &["`eval.every` has no effect with data.val = []", "name validation data"],
        ),
    ] {
        let ended = lab.run(tiny("runs", sets));
        ended.expect(2).says(parts);
        assert!(lab.runs("runs").is_empty());
    }
    // with a split, validation has its effect
    lab.run(["plan", "tiny.toml", SPLIT, "data.val_fraction=0.1", "eval.every=3"]).expect(0);
}
