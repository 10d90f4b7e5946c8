//! Data of which a part is missing: while they are prepared or fetched, and after that was killed. And data of which
//! there is more than a set has.

use super::data_prepare::{args, contents, documents, lines, prepare};
use super::fetch::{REPO, entry, fetch, fetching, listed};
use crate::server_support::{Reply, Server};
use crate::support;

use std::fs;
use support::{Lab, ended, shard, spawned, tiny, tokens, wait};

const CHAR: [&str; 8] =
    ["--tokenizer", "char", "--shard-tokens", "600", "--threads", "1", "--val-tokens", "300"];

fn killed(lab: &Lab, out: &str, moment: &str) {
    lab.write("a.jsonl", lines(&documents(60)));
    let mut command = lab.command(args("a.jsonl", out, &CHAR));
    command.env("RUNNER_FAULT", format!("prepare.{moment}"));
    assert_eq!(ended(command).code, None);
}

/// A call that trains on these files.
fn training(train: &str, val: &str) -> Vec<String> {
    let (train, val) = (format!("data.train={train}"), format!("data.val={val}"));
    tiny("runs", &[&train, &val])
}

#[test]
fn an_unfinished_preparation_is_not_trained_on() {
    let lab = Lab::new();
    killed(&lab, "out", "after_state:4");
    let refused = |args: Vec<String>, key: &str| {
        lab.run(args).expect(2).says(&[
            key,
            "is a shard of an unfinished preparation, as `",
            "out/.prepare` shows: wait for its end, or start the same `runner data prepare` again",
        ]);
    };
    refused(training("out/train-*.bin", "data/val.bin"), "data.train");
    refused(training("out/train-000001.bin", "data/val.bin"), "data.train");
    refused(training("data/train.bin", "out/val-*.bin"), "data.val");
    let planned = lab.run([vec!["plan".to_owned()], training("out/train-*.bin", "data/val.bin")].concat());
    assert!(planned.expect(0).stdout.contains("is a shard of an unfinished preparation"), "{planned:?}");
    lab.run(["data", "inspect", "out/train-000001.bin"])
        .expect(0)
        .says(&["warning: `out/train-000001.bin` is a shard of an unfinished preparation"]);
    // a text that lies there is no shard
    lab.write("out/input.txt", "some words ".repeat(200));
    lab.run(tiny("runs", &["data.train=out/input.txt", "data.tokenizer=bytes"])).expect(0);
    fs::remove_file(lab.path("out/input.txt")).expect("removed");
    prepare(&lab, "a.jsonl", "out", &CHAR);
    lab.run(training("out/train-*.bin", "out/val-*.bin")).expect(0);
}

#[test]
fn a_killed_download_is_neither_trained_on_nor_prepared() {
    let lab = Lab::new();
    let files = ["train-1.bin", "train-2.bin"].map(|name| (name, shard(&tokens(4000, 1))));
    let gate = lab.write("gate", "");
    let held = gate.clone();
    let server = Server::start(move |asked, _| {
        match files.iter().find(|(name, _)| asked.path.ends_with(&format!("/resolve/main/{name}"))) {
            Some((name, file)) if *name == "train-2.bin" => {
                Reply::part(file, asked).cut(3000).held(held.clone())
            }
            Some((_, file)) => Reply::part(file, asked),
            None => listed(&files.iter().map(|(name, file)| entry(name, file)).collect::<Vec<_>>()),
        }
    });
    let mut live = spawned(fetching(&lab, &server, &[REPO, "--out", "got", "--jobs", "2"]));
    let parts = || fs::read_dir(lab.path("got/.fetch")).into_iter().flatten().flatten();
    wait("a file and a part", || {
        lab.path("got/train-1.bin").exists()
            && parts().any(|part| part.metadata().is_ok_and(|meta| meta.len() == 3000))
    });
    let by = "got/.fetch` shows: wait for its end, start the same command again, or remove that directory";
    let refused = || {
        lab.run(training("got/train-*.bin", "data/val.bin")).expect(2).says(&["data.train", by]);
    };
    refused();
    assert!(live.kill());
    live.end();
    refused();
    // what is named by itself is there
    lab.run(training("got/train-1.bin", "data/val.bin")).expect(0);
    lab.write("got/a.jsonl", lines(&documents(5)));
    for source in ["got", "got/*.jsonl"] {
        lab.run(args(source, "out", &[])).expect(2).says(&[by]);
    }
    lab.write("b.jsonl", lines(&documents(5)));
    let before = contents(&lab, "got");
    lab.run(args("b.jsonl", "got", &[]))
        .expect(2)
        .says(&["`got` names files of an unfinished `runner data fetch`, as `got/.fetch` shows"]);
    assert_eq!(contents(&lab, "got"), before);
    fs::remove_file(gate).expect("removed");
    fetch(&lab, &server, &[REPO, "--out", "got"]).expect(0);
    lab.run(training("got/train-*.bin", "data/val.bin")).expect(0);
}

/// Files of a hub keep their paths, so they lie below the directory of the download.
#[test]
fn data_of_an_unfinished_download_are_refused_in_the_directories_below_it_too() {
    let lab = Lab::new();
    let text = "some text of which there is more than one piece\n".repeat(40);
    let files =
        ["a/deep/train-1.txt", "a/deep/train-2.txt", "b/train-3.txt"].map(|name| (name, text.clone()));
    let gate = lab.write("gate", "");
    let (held, broken) = (gate.clone(), lab.path("broken"));
    let server = Server::start(move |asked, _| {
        match files.iter().find(|(name, _)| asked.path.ends_with(&format!("/resolve/main/{name}"))) {
            Some((name, _)) if broken.exists() && *name != "a/deep/train-1.txt" => Reply::new(404, ""),
            Some((name, file)) if *name == "a/deep/train-2.txt" => {
                Reply::part(file.as_bytes(), asked).cut(300).held(held.clone())
            }
            Some((_, file)) => Reply::part(file.as_bytes(), asked),
            None => {
                listed(&files.iter().map(|(name, file)| entry(name, file.as_bytes())).collect::<Vec<_>>())
            }
        }
    });
    // another directory beside those of the download is none of its
    lab.write("got/own/mine.txt", &text);
    lab.write("got/b/mine.txt", &text);
    let train = |train: &str| {
        let train = format!("data.train={train}");
        lab.run(tiny("runs", &[&train, "data.tokenizer=bytes", "data.val=[]"]))
    };
    let prepare = |source: &str, out: &str| lab.run(args(source, out, &["--tokenizer", "bytes"]));
    let begun = || lab.path("got/a/deep/train-1.txt").exists();
    let by = "got/.fetch` shows: wait for its end, start the same command again, or remove that directory";
    let refused = || {
        assert!(begun() && !lab.path("got/b/train-3.txt").exists());
        for pattern in ["got/a/deep/*.txt", "got/a/*/*.txt", "got/**/*.txt"] {
            train(pattern).expect(2).says(&["data.train", by]);
        }
        for source in ["got", "got/a", "got/a/deep", "got/a/deep/*.txt", "got/b"] {
            prepare(source, "out").expect(2).says(&[by]);
        }
        prepare("got/own", "got/a/deep")
            .expect(2)
            .says(&["`got/a/deep` names files of an unfinished `runner data fetch`, as `", by]);
        train("got/own/*.txt").expect(0);
    };
    let fetching =
        |what: &str| fetching(&lab, &server, &[what, "--out", "got", "--jobs", "1", "--retries", "0"]);
    let mut live = spawned(fetching(REPO));
    wait("a file", begun);
    refused();
    assert!(live.kill());
    live.end();
    refused();
    // one that fails leaves what shows that files are missing
    let gone = |path: &str| fs::remove_dir_all(lab.path(path)).expect("gone");
    gone("got/a");
    gone("got/.fetch");
    lab.write("broken", "");
    ended(fetching(REPO)).expect(2);
    refused();
    ended(fetching(REPO)).expect(2);
    refused();
    // and so it does where those that are there are of an earlier one
    let first = format!("{REPO}/a/deep/train-1.txt");
    gone("got/.fetch");
    ended(fetching(&first)).expect(0);
    assert!(!lab.path("got/.fetch").exists());
    ended(fetching(REPO)).expect(2);
    refused();
    // the end of another download into the directory says nothing of this one
    ended(fetching(&first)).expect(0);
    refused();
    // not even that of a smaller part of it
    let mut one = fetching(REPO);
    one.args(["--shards", "1"]);
    ended(one).expect(0);
    refused();
    // of which none is there, none is missing
    gone("got/a");
    train("got/b/*.txt").expect(0);
    gone("got/.fetch");
    ended(fetching(&format!("{REPO}/b/*"))).expect(2);
    assert!(!lab.path("got/.fetch").exists());
    for path in ["broken", "gate"] {
        fs::remove_file(lab.path(path)).expect("removed");
    }
    // the end of the whole is that of each part
    fetch(&lab, &server, &[&format!("{REPO}/a/deep/*"), "--out", "got", "--retries", "0"]).expect(1);
    assert!(lab.path("got/.fetch").exists());
    fetch(&lab, &server, &[REPO, "--out", "got"]).expect(0);
    assert!(!lab.path("got/.fetch").exists());
    train("got/**/*.txt").expect(0);
    prepare("got/a", "out").expect(0);
}

#[test]
fn a_directory_of_an_unfinished_download_that_is_whole_is_data() {
    let lab = Lab::new();
    let text = "some text of which there is more than one piece\n".repeat(40);
    let names = ["de/train-1.txt", "de/train-2.txt", "en/train-1.txt", "en/x/train-2.txt"];
    let (broken, moved) = (lab.write("broken", ""), lab.path("moved"));
    let files = text.clone();
    let server = Server::start(move |asked, _| {
        let is_there = |name: &&str| !moved.exists() || *name != "en/x/train-2.txt";
        match names.iter().filter(|name| is_there(name)).find(|name| asked.path.ends_with(**name)) {
            Some(&"en/x/train-2.txt") if broken.exists() => Reply::new(404, ""),
            Some(_) => Reply::part(files.as_bytes(), asked),
            None => {
                let there = names.into_iter().filter(is_there);
                listed(&there.map(|name| entry(name, files.as_bytes())).collect::<Vec<_>>())
            }
        }
    });
    let fetch = |more: &[&str]| {
        let all = [&[REPO, "--out", "got", "--jobs", "1", "--retries", "0"], more].concat();
        ended(fetching(&lab, &server, &all))
    };
    let train = |train: &str| {
        let train = format!("data.train={train}");
        lab.run(tiny("runs", &[&train, "data.tokenizer=bytes", "data.val=[]"]))
    };
    let prepare = |source: &str, out: &str| lab.run(args(source, out, &["--tokenizer", "bytes"]));
    let by = "got/.fetch` shows: wait for its end";
    fetch(&[]).expect(2);
    assert!(lab.path("got/en/train-1.txt").exists() && !lab.path("got/en/x/train-2.txt").exists());
    for pattern in ["got/en/*.txt", "got/*/*.txt", "got/**/train-1.txt"] {
        train(pattern).expect(2).says(&["data.train", by]);
    }
    prepare("got", "out").expect(2).says(&[by]);
    train("got/de/*.txt").expect(0);
    prepare("got/de", "out").expect(0);
    // nothing is put among what is to come, even where nothing has yet
    fs::remove_dir_all(lab.path("got/en")).expect("removed");
    for out in ["got/en", "got/en/x", "got"] {
        prepare("got/de", out).expect(2).says(&[by]);
    }
    assert!(!lab.path("got/en").exists());
    // a part that has come leaves the rest missing, and says so
    fetch(&["--shards", "3"])
        .expect(0)
        .says(&["files of another download are missing there still", "got/.fetch`"]);
    train("got/en/*.txt").expect(2).says(&[by]);
    // what the hub has no longer is not missing any more
    lab.write("moved", "");
    fetch(&[]).expect(0).says(&["3 files", "all there before"]);
    assert!(!lab.path("got/.fetch").exists());
    train("got/en/*.txt").expect(0);
}

#[test]
fn what_has_come_of_a_file_shows_that_its_download_has_not_ended() {
    let lab = Lab::new();
    let names = ["a-1.bin", "a-2.bin", "b-1.bin"];
    let file = shard(&tokens(4000, 1));
    let (broken, moved) = (lab.path("broken"), lab.path("moved"));
    let (is_broken, is_moved) = (broken.clone(), moved.clone());
    let server = Server::start(move |asked, _| {
        let is_there = |name: &&str| !is_moved.exists() || *name != "a-2.bin";
        match names.iter().filter(|name| is_there(name)).find(|name| asked.path.ends_with(**name)) {
            Some(&"a-2.bin") if is_broken.exists() => Reply::part(&file, asked).cut(3000),
            Some(_) => Reply::part(&file, asked),
            None => {
                let there = names.into_iter().filter(is_there);
                listed(&there.map(|name| entry(name, &file)).collect::<Vec<_>>())
            }
        }
    });
    let fetch =
        |what: &str| ended(fetching(&lab, &server, &[what, "--out", "got", "--jobs", "1", "--retries", "0"]));
    let train = |train: &str| lab.run(training(train, "data/val.bin"));
    let by = "got/.fetch` shows: wait for its end";
    let cut = || {
        fs::write(&broken, "").expect("a file");
        fetch(&format!("{REPO}/a-2.bin")).expect(1);
        let parts = fs::read_dir(lab.path("got/.fetch")).expect("a directory");
        let is_part = |name: &std::ffi::OsStr| name.to_string_lossy().ends_with(".part");
        assert!(parts.flatten().any(|part| is_part(&part.file_name())));
        fs::remove_file(&broken).expect("removed");
    };
    // the end of another download says so, and takes nothing of it
    cut();
    fetch(&format!("{REPO}/b-1.bin")).expect(0).says(&["files of another download are missing there still"]);
    train("got/b-*.bin").expect(2).says(&[by]);
    fetch(&format!("{REPO}/a-2.bin")).expect(0);
    assert!(!lab.path("got/.fetch").exists());
    train("got/*.bin").expect(0);
    // what the hub has no longer is no part of anything
    fs::remove_dir_all(lab.path("got")).expect("removed");
    fs::write(&broken, "").expect("a file");
    fetch(REPO).expect(1);
    fs::write(&moved, "").expect("a file");
    fetch(REPO).expect(0);
    assert!(!lab.path("got/.fetch").exists());
    train("got/*.bin").expect(0);
}

#[test]
fn nothing_is_fetched_into_an_unfinished_preparation() {
    let lab = Lab::new();
    let file = shard(&tokens(4000, 1));
    let server = Server::start(move |asked, _| match asked.path.starts_with("/api") {
        true => listed(&[entry("train-000003.bin", &file)]),
        false => Reply::part(&file, asked),
    });
    for moment in ["after_state:1", "after_state:3"] {
        killed(&lab, "out", moment);
        let before = contents(&lab, "out");
        fetch(&lab, &server, &[REPO, "--out", "out"]).expect(2).says(&[
            "`out` holds an unfinished preparation, as `out/.prepare` shows: finish it with the same `runner data \
             prepare`",
        ]);
        assert_eq!(contents(&lab, "out"), before);
        prepare(&lab, "a.jsonl", "out", &CHAR);
        fs::remove_dir_all(lab.path("out")).expect("removed");
    }
}

#[test]
fn a_shard_beside_a_set_that_does_not_list_it_is_told_of() {
    let lab = Lab::new();
    lab.write("a.jsonl", lines(&documents(60)));
    prepare(&lab, "a.jsonl", "out", &CHAR);
    let asked = |more: &[&str]| {
        let args =
            [more.iter().map(ToString::to_string).collect(), training("out/train-*.bin", "out/val-*.bin")]
                .concat();
        let ended = lab.run(args);
        ended.expect(0);
        ended.stderr
    };
    for more in [&["plan"][..], &[]] {
        assert!(!asked(more).contains("warning: out"));
    }
    fs::remove_dir_all(lab.path("runs")).expect("removed");
    let card = fs::read(lab.path("out/train-000001.bin")).expect("a shard");
    for (name, says) in [
        (
            "train-000050.bin",
            "warning: out/train-000050.bin lies beside out/dataset.json, which does not list it",
        ),
        ("train-000051.bin", "warning: out/train-000050.bin and 1 more lies beside"),
    ] {
        lab.write(&format!("out/{name}"), &card);
        for more in [&["plan"][..], &[]] {
            let told = asked(more);
            assert!(told.contains(says), "{told}");
        }
    }
    // and one that it lists and has lost, as where a copy broke off
    ["train-000050.bin", "train-000051.bin"]
        .iter()
        .for_each(|name| fs::remove_file(lab.path("out").join(name)).expect("removed"));
    // and one that is another now, of which nobody knows what is in it
    lab.write("b.jsonl", lines(&documents(60).into_iter().rev().collect::<Vec<_>>()));
    prepare(&lab, "b.jsonl", "other", &CHAR);
    fs::copy(lab.path("other/train-000001.bin"), lab.path("out/train-000001.bin")).expect("copied");
    for more in [&["plan"][..], &[]] {
        let told = asked(more);
        let says = "warning: out/train-000001.bin holds other tokens than out/dataset.json lists";
        assert!(told.contains(says), "{told}");
    }
    // one that does not say what is in it is another maker's
    let mut silent = card.clone();
    silent[12..44].fill(0);
    lab.write("out/train-000001.bin", &silent);
    assert!(
        asked(&["plan"])
            .contains("warning: out/train-000001.bin holds other tokens than out/dataset.json lists")
    );
    // one that says it of other tokens than it holds is damaged, as where a copy broke off
    let mut damaged = card.clone();
    damaged[1100..1300].fill(0);
    lab.write("out/train-000001.bin", &damaged);
    let shard = "out/train-000001.bin";
    let train = || training("out/train-*.bin", "out/val-*.bin");
    let planned = lab.run([vec!["plan".to_owned()], train()].concat());
    assert!(planned.expect(0).stdout.contains(&format!("`{shard}` is damaged")), "{}", planned.stdout);
    for args in [train(), ["data", "inspect", shard].map(str::to_owned).to_vec()] {
        let said = ["train-000001.bin` is damaged", "blake3 of other tokens", "prepare the set again"];
        lab.run(args).expect(2).says(&said);
    }
    lab.write("out/train-000001.bin", &card);
    fs::rename(lab.path("out/train-000001.bin"), lab.path("gone")).expect("moved");
    for more in [&["plan"][..], &[]] {
        let told = asked(more);
        let says = "warning: out/train-000001.bin is not there, although out/dataset.json lists it";
        assert!(told.contains(says), "{told}");
    }
}

#[test]
fn what_is_hidden_is_no_data_unless_it_is_named() {
    let lab = Lab::new();
    lab.shard("set/train-1.bin", &tokens(400, 1));
    lab.write("set/.tmp-train-2.bin-77-1", "half");
    lab.write("set/._train-1.bin", "of another system");
    lab.run(training("set/*train-*", "data/val.bin")).expect(0);
    lab.write("text/a.txt", "some words");
    lab.write("text/.checkpoints/a-checkpoint.txt", "some words");
    prepare(&lab, "text/**/*.txt", "out", &[]).says(&["1 document,"]);
    prepare(&lab, "text/.checkpoints/*.txt", "hidden", &[]).says(&["1 document,"]);
    // a link that leads nowhere matters where its name says that it is text
    std::os::unix::fs::symlink("nowhere", lab.path("text/readme.pdf")).expect("a link");
    prepare(&lab, "text", "linked", &[]).says(&["1 document,"]);
    std::os::unix::fs::symlink("nowhere", lab.path("text/b.txt")).expect("a link");
    lab.run(args("text", "gone", &[])).expect(2).says(&["`text/b.txt` does not exist"]);
}

/// Another revision of a file has another list and another part, and the same name.
#[test]
fn a_part_of_a_file_that_is_there_keeps_no_download_unfinished() {
    let lab = Lab::new();
    let [first, second] = [1, 2].map(|seed| shard(&tokens(4000, seed)));
    let server = Server::start(move |asked, _| {
        let is_second = asked.path.contains("v2");
        let file = if is_second { &second } else { &first };
        match asked.path.starts_with("/api") {
            true => listed(&["de/0.bin", "de/1.bin"].map(|name| entry(name, file))),
            false if is_second => Reply::part(file, asked),
            false if asked.path.ends_with("de/1.bin") => Reply::part(file, asked).cut(3000),
            false => Reply::part(file, asked),
        }
    });
    let fetch =
        |what: &str| ended(fetching(&lab, &server, &[what, "--out", "got", "--jobs", "1", "--retries", "0"]));
    let train = || lab.run(training("got/de/*.bin", "data/val.bin"));
    // one that is whole, and a part of the next
    fetch(&format!("{REPO}/de/0.bin")).expect(0);
    train().expect(0);
    fetch(&format!("{REPO}/de/1.bin")).expect(1);
    assert!(!lab.path("got/de/1.bin").exists());
    train().expect(2).says(&["got/.fetch` shows: wait for its end"]);
    fetch(&format!("{REPO}@v2/de/1.bin")).expect(0);
    assert!(!lab.path("got/.fetch").exists());
    train().expect(0);
}
