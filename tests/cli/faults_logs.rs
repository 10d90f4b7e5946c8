//! What others do to the files of a run: logs that are lost or edited, a foreign recipe, a directory that is taken
//! away. The run is never continued as if it were whole, and nothing comes into being where it was.

use crate::support;

use runner::run::checkpoint::CheckpointState;
use serde_json::Value;
use std::fs;
use std::path::{Path, PathBuf};
use support::{Lab, checkpoints, essence, everything, record, rows, tiny, wait};

const KEEP: &[&str] = &["checkpoint.keep=0"];

/// A run that was killed after 9 of 12 steps, with checkpoints at 4 and 8.
fn killed(lab: &Lab, runs: &str) -> PathBuf {
    let run = lab.crash(runs, KEEP, "csv.before_row:12");
    assert_eq!(rows(&run), 9);
    run
}

fn id(run: &Path) -> &str {
    run.file_name().and_then(|name| name.to_str()).expect("a name")
}

fn edit(path: &Path, change: impl FnOnce(&str) -> String) {
    let text = fs::read_to_string(path).expect("read");
    fs::write(path, change(&text)).expect("written");
}

/// Two lines of a text in each other's place.
fn swapped(text: &str, a: usize, b: usize) -> String {
    let mut lines: Vec<&str> = text.lines().collect();
    lines.swap(a, b);
    lines.join("\n") + "\n"
}

/// A number changed, the length kept.
fn other_digit(text: &str) -> String {
    let at = text.rfind(|c: char| ('1'..='8').contains(&c)).expect("a digit");
    let digit = if &text[at..=at] == "8" { "7" } else { "8" };
    text[..at].to_owned() + digit + &text[at + 1..]
}

fn without_lock(run: &Path) -> impl PartialEq {
    let mut files = everything(run);
    files.remove("lock");
    files
}

/// A validation log to which somebody has added a column.
fn with_a_score(text: &str) -> String {
    let lines = text.lines().enumerate();
    lines.map(|(i, line)| format!("{line},{}\n", if i == 0 { "my_acc" } else { "0.99" })).collect()
}

#[test]
fn logs_that_were_lost_or_edited_are_not_gone_on_from() {
    let lab = Lab::new();
    let whole = essence(&lab.train_in("whole", KEEP));
    type Damage = fn(&Path);
    let damages: [(&str, Damage, &str); 9] = [
        ("train.csv", |log| fs::remove_file(log).expect("removed"), "it has 0 rows for 8 steps"),
        ("train.csv", |log| edit(log, |_| String::new()), "it has 0 rows for 8 steps"),
        ("train.csv", |log| edit(log, |text| swapped(text, 2, 3)), "bytes were changed"),
        ("train.csv", |log| edit(log, |text| text.replacen(",0.01,", ",0.02,", 1)), "bytes were changed"),
        ("val.csv", |log| fs::remove_file(log).expect("removed"), "it is gone"),
        ("val.csv", |log| edit(log, |_| String::new()), "it has 0 of the"),
        ("val.csv", |log| edit(log, other_digit), "bytes were changed"),
        ("val.csv", |log| edit(log, |text| swapped(text, 1, 2)), "bytes were changed"),
        ("val.csv", |log| edit(log, with_a_score), "bytes were changed"),
    ];
    for (i, (log, damage, says)) in damages.into_iter().enumerate() {
        // while it can be resumed, and when it is finished
        for finished in [false, true] {
            let runs = format!("runs-{i}-{finished}");
            let run = if finished { lab.train_in(&runs, KEEP) } else { killed(&lab, &runs) };
            let good = fs::read(run.join(log)).expect("read");
            damage(&run.join(log));
            let before = without_lock(&run);
            let by_recipe = lab.run(tiny(&runs, KEEP));
            let by_name = lab.run(["--runs-dir", &runs, "--resume", id(&run)]);
            for refused in [by_recipe, by_name] {
                refused.expect(1).says(&[log, "is not as the run has written it", "--fresh"]);
                if !finished {
                    refused.says(&[says]);
                }
            }
            assert!(without_lock(&run) == before, "damage {i}: a refusal changes nothing");
            fs::write(run.join(log), good).expect("written");
            lab.run(tiny(&runs, KEEP)).expect(0);
            assert!(essence(&run) == whole, "damage {i}");
        }
    }
    // starting over is possible, whatever happened to the logs
    let run = killed(&lab, "fresh");
    fs::remove_file(run.join("train.csv")).expect("removed");
    let mut args = tiny("fresh", KEEP);
    args.push("--fresh".to_owned());
    lab.run(args).expect(0);
    assert!(essence(&run) == whole);
}

#[test]
fn samples_that_were_lost_or_edited_are_not_gone_on_from() {
    let lab = Lab::new();
    let sampled = ["sample.every=3", "sample.tokens=4", "model.vocab_size=50257"];
    let whole = essence(&lab.train_in("whole", &sampled));
    let run = lab.crash("runs", &sampled, "csv.before_row:12");
    let path = run.join("samples.txt");
    let good = fs::read_to_string(&path).expect("samples");
    assert!(good.contains("=== step 6 ==="), "{good}");
    type Damage = fn(&str) -> Option<String>;
    let damages: [(Damage, &str); 6] = [
        (|_| None, "it is gone"),
        (|good| Some(good[..20].to_owned()), "it has 20 of the"),
        (|good| Some("x".repeat(good.len() + 1)), "bytes were changed"),
        (|good| Some(format!("=== step 1 ===\nmine\n\n{good}")), "bytes were changed"),
        (|good| Some(good.replacen("=== step 6 ===", "=== step 5 ===", 1)), "bytes were changed"),
        (|good| Some(good.replacen("=== step 6 ===", "=== step 9 ===", 1)), "bytes were changed"),
    ];
    for (i, (damage, says)) in damages.into_iter().enumerate() {
        match damage(&good) {
            Some(text) => fs::write(&path, text).expect("written"),
            None => fs::remove_file(&path).expect("removed"),
        }
        let before = without_lock(&run);
        let refused = lab.run(tiny("runs", &sampled));
        refused.expect(1).says(&["samples.txt` is not as the run has written it", says, "--fresh"]);
        assert!(without_lock(&run) == before, "damage {i}: a refusal changes nothing");
    }
    // what follows the checkpoint is made again in any case, and a power cut may leave anything there
    let of_checkpoint = &good[..good.find("=== step 9 ===").unwrap_or(good.len())];
    for (i, more) in
        ["=== step 8 ===\nmine\n\n", "=== ste", "\n", "\0\0\0\0", "nonsense"].into_iter().enumerate()
    {
        let runs = format!("runs{i}");
        let run = lab.crash(&runs, &sampled, "csv.before_row:12");
        fs::write(run.join("samples.txt"), format!("{of_checkpoint}{more}")).expect("written");
        lab.run(tiny(&runs, &sampled)).expect(0);
        assert!(essence(&run) == whole, "{more:?}");
    }
}

#[test]
fn checkpoints_of_earlier_versions_are_gone_on_from_if_the_rows_are_there() {
    let lab = Lab::new();
    let whole = essence(&lab.train_in("whole", KEEP));
    let forget = |run: &Path| {
        for name in checkpoints(run) {
            let checkpoint = run.join("checkpoints").join(name);
            let mut state = CheckpointState::read(&checkpoint).expect("a state");
            assert_eq!(state.logs.keys().collect::<Vec<_>>(), ["train.csv", "val.csv"]);
            state.logs.clear();
            let text = state.to_json();
            assert!(!text.contains("logs"));
            fs::write(checkpoint.join("state.json"), text).expect("written");
        }
        edit(&run.join("run.json"), |text| {
            let mut record: Value = serde_json::from_str(text).expect("JSON");
            record.as_object_mut().expect("an object").remove("files").expect("files");
            format!("{record:#}\n")
        });
    };
    let run = killed(&lab, "old");
    forget(&run);
    lab.run(tiny("old", KEEP)).expect(0).says(&["step 8 of 12"]);
    assert!(support::results(&run) == support::results(&lab.only_run("whole")));
    // what a run leaves that was deleted under an earlier version
    let run = killed(&lab, "ghost");
    forget(&run);
    fs::remove_file(run.join("train.csv")).expect("removed");
    lab.run(tiny("ghost", KEEP)).expect(1).says(&["train.csv", "it has 0 rows for 8 steps"]);
    let run = lab.train_in("finished", KEEP);
    forget(&run);
    lab.run(tiny("finished", KEEP)).expect(0).says(&["already finished"]);
    fs::remove_file(run.join("train.csv")).expect("removed");
    lab.run(tiny("finished", KEEP)).expect(1).says(&["train.csv", "it has 0 rows for 12 steps"]);
    assert!(!whole.is_empty());
}

#[test]
fn what_stands_behind_the_rows_of_a_checkpoint_is_cut_off() {
    let lab = Lab::new();
    let whole = essence(&lab.train_in("whole", KEEP));
    for (i, more) in ["4,256,0.001\n", "0,0,0.001\n", "nonsense\n", "\0\0\0\n\0"].into_iter().enumerate() {
        let runs = format!("runs{i}");
        let run = killed(&lab, &runs);
        edit(&run.join("val.csv"), |text| text.to_owned() + more);
        lab.run(tiny(&runs, KEEP)).expect(0);
        assert!(essence(&run) == whole, "{more:?}");
    }
}

#[test]
fn a_log_that_is_removed_while_the_run_writes_it_is_written_again_and_an_edited_one_ends_the_run() {
    let lab = Lab::new();
    let whole = essence(&lab.train_in("whole", KEEP));
    let held = |runs: &str, change: &dyn Fn(&Path)| {
        let (live, gate) = lab.held(lab.command(tiny(runs, KEEP)), "csv.before_row:8");
        gate.reached();
        let run = lab.only_run(runs);
        // the row before the one that is held is that of the second evaluation
        let evaluations = fs::read_to_string(run.join("val.csv")).map_or(0, |text| text.lines().count());
        assert_eq!((rows(&run), evaluations), (5, 3));
        change(&run);
        gate.open();
        (live.end(), run)
    };
    for log in ["train.csv", "val.csv"] {
        let (ended, run) =
            held(&format!("removed-{log}"), &|run| fs::remove_file(run.join(log)).expect("removed"));
        ended.expect(0).says(&[log, "was removed while the run trains", "written again"]);
        assert!(essence(&run) == whole, "{log}");
        let (ended, run) = held(&format!("emptied-{log}"), &|run| edit(&run.join(log), |_| String::new()));
        ended.expect(1).says(&[log, "is not as the run has written it", "another program has changed it"]);
        assert_eq!((&record(&run)["status"], checkpoints(&run).len()), (&"failed".into(), 1), "{log}");
        // another file with other rows is not overwritten
        let (ended, run) = held(&format!("replaced-{log}"), &|run| {
            let text = fs::read_to_string(run.join(log)).expect("read");
            fs::remove_file(run.join(log)).expect("removed");
            fs::write(run.join(log), other_digit(&text)).expect("written");
        });
        ended.expect(1).says(&[log, "another program has changed it"]);
        assert_eq!(record(&run)["status"], "failed", "{log}");
        // an edit that keeps the length shows at the end at the latest
        let (ended, run) = held(&format!("edited-{log}"), &|run| {
            let text = fs::read_to_string(run.join(log)).expect("read");
            let at = text.rfind(|c: char| ('1'..='8').contains(&c)).expect("a digit");
            let file = fs::File::options().write(true).open(run.join(log)).expect("open");
            std::os::unix::fs::FileExt::write_all_at(&file, b"9", at as u64).expect("written");
        });
        ended.expect(1).says(&[log, "is not as the run has written it", "bytes were changed"]);
        assert_eq!(checkpoints(&run), ["step-00000004", "step-00000008"], "{log}");
    }
}

/// Sessions that write no samples keep watch over those of earlier ones.
#[test]
fn samples_of_an_earlier_session_are_not_gone_on_from_where_they_were_edited() {
    let lab = Lab::new();
    let sets = ["sample.every=3", "sample.tokens=4", "model.vocab_size=50257"];
    let run = lab.crash("runs", &sets, "csv.before_row:9");
    let id = run.file_name().expect("a name").to_string_lossy().into_owned();
    let mut quiet = lab.command(["--resume", &id, "--set", "sample.every=0", "--set", "checkpoint.every=1"]);
    quiet.env("RUNNER_FAULT", "csv.before_row:4");
    assert_eq!(support::ended(quiet).code, None);
    edit(&run.join("samples.txt"), |text| text.replacen("=== step 3 ===\n", "=== step 3 ===\nmine", 1));
    let refused = lab.run(["--resume", &id]);
    refused.expect(1).says(&["samples.txt` is not as the run has written it"]);
}

#[test]
fn samples_with_zeros_in_them_are_as_the_run_has_written_them() {
    let lab = Lab::new();
    lab.write("text.txt", "some words, and some more of them\n".repeat(100));
    let sets = [
        "data.train=text.txt",
        "data.tokenizer=bytes",
        "sample.every=3",
        "sample.tokens=4",
        "sample.prompt=\"a\\u0000\\u0000\\u0000b\"",
    ];
    let whole = lab.train_in("whole", &sets);
    let samples = fs::read(whole.join("samples.txt")).expect("samples");
    assert_eq!(
        samples.windows(3).filter(|bytes| bytes == b"\0\0\0").count(),
        5,
        "one prompt for each sample"
    );
    lab.run(tiny("whole", &sets)).expect(0).says(&["already finished"]);
    let run = lab.crash("runs", &sets, "csv.before_row:12");
    lab.run(tiny("runs", &sets)).expect(0);
    assert!(essence(&run) == essence(&whole));
}

#[test]
fn a_recipe_or_samples_that_are_removed_while_the_run_trains_are_written_again() {
    let lab = Lab::new();
    let sets = [KEEP, &["sample.every=2", "sample.tokens=4", "sample.prompt=!"]].concat();
    let whole = essence(&lab.train_in("whole", &sets));
    let held = |runs: &str, change: &dyn Fn(&Path)| {
        let (live, gate) = lab.held(lab.command(tiny(runs, &sets)), "csv.before_row:8");
        gate.reached();
        let run = lab.only_run(runs);
        change(&run);
        gate.open();
        (live.end(), run)
    };
    for file in ["recipe.toml", "samples.txt"] {
        let (ended, run) = held(file, &|run| fs::remove_file(run.join(file)).expect("removed"));
        ended.expect(0).says(&[file, "was removed while the run trains", "written again"]);
        assert!(essence(&run) == whole, "{file}");
        let shown = lab.run(["list", "--runs-dir", file, "--format", "json"]);
        assert!(
            shown.expect(0).stdout.contains(id(&run)) && !shown.stderr.contains("edited"),
            "{}",
            shown.stderr
        );
    }
    let (ended, _) =
        held("edited", &|run| edit(&run.join("samples.txt"), |text| text.replacen("step", "stop", 1)));
    ended.expect(1).says(&["samples.txt", "is not as the run has written it"]);
}

#[test]
fn a_foreign_recipe_is_marked_in_reports_and_written_again_before_the_run_goes_on() {
    let lab = Lab::new();
    let whole = essence(&lab.train_in("whole", KEEP));
    let says = ["recipe.toml", "was edited"];
    for finished in [false, true] {
        let runs = format!("runs-{finished}");
        let run = if finished { lab.train_in(&runs, KEEP) } else { killed(&lab, &runs) };
        let recipe = run.join("recipe.toml");
        let good = fs::read_to_string(&recipe).expect("read");
        // how it is written may be edited, and where the data are
        for (from, to) in [("[checkpoint]", "# mine\n\n[ checkpoint ]"), ("train.bin", "./train.bin")] {
            assert!(good.contains(from), "{good}");
            fs::write(&recipe, good.replacen(from, to, 1)).expect("written");
            for command in ["compare", "list"] {
                let shown = lab.run([command, "--runs-dir", &runs, &runs]);
                assert!(!shown.expect(0).stderr.contains("was edited"), "{}", shown.stderr);
            }
        }
        let kept = good.replacen("every = 5", "every = 3", 1);
        assert!(kept != good, "{good}");
        for other in [good.replace("lr = 0.01", "lr = 0.5"), kept, "nonsense = ".to_owned(), String::new()] {
            fs::write(&recipe, &other).expect("written");
            for command in ["compare", "list"] {
                let shown = lab.run([command, "--runs-dir", &runs, &runs]);
                let said = shown.expect(0).stderr.clone() + &shown.stdout;
                assert!(says.iter().all(|part| said.contains(part)), "{command}: {said}");
            }
            let json = lab.run(["compare", "--format", "json", &runs]);
            let json: Value = serde_json::from_str(&json.expect(0).stdout).expect("JSON");
            let warnings = json["runs"][0]["warnings"].to_string();
            assert!(says.iter().all(|part| warnings.contains(part)), "{warnings}");
        }
        // one digit decides how many checkpoints are deleted
        for (from, to) in [("keep = 0", "keep = 1"), ("lr = 0.01", "lr = 0.5")] {
            assert!(good.contains(from), "{good}");
            fs::write(&recipe, good.replace(from, to)).expect("written");
            lab.run(["--runs-dir", &runs, "--resume", id(&run)]).expect(2).says(&says).says(&["--set"]);
        }
        let again = lab.run(tiny(&runs, KEEP));
        again.expect(0).says(&says).says(&["written again"]);
        assert_eq!(again.stderr.contains("already finished"), finished);
        assert!(essence(&run) == whole, "finished: {finished}");
    }
}

#[test]
fn a_recipe_that_a_finished_run_gets_again_is_its_own_at_another_cadence() {
    let lab = Lab::new();
    let run = lab.train_in("runs", KEEP);
    let recipe = run.join("recipe.toml");
    let good = fs::read_to_string(&recipe).expect("read");
    let other = [KEEP, &["checkpoint.every=7"]].concat();
    for edited in [Some(good.replace("lr = 0.01", "lr = 0.5")), None] {
        match edited {
            Some(text) => fs::write(&recipe, text).expect("written"),
            None => fs::remove_file(&recipe).expect("removed"),
        }
        lab.run(tiny("runs", &other)).expect(0).says(&["already finished"]);
        for command in ["compare", "list"] {
            let shown = lab.run([command, "runs"]);
            assert!(!shown.expect(0).stderr.contains("was edited"), "{}", shown.stderr);
        }
        lab.run(["--resume", id(&run)]).expect(0).says(&["already finished"]);
    }
}

#[test]
fn a_recipe_that_is_damaged_together_with_the_record_is_written_again() {
    let lab = Lab::new();
    let whole = essence(&lab.train_in("whole", KEEP));
    for (i, damaged) in [&b""[..], &[0; 300], b"nonsense = "].into_iter().enumerate() {
        let runs = format!("runs{i}");
        let run = killed(&lab, &runs);
        let recipe = fs::read(run.join("recipe.toml")).expect("read");
        fs::write(run.join("recipe.toml"), damaged).expect("written");
        fs::write(run.join("run.json"), "").expect("written");
        let again = lab.run(tiny(&runs, KEEP));
        again.expect(0).says(&["recipe.toml", "was edited or damaged", "written again"]);
        assert!(fs::read(run.join("recipe.toml")).expect("read") == recipe);
        assert!(essence(&run) == whole);
    }
    // a record that says another hash is written with the right one
    let run = killed(&lab, "other");
    let hash = record(&run)["hash"].clone();
    edit(&run.join("run.json"), |text| text.replacen(hash.as_str().expect("text"), &"0".repeat(64), 1));
    assert_ne!(record(&run)["hash"], hash);
    lab.run(tiny("other", KEEP)).expect(0);
    assert_eq!(record(&run)["hash"], hash);
}

#[test]
fn a_run_whose_directory_is_taken_away_ends_and_leaves_no_ghost() {
    let lab = Lab::new();
    for background in ["checkpoint.background=false", "checkpoint.background=true"] {
        let sets = [KEEP, &[background]].concat();
        let whole = essence(&lab.train_in(&format!("whole-{background}"), &sets));
        for point in ["csv.before_row:8", "checkpoint.mid_model:30"] {
            for how in ["moved", "moved with all runs", "removed", "replaced"] {
                let name = format!("{how}-{background}-{point}").replace(['.', ':', '=', ' '], "-");
                let (live, gate) = lab.held(lab.command(tiny(&name, &sets)), point);
                let run = lab.only_run(&name);
                // steps and evaluations that are logged when nothing moves: a checkpoint in the background holds the
                // run at its end, where the last one has to wait
                let still = match (point, background) {
                    ("csv.before_row:8", _) => (5, 2),
                    (_, "checkpoint.background=false") => (8, 2),
                    _ => (12, 4),
                };
                let lines =
                    |name| fs::read_to_string(run.join(name)).map_or(0, |text| text.matches('\n').count());
                wait("a run that is held", || {
                    (lines("train.csv"), lines("val.csv")) == (still.0 + 1, still.1 + 1)
                });
                let has_begun = || {
                    let entries = fs::read_dir(run.join("checkpoints")).into_iter().flatten().flatten();
                    let mut made = entries
                        .map(|entry| entry.path())
                        .filter(|path| path.join("model.safetensors").exists());
                    made.any(|path| path.to_string_lossy().contains(".tmp-"))
                };
                // while rows are written none is; the one before may take its time on a busy disk
                wait("the state of the checkpoints", || match point.starts_with("csv") {
                    true => checkpoints(&run) == ["step-00000004"],
                    false => has_begun(),
                });
                let elsewhere = lab.path(format!("elsewhere-{name}")).join(id(&run));
                fs::create_dir_all(elsewhere.parent().expect("a parent")).expect("a directory");
                match how {
                    "moved with all runs" => {
                        fs::remove_dir(elsewhere.parent().expect("a parent")).expect("it is empty");
                        fs::rename(lab.path(&name), elsewhere.parent().expect("a parent")).expect("moved");
                    }
                    // at once: file by file, the run could meet a directory that lacks only some of them
                    "removed" => {
                        fs::rename(&run, &elsewhere).expect("moved");
                        wait("removal", || fs::remove_dir_all(&elsewhere).is_ok());
                    }
                    _ => fs::rename(&run, &elsewhere).expect("moved"),
                }
                if how == "replaced" {
                    fs::create_dir(&run).expect("another one");
                }
                gate.open();
                let path = format!("{name}/{}", id(&run));
                live.end().expect(1).says(&[&path, "was moved, removed or replaced", "--resume"]);
                match how {
                    "replaced" => assert_eq!(fs::read_dir(&run).expect("read").count(), 0, "{name}"),
                    "moved with all runs" => assert!(!lab.path(&name).exists(), "{name}: a ghost"),
                    _ => assert!(!run.exists(), "{name}: a ghost"),
                }
                if how.starts_with("moved") {
                    let path = elsewhere.display().to_string();
                    lab.run(["--resume", &path]).expect(0);
                    let moved = support::results(&elsewhere);
                    let whole: Vec<_> = whole.keys().filter(|name| moved.contains_key(*name)).collect();
                    assert_eq!(moved.len(), whole.len(), "{name}");
                    assert!(
                        moved == support::results(&lab.only_run(&format!("whole-{background}"))),
                        "{name}"
                    );
                }
            }
        }
    }
}

#[test]
fn a_run_whose_lock_was_removed_leaves_it_to_the_process_that_came_after() {
    let lab = Lab::new();
    let whole = essence(&lab.train_in("whole", KEEP));
    let (live, gate) = lab.held(lab.command(tiny("runs", KEEP)), "csv.before_row:8");
    gate.reached();
    let run = lab.only_run("runs");
    fs::remove_file(run.join("lock")).expect("removed");
    lab.run(tiny("runs", KEEP)).expect(0);
    gate.open();
    live.end().expect(1).says(&["lock", "removed or replaced"]);
    assert!(essence(&run) == whole);
    lab.run(tiny("runs", KEEP)).expect(0).says(&["already finished"]);
}
