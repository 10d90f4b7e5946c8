//! What lies around a run: a repository and encoded texts, with pipes and devices in the place of files.

use crate::strange_files::{pipe, run};
use crate::support;

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use support::{Lab, ended, tiny};

#[test]
fn a_pipe_among_the_files_of_a_repository_does_not_hold_up_a_run() {
    let lab = Lab::new();
    let made = std::process::Command::new("git").args(["init", "-q"]).arg(lab.dir()).status();
    assert!(made.expect("git is there").success());
    let config = lab.path(".git/config");
    fs::remove_file(&config).expect("it was made");
    pipe(&config);
    run(&lab, tiny("runs", &["schedule.max_steps=3", "schedule.warmup_steps=0"])).expect(0);
    let record = support::record(&lab.only_run("runs"));
    assert!(record["git_commit"].is_null(), "{record}");
}

#[test]
fn a_process_that_git_leaves_behind_does_not_hold_up_a_run() {
    let lab = Lab::new();
    let commit = "0123456789abcdef0123456789abcdef01234567";
    lab.write("bin/git", format!("#!/bin/sh\necho {commit}\nsleep 600 &\necho $! > left\n"));
    fs::set_permissions(lab.path("bin/git"), fs::Permissions::from_mode(0o755)).expect("executable");
    let path = std::env::var("PATH").expect("a path");
    let mut command = lab.command(tiny("runs", &["schedule.max_steps=3", "schedule.warmup_steps=0"]));
    command.env("PATH", format!("{}:{path}", lab.path("bin").display()));
    ended(command).expect(0);
    let left = fs::read_to_string(lab.path("left")).expect("a number");
    let ended = std::process::Command::new("kill").arg(left.trim()).status().expect("kill is there");
    assert!(ended.success(), "the process was there until the run's end");
    // git has its time, which is short for a busy machine
    let named = support::record(&lab.only_run("runs"))["git_commit"].clone();
    assert!(named.is_null() || named == commit, "{named}");
}

#[test]
fn what_is_no_file_among_encoded_texts_counts_as_nothing() {
    let lab = Lab::new();
    lab.write("text.txt", "some words, and some more of them\n".repeat(100));
    let sets =
        ["data.train=text.txt", "data.tokenizer=bytes", "schedule.max_steps=3", "schedule.warmup_steps=0"];
    let train = |seed: &str| run(&lab, tiny("runs", &[&sets[..], &[seed]].concat())).expect(0).stdout.clone();
    train("seed=1");
    let cached = || {
        let entries = fs::read_dir(lab.path("runs/.cache")).expect("a directory");
        let mut paths = entries.map(|entry| entry.expect("an entry").path());
        paths.find(|path| path.extension().is_some_and(|end| end == "bin")).expect("an encoded text")
    };
    for (seed, by) in ["a pipe", "zeros without end", "a directory"].iter().enumerate() {
        let path = cached();
        fs::remove_file(&path).expect("removed");
        match *by {
            "a pipe" => pipe(&path),
            "a directory" => fs::create_dir(&path).expect("a directory"),
            _ => symlink("/dev/zero", &path).expect("a link"),
        }
        train(&format!("seed={}", seed + 2));
        assert!(cached().symlink_metadata().expect("there").is_file(), "{by} was replaced");
    }
}

#[test]
fn encoded_texts_are_kept_elsewhere_where_the_runs_have_no_place_of_ones_own_for_them() {
    let lab = Lab::new();
    lab.write("text.txt", "some words, and some more of them\n".repeat(100));
    let sets =
        ["data.train=text.txt", "data.tokenizer=bytes", "schedule.max_steps=3", "schedule.warmup_steps=0"];
    let cache = lab.path("runs/.cache");
    fs::create_dir(lab.path("runs")).expect("a directory");
    fs::write(&cache, "no directory").expect("a file");
    run(&lab, tiny("runs", &sets)).expect(0);
    assert_eq!(fs::read_to_string(&cache).expect("as it was"), "no directory");
    fs::remove_file(&cache).expect("removed");
    // what another user has put there might be any tokens
    fs::create_dir(&cache).expect("a directory");
    if std::os::unix::fs::chown(&cache, Some(12345), None).is_ok() {
        run(&lab, tiny("runs", &[&sets[..], &["seed=2"]].concat())).expect(0);
        assert!(fs::read_dir(&cache).expect("a directory").next().is_none());
    }
}
