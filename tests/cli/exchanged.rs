//! Directories that somebody exchanges for links while the program writes in them: nothing is written or deleted
//! elsewhere.

use crate::fetch::{REPO, entry, fetch, listed};
use crate::server_support::{Reply, Server};
use crate::support;

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use support::{Lab, everything, tiny};

/// Puts a link to `victim` in the place of a directory, which keeps what it has under another name.
fn exchange(dir: &Path, victim: &Path) {
    fs::rename(dir, dir.with_extension("mine")).expect("moved");
    symlink(victim, dir).expect("a link");
}

#[test]
fn checkpoints_are_written_and_deleted_where_they_were() {
    let keep = ["checkpoint.keep=1", "checkpoint.background=false"];
    let lab = Lab::new();
    let victim =
        lab.crash("victim", &["checkpoint.background=false"], "csv.before_row:11").join("checkpoints");
    let before = everything(&victim);
    for point in [
        "checkpoint.after_model:2",
        "checkpoint.before_rename:2",
        "checkpoint.after_rename:2",
        "rotate.before_delete",
        "rotate.mid_delete",
    ] {
        let runs = point.replace(['.', ':'], "-");
        let command = lab.command(tiny(&runs, &keep));
        let (live, gate) = lab.held(command, point);
        gate.reached();
        let run = lab.only_run(&runs);
        exchange(&run.join("checkpoints"), &victim);
        gate.open();
        live.end().expect(1).says(&["checkpoints", "symbolic link"]);
        assert!(everything(&victim) == before, "{point}");
        let mine = fs::read_dir(run.join("checkpoints.mine")).expect("a directory").count();
        assert!(mine >= 1, "{point}: what was written is where it was");
    }
}

/// Puts another directory in the place of one, which keeps what it has under another name.
fn replace(dir: &Path, other: &Path) {
    fs::rename(dir, dir.with_extension("mine")).expect("moved");
    fs::rename(other, dir).expect("moved");
}

#[test]
fn another_directory_in_the_place_of_checkpoints_is_left_alone() {
    for background in [false, true] {
        let lab = Lab::new();
        lab.write("other/step-00000001/x", "theirs");
        lab.write("other/.tmp-a/x", "theirs");
        let keep = ["checkpoint.keep=1", &format!("checkpoint.background={background}")];
        let (live, gate) = lab.held(lab.command(tiny("runs", &keep)), "csv.before_row:11");
        gate.reached();
        support::wait("a checkpoint", || !support::checkpoints(&lab.only_run("runs")).is_empty());
        let place = lab.only_run("runs").join("checkpoints");
        replace(&place, &lab.path("other"));
        let before = everything(&place);
        gate.open();
        live.end().expect(1).says(&["checkpoints", "another directory was put in its place"]);
        assert!(everything(&place) == before, "{background}");
    }
}

#[test]
fn what_takes_the_place_of_what_is_unfinished_is_not_removed() {
    let lab = Lab::new();
    lab.write("text.jsonl", "{\"text\": \"one document\"}\n");
    lab.write("other/sub/x", "theirs");
    let (live, gate) =
        lab.held(lab.command(["data", "prepare", "text.jsonl", "--out", "out"]), "prepare.before_card");
    gate.reached();
    replace(&lab.path("out/.prepare"), &lab.path("other"));
    gate.open();
    live.end().expect(0);
    assert_eq!(fs::read_to_string(lab.path("out/.prepare/sub/x")).expect("a file"), "theirs");

    lab.write("other/sub/x", "theirs");
    let (dir, other) = (lab.path("got/.fetch"), lab.path("other"));
    let server = Server::start(move |asked, _| {
        if asked.path.starts_with("/api") {
            return listed(&[entry("x.bin", b"data")]);
        }
        replace(&dir, &other);
        Reply::part(b"data", asked)
    });
    fetch(&lab, &server, &[REPO, "--out", "got"]).expect(0);
    assert_eq!(fs::read_to_string(lab.path("got/.fetch/sub/x")).expect("a file"), "theirs");
}

#[test]
fn a_download_whose_directory_is_exchanged_says_so() {
    let lab = Lab::new();
    fs::create_dir(lab.path("other")).expect("a directory");
    let (dir, other) = (lab.path("got"), lab.path("other"));
    let server = Server::start(move |asked, _| {
        if asked.path.starts_with("/api") {
            return listed(&[entry("x.bin", b"data")]);
        }
        replace(&dir, &other);
        Reply::part(b"data", asked)
    });
    fetch(&lab, &server, &[REPO, "--out", "got"]).expect(1).says(&["moved or replaced meanwhile"]);
    assert!(everything(&lab.path("got")).is_empty());
}

#[test]
fn a_run_whose_place_another_one_takes_is_removed_and_the_other_is_not() {
    let lab = Lab::new();
    let run = lab.train(&[]);
    let other = lab.crash("others", &[], "csv.before_row:9");
    let before = everything(&other);
    let path = run.display().to_string();
    let (live, gate) = lab.held(lab.command(["list", &path, "--remove", "--yes"]), "remove.before_delete");
    gate.reached();
    fs::rename(&run, lab.path("aside")).expect("moved");
    fs::rename(&other, &run).expect("moved");
    gate.open();
    live.end().expect(1).says(&["moved, removed or replaced"]);
    assert!(everything(&run) == before, "it lies where it was put");
    assert!(lab.path("aside/train.csv").exists());
}

#[test]
fn a_preparation_keeps_what_is_unfinished_where_it_was() {
    for point in
        ["prepare.before_run", "prepare.before_state:2", "prepare.before_shard", "prepare.before_card"]
    {
        let lab = Lab::new();
        let text: String = (0..400).map(|n| format!("{{\"text\": \"document {n}\"}}\n")).collect();
        lab.write("text.jsonl", &text);
        lab.write("victim/run-000000", "theirs");
        lab.write("victim/state.json", "theirs");
        let args = [
            "data",
            "prepare",
            "text.jsonl",
            "--out",
            "out",
            "--shuffle-seed",
            "1",
            "--shard-tokens",
            "1000",
        ];
        let (live, gate) = lab.held(lab.command(args), point);
        gate.reached();
        exchange(&lab.path("out/.prepare"), &lab.path("victim"));
        gate.open();
        live.end().expect(0);
        assert_eq!(everything(&lab.path("victim")).len(), 2, "{point}");
        assert_eq!(fs::read_to_string(lab.path("victim/state.json")).expect("a file"), "theirs", "{point}");
        assert!(lab.path("out/dataset.json").exists());
    }
}

#[test]
fn a_preparation_whose_directory_is_exchanged_says_so() {
    let lab = Lab::new();
    lab.write("text.jsonl", "{\"text\": \"one document\"}\n");
    fs::create_dir(lab.path("victim")).expect("a directory");
    let args = ["data", "prepare", "text.jsonl", "--out", "out"];
    let (live, gate) = lab.held(lab.command(args), "prepare.before_shard");
    gate.reached();
    exchange(&lab.path("out"), &lab.path("victim"));
    gate.open();
    live.end().expect(1).says(&["moved or replaced meanwhile"]);
    assert!(everything(&lab.path("victim")).is_empty());
}

#[test]
fn what_is_fetched_lies_where_it_was_begun() {
    for place in ["got/.fetch", "got/sub"] {
        let lab = Lab::new();
        fs::create_dir(lab.path("victim")).expect("a directory");
        fs::create_dir_all(lab.path("got/sub")).expect("a directory");
        let (dir, victim) = (lab.path(place), lab.path("victim"));
        let (tries, stayed_out) = (AtomicUsize::new(0), Arc::new(AtomicBool::new(false)));
        let stays_out = Arc::clone(&stayed_out);
        let server = Server::start(move |asked, _| {
            if asked.path.starts_with("/api") {
                return listed(&[entry("sub/x.bin", b"theirs")]);
            }
            // the second try goes on from what has come by the first
            if tries.fetch_add(1, Ordering::SeqCst) == 0 {
                exchange(&dir, &victim);
                return Reply::part(b"theirs", asked).cut(3);
            }
            stays_out.store(asked.first() == Some(3) && everything(&victim).is_empty(), Ordering::SeqCst);
            Reply::part(b"theirs", asked)
        });
        let said = fetch(&lab, &server, &[REPO, "--out", "got"]);
        match place {
            "got/sub" => said.expect(1).says(&["which leads elsewhere"]),
            _ => said.expect(0),
        };
        assert!(stayed_out.load(Ordering::SeqCst), "{place}");
        assert!(everything(&lab.path("victim")).is_empty(), "{place}");
    }
}
