//! `runner export --tensorboard`: event files that hold what the logs hold, however often and whenever they are written.

use super::events;
use crate::report_support;
use crate::support;

use events::{Shown, only_file, shown};
use report_support::Fake;
use std::collections::BTreeMap;
use std::fs;
use std::io::Write;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use support::{Ended, Lab, column, everything, record, rows, tiny, train_csv, val_csv, wait};

/// Before the evaluation after ten steps, of which a checkpoint has eight.
const BEHIND: &str = "csv.before_row:13";

/// Exports all runs below `runs` to `tb`; it must succeed.
fn export(lab: &Lab) -> Ended {
    let ended = lab.run(["export", "runs", "--tensorboard", "tb"]);
    ended.expect(0);
    ended
}

/// Where a run is exported to.
fn target(lab: &Lab, run: &Path) -> PathBuf {
    lab.path("tb").join(run.file_name().expect("a name"))
}

fn bytes(dir: &Path) -> Vec<u8> {
    fs::read(only_file(dir)).expect("an event file")
}

/// The tag that a column must have.
fn tag(log: &str, column: &str) -> String {
    match (log, column) {
        ("train", column) => format!("train/{column}"),
        (_, "tokens") => "val/tokens".to_owned(),
        (_, "val_loss") => "val/loss".to_owned(),
        (_, "val_loss_books") => "val/loss_books".to_owned(),
        (_, "val_loss_web") => "val/loss_web".to_owned(),
        (_, "mine_acc") => "tasks/mine_acc".to_owned(),
        (_, "mine_acc_norm") => "tasks/mine_acc_norm".to_owned(),
        other => panic!("{other:?}"),
    }
}

/// Asserts that an export has every number of the logs of a run, and no other.
fn has_the_logs(shown: &Shown, run: &Path) {
    let mut expected: BTreeMap<String, Vec<(u64, f32)>> = BTreeMap::new();
    for (log, csv) in [("train", train_csv(run)), ("val", val_csv(run))] {
        let steps: Vec<u64> = csv.cells("step").map(|cell| cell.parse().expect("a step")).collect();
        for name in csv.header.iter().filter(|name| *name != "step") {
            let cells = steps.iter().zip(csv.cells(name)).filter(|(_, cell)| !cell.is_empty());
            let points = cells.map(|(step, cell)| (*step, cell.parse::<f64>().expect("a number") as f32));
            let points: Vec<_> = points.collect();
            if !points.is_empty() {
                expected.insert(tag(log, name), points);
            }
        }
    }
    let record = record(run);
    if record["status"] == "finished" {
        let (steps, last) = (record["steps_done"].as_u64(), record["results"]["final_val_loss"].as_f64());
        let last = (steps.expect("a number"), last.expect("a number") as f32);
        expected.insert("hparam/val_loss".to_owned(), vec![last]);
    }
    let found: BTreeMap<String, Vec<(u64, f32)>> = shown
        .scalars
        .iter()
        .map(|(tag, points)| (tag.clone(), points.iter().map(|(step, value, _)| (*step, *value)).collect()))
        .collect();
    assert_eq!(found, expected);
}

#[test]
fn everything_that_a_run_logs_is_there_with_steps_and_times() {
    let lab = Lab::new();
    lab.write("a.txt", "so she sang, so he sang; so they sang of it all\n".repeat(60));
    lab.write("v.txt", "so they sang of it all, so he sang\n".repeat(40));
    lab.write("w.txt", "of all of it he sang; and so it was, they said\n".repeat(20));
    lab.write("mine.jsonl", "{\"context\": \"they\", \"endings\": [\"sang\", \"said\"], \"label\": 0}\n");
    let run = lab.train(&[
        "data.tokenizer=bytes",
        "data.train=a.txt",
        "data.val={ web = \"v.txt\", books = \"w.txt\" }",
        "data.val_main=web",
        "eval.tasks=[\"mine.jsonl\"]",
        "sample.every=6",
        "sample.tokens=5",
        "sample.prompt=so",
    ]);
    let ended = export(&lab);
    let id = run.file_name().expect("a name").to_str().expect("UTF-8");
    assert_eq!(ended.stdout, format!("tb/{id}\n"));
    ended.says(&[&format!("{id}: "), " events exported"]);
    let shown = shown(&target(&lab, &run));
    has_the_logs(&shown, &run);
    assert!(shown.has_ended && shown.restarts.is_empty());
    // texts as they are, as code
    let code = |text: &str| text.lines().map(|line| format!("    {line}\n")).collect::<String>();
    let recipe = fs::read_to_string(run.join("recipe.toml")).expect("a recipe");
    assert_eq!(shown.texts["recipe"], [(0, code(&recipe))]);
    let samples = fs::read_to_string(run.join("samples.txt")).expect("samples");
    let steps: Vec<u64> = shown.texts["samples"].iter().map(|(step, _)| *step).collect();
    assert_eq!(steps, [0, 6, 12]);
    let put_together: String = shown.texts["samples"]
        .iter()
        .map(|(step, text)| {
            let plain: Vec<&str> =
                text.lines().map(|line| line.strip_prefix("    ").expect("code")).collect();
            format!("=== step {step} ===\n{}\n\n", plain.join("\n"))
        })
        .collect();
    assert_eq!(
        put_together.replace('\u{fffd}', ""),
        samples.replace(|c: char| c.is_control() && c != '\n' || c == '\u{fffd}', "")
    );
    // what decides about the results, and nothing that decides what is kept
    for (name, value) in
        [("optimizer.lr", "0.01"), ("model.n_embd", "32"), ("data.shuffle", "true"), ("seed", "1337")]
    {
        assert_eq!(shown.hyperparameters[name], value, "{name}");
    }
    assert_eq!(shown.hyperparameters["data.tokenizer"], "bytes");
    assert!(!shown.hyperparameters.contains_key("checkpoint.every"), "{:?}", shown.hyperparameters);
    // a step is as old as its row says, and an evaluation as the step before it
    let times: Vec<f64> = shown.scalars["train/loss"].iter().map(|(.., at)| *at).collect();
    let elapsed = column(&run, "elapsed_s");
    for (time, elapsed_s) in times.iter().zip(&elapsed) {
        assert!((time - times[0] - (elapsed_s - elapsed[0])).abs() < 1e-4, "{time} {elapsed_s}");
    }
    let evaluated: Vec<(u64, f64)> =
        shown.scalars["val/loss"].iter().map(|(step, _, at)| (*step, *at)).collect();
    assert_eq!(evaluated[1], (5, times[4]));
    let now =
        std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).expect("a time").as_secs_f64();
    assert!(evaluated[0].1 <= times[0] && times[0] > now - 3600.0 && times[0] < now + 1.0, "{times:?} {now}");
}

#[test]
fn a_second_export_changes_nothing_and_a_later_one_appends() {
    let lab = Lab::new();
    let run = Fake::new("fake-1", 1, 1e-3, 3.0).write(&lab.path("runs"));
    export(&lab);
    let before = everything(&lab.path("tb"));
    export(&lab).says(&["fake-1: up to date"]);
    assert_eq!(everything(&lab.path("tb")), before);
    let append = |log: &str, row: &str| {
        let mut file = fs::OpenOptions::new().append(true).open(run.join(log)).expect("a log");
        file.write_all(row.as_bytes()).expect("written");
    };
    append("train.csv", "4,1280,2.5,0.001,NaN,0.1,1,0,256,1000,,1048576,1.28\n5,1536,2");
    append("val.csv", "5,1280,inf\n");
    fs::write(run.join("samples.txt"), "=== step 4 ===\n<script>alert(1)</script>\n\n=== step 5 ===\ntor")
        .expect("text");
    export(&lab).says(&["fake-1: 3 events exported"]);
    let old = &before[&format!(
        "fake-1/{}",
        only_file(&lab.path("tb/fake-1")).file_name().expect("a name").to_string_lossy()
    )]
        .0;
    assert!(bytes(&lab.path("tb/fake-1")).starts_with(old));
    let shown = shown(&lab.path("tb/fake-1"));
    assert_eq!(shown.scalars["train/loss"].last().map(|(step, loss, _)| (*step, *loss)), Some((4, 2.5)));
    assert!(
        shown.scalars["train/grad_norm"].last().is_some_and(|(step, norm, _)| *step == 4 && norm.is_nan())
    );
    // an empty cell is no number
    assert_eq!(shown.scalars["train/mfu"].last().map(|(step, ..)| *step), Some(3));
    assert_eq!(
        shown.scalars["val/loss"].last().map(|(step, loss, _)| (*step, *loss)),
        Some((5, f32::INFINITY))
    );
    assert_eq!(shown.texts["samples"], [(4, "    <script>alert(1)</script>\n".to_owned())]);
}

#[test]
fn a_run_that_goes_back_to_a_checkpoint_takes_its_later_steps_back() {
    let lab = Lab::new();
    let run = lab.crash("runs", &[], BEHIND);
    export(&lab);
    let before = bytes(&target(&lab, &run));
    let first = shown(&target(&lab, &run));
    assert_eq!((first.scalars["train/loss"].len(), first.has_ended), (rows(&run), false));
    assert!(rows(&run) > 8, "it has steps behind its checkpoint");
    lab.train(&[]);
    export(&lab);
    assert!(bytes(&target(&lab, &run)).starts_with(&before), "the file was not written again");
    let second = shown(&target(&lab, &run));
    assert_eq!(second.restarts, [8]);
    has_the_logs(&second, &run);
    assert!(second.has_ended);
    export(&lab).says(&["up to date"]);
}

#[test]
fn a_run_that_starts_over_has_a_file_of_its_own() {
    let lab = Lab::new();
    let run = lab.train(&["sample.every=4", "sample.prompt=!"]);
    export(&lab);
    let first = only_file(&target(&lab, &run));
    fs::write(target(&lab, &run).join("events.out.tfevents.1.other"), "").expect("a file of another program");
    lab.run(tiny("runs", &["checkpoint.every=6"]).into_iter().chain(["--fresh".to_owned()])).expect(0);
    export(&lab)
        .says(&["events exported, in place of those of an earlier start or of another run of this name"]);
    fs::remove_file(target(&lab, &run).join("events.out.tfevents.1.other")).expect("it is still there");
    let second = only_file(&target(&lab, &run));
    assert!(second > first, "TensorBoard reads files in the order of their names: {second:?}");
    let shown = shown(&target(&lab, &run));
    has_the_logs(&shown, &run);
    assert!(!shown.texts.contains_key("samples"), "the new one has none");
    export(&lab).says(&["up to date"]);
}

#[test]
fn an_export_that_was_killed_is_completed() {
    let lab = Lab::new();
    let run = lab.train(&[]);
    export(&lab);
    let whole = bytes(&target(&lab, &run));
    fs::remove_dir_all(lab.path("tb")).expect("removed");
    let mut command = lab.command(["export", "runs", "--tensorboard", "tb"]);
    command.env("RUNNER_FAULT", "events.mid_write");
    assert_eq!(support::ended(command).code, None);
    let torn = bytes(&target(&lab, &run));
    assert!(!torn.is_empty() && torn.len() < whole.len() && whole.starts_with(&torn));
    export(&lab);
    assert_eq!(bytes(&target(&lab, &run)), whole);
    // a full disk: what was there stays, and the next export goes on
    fs::write(only_file(&target(&lab, &run)), &whole[..whole.len() / 2]).expect("cut");
    let mut command = lab.command(["export", "runs", "--tensorboard", "tb"]);
    command.env("RUNNER_FAULT", "error:events.mid_write");
    support::ended(command).expect(1).says(&[
        "error: could not append to",
        "no space left",
        ": not exported",
    ]);
    assert!(whole.starts_with(&bytes(&target(&lab, &run))));
    export(&lab);
    assert_eq!(bytes(&target(&lab, &run)), whole);
    // damage in the middle: what follows it is written again
    let mut damaged = whole.clone();
    damaged[whole.len() / 3] ^= 1;
    fs::write(only_file(&target(&lab, &run)), &damaged).expect("damaged");
    export(&lab);
    assert_eq!(bytes(&target(&lab, &run)), whole);
}

#[test]
fn a_run_is_followed_to_its_end() {
    let lab = Lab::new();
    let (live, gate) = lab.held(lab.command(tiny("runs", &[])), "csv.before_row:7");
    gate.reached();
    let run = lab.only_run("runs");
    let mut follow = lab.start(["export", "tiny", "--tensorboard", "tb", "--follow"]);
    let target = target(&lab, &run);
    wait("an event file", || events::shown_so_far(&target).is_some() || follow.is_over());
    assert!(!follow.is_over() && shown(&target).scalars["train/loss"].len() == rows(&run));
    gate.open();
    live.end().expect(0);
    follow.end().expect(0).says(&["events exported"]);
    let shown = shown(&target);
    has_the_logs(&shown, &run);
    assert!(shown.has_ended && shown.restarts.is_empty());
    export(&lab).says(&["up to date"]);
}

#[test]
fn following_ends_at_an_interrupted_run_and_at_a_signal() {
    let lab = Lab::new();
    lab.crash("runs", &[], "csv.before_row:7");
    lab.run(["export", "tiny", "--tensorboard", "tb", "--follow"]).expect(0);
    let (live, gate) = lab.held(lab.command(tiny("others", &[])), "csv.before_row:7");
    gate.reached();
    let mut follow = lab.start(["export", "others", "--tensorboard", "tb2", "--follow"]);
    wait("an event file", || {
        fs::read_dir(lab.path("tb2")).is_ok_and(|dir| dir.count() > 0) || follow.is_over()
    });
    follow.signal("INT");
    follow.end().expect(130);
    gate.open();
    live.end().expect(0);
}

#[test]
fn what_a_run_is_exchanged_for_is_exported_to_nobody() {
    let lab = Lab::new();
    let on = ["sample.every=4", "sample.prompt=!"];
    let private = lab.train_in("private", &on);
    fs::write(private.join("samples.txt"), "=== step 4 ===\nsecret\n\n").expect("a sample");
    let (live, gate) = lab.held(lab.command(tiny("runs", &on)), "csv.before_row:7");
    gate.reached();
    let run = lab.only_run("runs");
    let mut follow = lab.launcher("sh");
    follow.args(["-c", "exec \"$RUNNER\" export tiny --tensorboard tb --follow 2>said"]);
    let mut follow = support::spawned(follow);
    let target = target(&lab, &run);
    wait("an event file", || events::shown_so_far(&target).is_some() || follow.is_over());
    let away = lab.path("away").join(run.file_name().expect("a name"));
    fs::create_dir(lab.path("away")).expect("a directory");
    fs::rename(&run, &away).expect("moved");
    symlink(&private, &run).expect("a link");
    // only root can give a link away
    if std::os::unix::fs::lchown(&run, Some(12345), None).is_ok() {
        let said = || fs::read_to_string(lab.path("said")).expect("what it says");
        wait("a look", || said().contains("is a link of another user") || follow.is_over());
        assert!(said().contains("is a link of another user"), "{}", said());
        assert!(!bytes(&target).windows(6).any(|part| part == b"secret"));
    }
    follow.kill();
    // one's own link says where the run is now
    fs::remove_file(&run).expect("removed");
    symlink(away, &run).expect("a link");
    gate.open();
    live.end().expect(0);
    export(&lab);
    has_the_logs(&shown(&target), &run);
}

#[test]
fn a_run_writes_its_own_event_file_which_an_export_finds_up_to_date() {
    let lab = Lab::new();
    let plain = lab.train_in("plain", &[]);
    let run = lab.train(&["log.tensorboard=true", "sample.every=6", "sample.prompt=!"]);
    assert_eq!(run.file_name(), plain.file_name(), "the key is no part of the identity");
    has_the_logs(&shown(&run), &run);
    assert!(shown(&run).has_ended);
    let before = bytes(&run);
    lab.run(["export", "runs", "--tensorboard", "runs"]).expect(0).says(&["up to date"]);
    assert_eq!(bytes(&run), before);
    // the run's own file, so it goes with the run
    let listed = lab.run(["list", "runs", "--remove", "--yes"]);
    assert!(!listed.expect(0).stderr.contains("has not written"), "{}", listed.stderr);
    assert!(!run.exists());
}

#[test]
fn a_resumed_run_goes_on_in_its_event_file() {
    let lab = Lab::new();
    let on = ["log.tensorboard=true"];
    let (mut live, gate) = lab.held(lab.command(tiny("runs", &on)), BEHIND);
    gate.reached();
    let run = lab.only_run("runs");
    wait("ten steps in the event file", || {
        let steps = events::shown_so_far(&run).and_then(|shown| Some(shown.scalars.get("train/loss")?.len()));
        steps == Some(10)
    });
    live.kill();
    live.end();
    let before = bytes(&run);
    lab.train(&on);
    assert!(bytes(&run).starts_with(&before));
    let shown = shown(&run);
    assert_eq!(shown.restarts, [8]);
    has_the_logs(&shown, &run);
    // one that begins to have an event file has all of it
    let late = lab.crash("late", &[], BEHIND);
    lab.train_in("late", &on);
    has_the_logs(&events::shown(&late), &late);
}

#[test]
fn an_event_file_that_cannot_be_written_ends_no_run() {
    let lab = Lab::new();
    let on = ["log.tensorboard=true"];
    let mut command = lab.command(tiny("runs", &on));
    command.env("RUNNER_FAULT", "error:events.mid_write");
    let ended = support::ended(command);
    ended.expect(0).says(&["warning: could not append to", "the run loses nothing", "runner export"]);
    let run = lab.run_of(&ended);
    has_the_logs(&shown(&run), &run);
    // a link is not followed, neither by a run nor by an export
    let seed = ["seed=2", "log.tensorboard=true"];
    let linked = lab.crash("runs", &seed[..1], "csv.before_row:3");
    let elsewhere = lab.write("elsewhere", "mine");
    symlink(&elsewhere, linked.join("events.out.tfevents.0000000001.runner")).expect("a link");
    lab.run(tiny("runs", &seed)).expect(0).says(&["warning: could not open", "symbolic link"]);
    lab.run(["export", "runs", "--tensorboard", "runs"])
        .expect(1)
        .says(&["error: could not open", "symbolic link"]);
    assert_eq!(fs::read(&elsewhere).expect("readable"), b"mine");
    // neither is one in the place of a run's directory of event files
    let (others, name) = (lab.path("others"), run.file_name().expect("a name"));
    fs::create_dir_all(&others).expect("a directory");
    fs::create_dir_all(lab.path("tb")).expect("a directory");
    symlink(&others, lab.path("tb").join(name)).expect("a link");
    let run = run.to_str().expect("UTF-8");
    lab.run(["export", run, "--tensorboard", "tb"])
        .expect(1)
        .says(&["error: could not open", "symbolic link"]);
    assert!(fs::read_dir(&others).expect("a directory").next().is_none());
}

#[test]
fn of_two_exports_at_once_one_is_refused() {
    let lab = Lab::new();
    let run = lab.train(&[]);
    let (first, gate) = lab.held(lab.command(["export", "runs", "--tensorboard", "tb"]), "events.mid_write");
    gate.reached();
    let second = lab.run(["export", "runs", "--tensorboard", "tb"]);
    second.expect(1).says(&["another process is writing it"]);
    gate.open();
    first.end().expect(0);
    has_the_logs(&shown(&target(&lab, &run)), &run);
}

#[test]
fn more_runs_are_exported_than_files_may_be_open() {
    let lab = Lab::new();
    for number in 0..60 {
        Fake::new(&format!("fake-{number}"), number, 1e-3, 3.0).write(&lab.path("runs"));
    }
    let mut command = lab.launcher("sh");
    command.args(["-c", "ulimit -n 48; exec \"$RUNNER\" export runs --tensorboard tb"]);
    let ended = support::ended(command);
    ended.expect(0);
    assert_eq!(ended.stdout.lines().count(), 60, "{}", ended.stdout);
    assert!(!ended.stderr.contains("could not"), "{}", ended.stderr);
    lab.run(["export", "runs", "--tensorboard", "tb", "--follow"]).expect(0).says(&["fake-59: up to date"]);
}

#[test]
fn runs_of_one_name_and_places_that_are_none_are_refused() {
    let lab = Lab::new();
    for runs in ["a", "b"] {
        Fake::new("fake-1", 1, 1e-3, 3.0).write(&lab.path(runs));
    }
    lab.write("file", "");
    let refused = |args: &[&str]| lab.run([&["export"], args].concat()).expect(2).stderr.clone();
    let both = refused(&["a", "b", "--tensorboard", "tb"]);
    assert!(both.contains("`a/fake-1` and `b/fake-1` would both be exported to `tb/fake-1`"), "{both}");
    assert!(refused(&["a", "--tensorboard", "file"]).contains("`file` is not a directory"));
    assert!(refused(&["nothing", "--tensorboard", "tb"]).contains("`nothing` is not a run"));
    assert!(refused(&["a"]).contains("--tensorboard"));
    assert!(refused(&["--tensorboard", "tb"]).contains("RUN"));
    assert!(!lab.path("tb").exists());
    let first = lab.run(["export", "a", "--tensorboard", "tb/deep"]).expect(0).stderr.clone();
    assert!(lab.path("tb/deep/fake-1").is_dir() && first.ends_with("events exported\n"), "{first}");
    Fake::new("fake-1", 2, 1e-3, 3.0).write(&lab.path("b"));
    let second = lab.run(["export", "b", "--tensorboard", "tb/deep"]).expect(0).stderr.clone();
    assert!(
        second.contains("in place of those of an earlier start or of another run of this name"),
        "{second}"
    );
}

#[test]
fn names_and_texts_of_strangers_are_only_shown() {
    let lab = Lab::new();
    let run = Fake::new("fake-1", 1, 1e-3, 3.0).write(&lab.path("runs"));
    let mut recipe = fs::read_to_string(run.join("recipe.toml")).expect("a recipe");
    recipe = recipe.replace("name = \"fake\"", "name = \"\\u001b[31m</pre><b>\"") + "# \u{9b}31m\n";
    fs::write(run.join("recipe.toml"), recipe).expect("written");
    let val = "step,tokens,val_loss,val_loss_\u{1b}x,\"a\"\"b_acc\",val_loss\n0,0,1,2,3,9\nx,0,1,2,3,9\n0,0,1,2,3,9\n4,0,1,word,3,9\n";
    fs::write(run.join("val.csv"), val).expect("written");
    export(&lab).says(&["warning: 2 malformed rows in the logs of `runs/fake-1` are left out"]);
    let shown = shown(&lab.path("tb/fake-1"));
    let steps =
        |tag: &str| shown.scalars[tag].iter().map(|(step, value, _)| (*step, *value)).collect::<Vec<_>>();
    assert_eq!(steps("val/loss"), [(0, 1.0), (4, 1.0)]);
    assert_eq!(steps("val/loss_\u{fffd}x"), [(0, 2.0)]);
    assert_eq!(steps("tasks/a\"b_acc"), [(0, 3.0), (4, 3.0)]);
    let texts = format!("{:?} {:?}", shown.texts, shown.hyperparameters);
    assert!(!texts.contains("\\u{1b}") && !texts.contains("\\u{9b}"), "{texts}");
}

/// In a directory that several users share, each can be the first to make that of a run.
#[test]
fn nothing_is_written_into_what_another_user_has_put_into_a_shared_directory() {
    let lab = Lab::new();
    let run = lab.train(&[]);
    let target = target(&lab, &run);
    fs::create_dir_all(&target).expect("a directory");
    let refused = || {
        let ended = lab.run(["export", "runs", "--tensorboard", "tb"]);
        ended.expect(1).says(&["belongs to user 12345", "name another directory"]);
    };
    let given = |path: &Path, user: u32| std::os::unix::fs::lchown(path, Some(user), None);
    // only root can give something away
    if given(&target, 12345).is_err() {
        return;
    }
    refused();
    assert_eq!(fs::read_dir(&target).expect("a directory").count(), 0);
    given(&target, 0).expect("taken back");
    let file = target.join("events.out.tfevents.0000000001.runner");
    fs::write(&file, "").expect("a file");
    given(&file, 12345).expect("given");
    refused();
    assert_eq!(bytes(&target).len(), 0);
    given(&file, 0).expect("taken back");
    export(&lab);
}
