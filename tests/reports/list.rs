//! `runner list`: what is there, and removing it with care.

use crate::report_support;
use crate::support;

use report_support::{Fake, prose, rfc4180};
use serde_json::{Value, json};
use std::fs;
use support::{Lab, as_nobody};

fn lab() -> Lab {
    let lab = Lab::new();
    let runs = lab.path("runs");
    Fake::new("fake-1", 1, 1e-3, 3.0).write(&runs);
    Fake { status: "failed", ..Fake::new("fake-2", 2, 1e-3, 4.0) }.write(&runs);
    Fake { status: "running", val: vec![], ..Fake::new("fake-3", 3, 1e-3, 5.0) }.write(&runs);
    lab
}

#[test]
fn every_run_is_listed_with_what_it_is_doing() {
    let lab = lab();
    let found: Value =
        serde_json::from_str(&lab.run(["list", "--format", "json"]).expect(0).stdout).expect("JSON");
    assert_eq!(found[0]["run"], "fake-1");
    let of = |i: usize, name: &str| found[i][name].clone();
    assert_eq!(
        (of(0, "status"), of(0, "steps"), of(0, "total_steps"), of(0, "progress")),
        ("finished".into(), 4.into(), 4.into(), 1.into())
    );
    assert_eq!((of(0, "loss"), of(0, "val_loss")), (json!(3), json!(3.5)));
    assert_eq!(
        (of(2, "status"), of(2, "val_loss")),
        ("interrupted".into(), Value::Null),
        "its process is gone"
    );
    assert!(of(0, "age_s").as_u64().is_some_and(|age| age < 600));
    let text = lab.run(["list"]).expect(0).stdout.clone();
    assert!(
        text.lines()
            .nth(1)
            .is_some_and(|line| line.starts_with("fake-1  finished") && line.contains("100 %")),
        "{text}"
    );
    assert_eq!(rfc4180(&lab.run(["list", "--format", "csv"]).expect(0).stdout).len(), 4);
    let names = |args: &[&str]| {
        let ended = lab.run([&["list", "--format", "csv"], args].concat());
        rfc4180(&ended.expect(0).stdout).iter().skip(1).map(|row| row[0].clone()).collect::<Vec<_>>()
    };
    assert_eq!(names(&["--status", "failed,interrupted"]), ["fake-2", "fake-3"]);
    assert_eq!(names(&["fake-1", "*-3"]), ["fake-1", "fake-3"]);
    assert_eq!(names(&["--older-than", "1d"]), [""; 0]);
    // evaluated long after it was trained
    let run = lab.path("runs/fake-1");
    let month = std::time::Duration::from_secs(30 * 86_400);
    let age = |name: &str, by: std::time::Duration| {
        let file = std::fs::File::options().append(true).create(true).open(run.join(name)).expect("a file");
        file.set_modified(std::time::SystemTime::now() - by).expect("a time");
    };
    ["train.csv", "val.csv", "run.json", "recipe.toml"].iter().for_each(|name| age(name, month));
    assert_eq!(names(&["--older-than", "1d"]), ["fake-1"]);
    for name in ["eval.csv", "samples.txt"] {
        age(name, std::time::Duration::ZERO);
        assert_eq!(names(&["--older-than", "1d"]), [""; 0], "{name}");
        age(name, month);
    }
    lab.run(["list", "--status", "ended"]).expect(2).says(&["`ended` is not a status", "interrupted"]);
    lab.run(["list", "--older-than", "soon"]).expect(2);
    lab.run(["list", "--runs-dir", "none"]).expect(0).says(&["there are no such runs"]);
}

#[test]
fn a_run_that_has_not_finished_is_never_done_and_percents_are_exact() {
    let lab = Lab::new();
    let write = |id: &str, status: &'static str, steps: usize, of: u64| {
        let losses = vec![3.0; steps];
        let extra = json!({"total_steps": of});
        Fake { status, losses, extra, ..Fake::new(id, 1, 1e-3, 3.0) }.write(&lab.path("runs"));
    };
    let cases = [
        ("a", "finished", 7, 7, "100 %"),
        ("b", "failed", 7, 7, "99 %"),
        ("c", "failed", 29, 100, "29 %"),
        ("d", "failed", 996, 1000, "99 %"),
        ("e", "failed", 0, 7, "0 %"),
    ];
    cases.iter().for_each(|&(id, status, steps, of, _)| write(id, status, steps, of));
    let text = lab.run(["list"]).expect(0).stdout.clone();
    for (id, _, _, _, percent) in cases {
        let line = text.lines().find(|line| line.starts_with(&format!("{id} "))).expect("a line");
        assert!(line.contains(&format!(" {percent} ")), "{line}");
    }
}

#[test]
fn a_list_shows_what_differs_when_runs_began_and_in_the_order_asked_for() {
    let lab = Lab::new();
    let runs = lab.path("runs");
    for (i, (lr, last)) in [(1e-3, 3.0), (3e-3, 4.0), (2e-3, 5.0)].into_iter().enumerate() {
        let extra = json!({"created": format!("2026-11-2{}T19:56:59Z", 3 - i)});
        let status = ["finished", "failed", "finished"][i];
        Fake { extra, status, ..Fake::new(&format!("fake-{i}"), 1, lr, last) }.write(&runs);
    }
    let text = lab.run(["list"]).expect(0).stdout.clone();
    let lines: Vec<&str> = text.lines().collect();
    assert!(lines[0].contains("began (UTC)") && lines[0].ends_with("lr"), "{text}");
    assert!(lines[1].contains("2026-11-23 19:56") && lines[1].ends_with(" 1e-3"), "{text}");
    assert!(!text.contains("seed"), "it is the same in all: {text}");
    let sorted = |args: &[&str]| {
        let ended = lab.run([&["list", "--format", "csv"], args].concat());
        rfc4180(&ended.expect(0).stdout).iter().skip(1).map(|row| row[0].clone()).collect::<Vec<_>>()
    };
    for (by, order) in [
        ("time", ["fake-2", "fake-1", "fake-0"]),
        ("val_loss", ["fake-0", "fake-1", "fake-2"]),
        ("optimizer.lr", ["fake-0", "fake-2", "fake-1"]),
        ("status", ["fake-1", "fake-0", "fake-2"]),
        ("name", ["fake-0", "fake-1", "fake-2"]),
    ] {
        assert_eq!(sorted(&["--sort", by]), order, "{by}");
    }
    assert_eq!(sorted(&["--sort", "time", "--reverse"]), ["fake-0", "fake-1", "fake-2"]);
    lab.run(["list", "--sort", "los"]).expect(2).says(&["cannot sort by `los`", "val_loss"]);
    let csv = rfc4180(&lab.run(["list", "--format", "csv"]).expect(0).stdout);
    let expected = "run,status,steps,total_steps,progress,loss,val_loss,age_s,began,optimizer.lr";
    assert_eq!(csv[0].join(","), expected);
    assert_eq!(csv[1][8..], ["2026-11-23T19:56:59Z", "0.001"]);
}

#[test]
fn runs_of_many_recipes_are_told_from_those_of_their_name() {
    let lab = Lab::new();
    let runs = lab.path("runs");
    for (i, name) in ["one", "one", "two", "two"].into_iter().enumerate() {
        let run = Fake::new(&format!("{name}-{i}"), i as u64, 1e-3, 3.0).write(&runs);
        let recipe = std::fs::read_to_string(run.join("recipe.toml")).expect("a recipe");
        let many: String = (0..6).map(|key| format!("key{key} = \"{name}\"\n")).collect();
        let recipe = recipe.replace("name = \"fake\"", &format!("name = \"{name}\""));
        std::fs::write(run.join("recipe.toml"), recipe + "[novelty]\n" + &many).expect("a file");
    }
    let text = lab.run(["list"]).expect(0).stdout.clone();
    assert!(
        !text.contains("key0") && text.lines().next().is_some_and(|head| head.ends_with("seed")),
        "{text}"
    );
    let csv = rfc4180(&lab.run(["list", "--format", "csv"]).expect(0).stdout);
    assert!(csv[0].contains(&"novelty.key5".to_owned()), "{:?}", csv[0]);
}

#[test]
fn a_list_fits_eighty_columns() {
    let lab = Lab::new();
    for (i, lr) in [1e-3, 2e-3].into_iter().enumerate() {
        for seed in 1..=3 {
            let id = format!("transformer-sweep-{i}{seed}aabb{i}{seed}");
            let extra = json!({"created": "2026-11-21T19:56:59Z"});
            Fake { extra, ..Fake::new(&id, seed, lr, 3.0) }.write(&lab.path("runs"));
        }
    }
    for width in [60, 80, 100, 140] {
        let text = lab.run(["list", "--width", &width.to_string()]).expect(0).stdout.clone();
        assert!(text.lines().all(|line| line.chars().count() <= width), "{width}:\n{text}");
        let ids: std::collections::HashSet<&str> =
            text.lines().skip(1).take(6).filter_map(|line| line.split_whitespace().next()).collect();
        assert_eq!(ids.len(), 6, "{text}");
        assert!(["lr", "seed", "status"].iter().all(|title| text.contains(title)), "{text}");
    }
    let narrow = lab.run(["list", "--width", "80"]).expect(0).stdout.clone();
    assert!(narrow.contains("not shown: ") && narrow.contains("--wide"), "{narrow}");
    let wide = lab.run(["list", "--wide"]).expect(0).stdout.clone();
    assert_eq!(wide, lab.run(["list"]).expect(0).stdout, "in a pipe there is no limit");
    assert!(!wide.contains("not shown"), "{wide}");
}

/// As somebody protects a result: a removal that can delete nothing leaves the run its name.
#[test]
fn a_run_that_is_closed_to_writing_keeps_its_name() {
    let lab = Lab::new();
    let run = lab.train(&[]);
    let name = run.file_name().and_then(|name| name.to_str()).expect("UTF-8");
    let closed = format!("chown -R 65534 runs && chmod a-w runs/{name}");
    let Some(ended) = as_nobody(&lab, &closed, ["list", name, "--remove", "--yes"]) else { return };
    ended.expect(1).says(&["not removed: could not delete what is in", name]);
    assert_eq!(lab.runs("runs"), [name]);
}

#[test]
fn nothing_is_removed_unasked() {
    let lab = lab();
    lab.run(["list", "--remove"]).expect(2).says(&["needs to know which"]);
    lab.run(["list", "--remove", "--yes"]).expect(2).says(&["needs to know which"]);
    lab.run(["list", "fake-1", "--remove"]).expect(2).says(&["no terminal to ask on", "--yes"]);
    lab.run(["list", "fake-1", "--yes"]).expect(2);
    lab.run(["list", "--status", "diverged", "--remove", "--yes"]).expect(0).says(&["nothing to remove"]);
    assert_eq!(lab.runs("runs").len(), 3);
    let removed = lab.run(["list", "--status", "failed", "--remove", "--yes"]);
    assert_eq!(removed.expect(0).says(&["fake-2: failed, 4 steps"]).stdout, "runs/fake-2\n");
    assert_eq!(lab.runs("runs"), ["fake-1", "fake-3"]);
}

#[test]
#[ignore = "needs python3, whose pty is the terminal"]
fn a_question_on_a_terminal_takes_only_yes_for_yes() {
    let lab = lab();
    // python's pty gives the program a terminal to ask on
    let ask = |answer: &str| {
        let script = format!(
            "import os,pty,sys\n\
             def read(fd):\n    data = os.read(fd, 1024)\n    if b'[y/N]' in data: os.write(fd, b'{answer}\\n')\n    return data\n\
             status = pty.spawn([os.environ['RUNNER'], 'list', 'fake-1', '--remove'], read, lambda fd: b'')\n\
             sys.exit(os.waitstatus_to_exitcode(status))"
        );
        let mut command = lab.launcher("python3");
        command.args(["-c", &script]);
        support::ended(command).code
    };
    assert_eq!((ask("no"), lab.runs("runs").len()), (Some(1), 3));
    assert_eq!((ask(""), lab.runs("runs").len()), (Some(1), 3));
    assert_eq!((ask("y"), lab.runs("runs").len()), (Some(0), 2));
}

#[test]
fn a_run_that_is_trained_is_never_removed() {
    let lab = lab();
    let mut live = lab.start(support::tiny("runs", &["schedule.max_steps=100000"]));
    support::wait("a row", || {
        lab.runs("runs")
            .iter()
            .any(|id| id.starts_with("tiny") && support::rows(&lab.path("runs").join(id)) > 0)
    });
    let refused = lab.run(["list", "tiny", "fake-1", "--remove", "--yes"]);
    refused.expect(3).says(&["not removed", "is being written by process"]);
    assert_eq!(refused.stdout, "runs/fake-1\n", "the others are");
    assert!(!live.is_over());
    live.signal("INT");
    live.end().expect(130);
    lab.run(["list", "tiny", "--remove", "--yes"]).expect(0);
    assert_eq!(lab.runs("runs"), ["fake-2", "fake-3"]);
}

#[test]
fn nothing_is_removed_below_which_a_run_is_trained() {
    let lab = lab();
    let inner = "runs/fake-2/mine\nfinished";
    let mut live = lab.start(support::tiny(inner, &["schedule.max_steps=100000"]));
    let row = || lab.runs(inner).iter().any(|id| support::rows(&lab.path(inner).join(id)) > 0);
    support::wait("a row", row);
    let refused = lab.run(["list", "fake-2", "--remove", "--yes"]);
    refused.expect(3).says(&["not removed", "is being written by process", "mine\u{fffd}finished"]);
    assert!(!live.is_over() && lab.path("runs/fake-2/recipe.toml").exists());
    live.signal("INT");
    live.end().expect(130);
    lab.run(["list", "fake-2", "--remove", "--yes"]).expect(2).says(&["holds another run"]);
    lab.run(["list", inner, "--remove", "--yes"]).expect(0);
    lab.run(["list", "fake-2", "--remove", "--yes"]).expect(0);
    assert_eq!(lab.runs("runs"), ["fake-1", "fake-3"]);
}

#[test]
fn a_removal_that_was_killed_is_no_run_and_the_next_one_finishes_it() {
    let lab = lab();
    let mut command = lab.command(["list", "fake-1", "--remove", "--yes"]);
    command.env("RUNNER_FAULT", "remove.mid_delete:2");
    assert_eq!(support::ended(command).code, None, "aborted");
    let entries = || std::fs::read_dir(lab.path("runs")).expect("a directory").count();
    assert_eq!((lab.runs("runs").len(), entries()), (2, 3), "some of it is left");
    let list = lab.run(["list"]);
    assert!(!list.expect(0).stdout.contains(".tmp-"), "{}", list.stdout);
    let quoted = lab.run(["list", "*fake-1*"]);
    assert!(!quoted.stdout.contains(".tmp-"), "{}", quoted.stdout);
    // a directory of somebody else's that is named like a temporary, and what a refused question leaves
    for name in ["mine.txt", "lock"] {
        lab.write(&format!("runs/.tmp-other-1-0/{name}"), "");
    }
    lab.run(["list", "fake-2", "--remove"]).expect(2);
    assert_eq!((lab.runs("runs").len(), entries()), (2, 4), "nothing was confirmed");
    let removed = lab.run(["list", "fake-2", "--remove", "--yes"]);
    removed.expect(0).says(&["deleted what an interrupted removal had left"]);
    assert_eq!((lab.runs("runs"), entries()), (vec!["fake-3".to_owned()], 2));
    assert!(lab.path("runs/.tmp-other-1-0/mine.txt").exists());
    // the same call once more finds the run no more, and finishes it
    for (rest, code) in [(&["fake-3"][..], 2), (&["--older-than", "0s"], 0)] {
        Fake::new("fake-3", 3, 1e-3, 3.0).write(&lab.path("runs"));
        let call = [&["list"], rest, &["--remove", "--yes"]].concat();
        let mut command = lab.command(call.clone());
        command.env("RUNNER_FAULT", "remove.mid_delete:2");
        assert_eq!(support::ended(command).code, None, "aborted");
        assert_eq!((lab.runs("runs").len(), entries()), (0, 2), "some of it is left");
        lab.run(call).expect(code).says(&["deleted what an interrupted removal had left"]);
        assert_eq!(entries(), 1, "{rest:?}");
    }
}

#[test]
fn what_takes_the_place_of_a_directory_while_a_run_is_removed_leads_nowhere() {
    for visit in 1..=9 {
        let lab = lab();
        for name in ["a", "b", "c", "d"] {
            lab.write(&format!("runs/fake-1/checkpoints/step-1/{name}"), "the run's");
            lab.write(&format!("mine/step-1/{name}"), "mine");
            lab.write(&format!("mine/{name}"), "mine");
        }
        let command = lab.command(["list", "fake-1", "--remove", "--yes"]);
        let (live, gate) = lab.held(command, &format!("remove.mid_delete:{visit}"));
        gate.reached();
        let entries = std::fs::read_dir(lab.path("runs")).expect("a directory");
        let mut entries = entries.map(|entry| entry.expect("an entry").path());
        let doomed = entries.find(|path| path.to_string_lossy().contains("/.tmp-")).expect("it is renamed");
        for place in ["checkpoints/step-1", "checkpoints"] {
            // what is deleted already needs no place
            if std::fs::rename(doomed.join(place), lab.path("aside")).is_ok() {
                std::os::unix::fs::symlink(lab.path("mine"), doomed.join(place)).expect("a link");
                break;
            }
        }
        gate.open();
        live.end();
        assert_eq!(support::everything(&lab.path("mine")).len(), 8, "at file {visit}");
    }
}

#[test]
fn what_else_goes_with_a_run_is_said_before() {
    let lab = lab();
    let run = lab.path("runs/fake-1");
    for name in ["a.txt", "b.txt", "c.txt", "d.txt"] {
        std::fs::write(run.join(name), "mine").expect("a file");
    }
    let asked = lab.run(["list", "fake-1", "--remove"]);
    asked.expect(2).says(&["4 files that the run has not written: a.txt, b.txt, c.txt, …"]);
    assert!(run.join("a.txt").exists());
    for name in ["a.txt", "b.txt", "c.txt", "d.txt"] {
        std::fs::remove_file(run.join(name)).expect("removed");
    }
    lab.write("runs/fake-1/checkpoints/mine/thesis.txt", "mine");
    lab.write("runs/fake-1/checkpoints/step-00000001/notes.txt", "mine");
    for own in ["step-00000001/state.json", "step-00000001/model.safetensors", ".tmp-step-1-0/x"] {
        lab.write(&format!("runs/fake-1/checkpoints/{own}"), "");
    }
    let asked = lab.run(["list", "fake-1", "--remove"]);
    asked.expect(2).says(&[
        "2 files that the run has not written: checkpoints/mine, checkpoints/step-00000001/notes.txt",
    ]);
    std::fs::rename(&run, lab.path("elsewhere")).expect("renamed");
    std::os::unix::fs::symlink("../elsewhere", &run).expect("a link");
    // as a shell completes the name of a directory
    let removed = lab.run(["list", "runs/fake-1/", "--remove", "--yes"]);
    removed.expect(0).says(&["a link to `", "elsewhere`, which is removed too"]);
    assert!(!run.is_symlink() && !lab.path("elsewhere").exists(), "neither the link nor the run stays");
}

#[test]
fn an_order_by_a_loss_says_where_it_does_not_tell_which_run_is_better() {
    let lab = Lab::new();
    let write = |id: &str, more: &str, seen: bool| {
        let fake = Fake { extra: json!({"trains_on_validation": seen}), ..Fake::new(id, 1, 1e-3, 3.0) };
        let run = fake.write(&lab.path("runs"));
        let recipe = fs::read_to_string(run.join("recipe.toml")).expect("a recipe");
        fs::write(run.join("recipe.toml"), recipe.replace("[data]", &format!("[data]{more}")))
            .expect("written");
    };
    let said = |sort: &str| lab.run(["list", "--sort", sort]).expect(0).stdout.clone();
    write("fake-1", "", false);
    write("fake-2", "", true);
    write("fake-0", "", true);
    let seen = "fake-0 and fake-2: validation data are among the training data";
    assert!(said("val_loss").contains(seen) && !said("loss").contains(seen));
    assert!(!said("loss").contains("so this order does not say"));
    write("fake-3", "\ntokenizer = \"bytes\"", false);
    for sort in ["loss", "val_loss"] {
        let note =
            format!("{sort} was measured on different data (data.tokenizer), so this order does not say");
        assert!(said(sort).contains(&note), "{}", said(sort));
        for format in ["json", "csv"] {
            let listed = lab.run(["list", "--sort", sort, "--format", format]).expect(0).stdout.clone();
            assert_eq!(listed.matches(&note).count(), 4, "{listed}");
        }
    }
    assert!(!said("time").contains("so this order") && !said("time").contains(seen));
}

#[test]
fn a_last_row_without_a_step_is_named_and_no_number() {
    let lab = Lab::new();
    let run = Fake { status: "failed", ..Fake::new("fake-1", 1, 1e-3, 3.0) }.write(&lab.path("runs"));
    let log = run.join("train.csv");
    let text = fs::read_to_string(&log).expect("a log") + ",,\n";
    fs::write(&log, text).expect("written");
    let listed = lab.run(["list", "--format", "json"]);
    listed.expect(0).says(&["train.csv` is malformed: its last row has no `step`"]);
    let is_unknown = |listed: &str| {
        let rows: Value = serde_json::from_str(listed).expect("JSON");
        ["steps", "progress", "loss"].iter().all(|column| rows["runs"][0][column].is_null())
    };
    assert!(is_unknown(&listed.stdout), "{}", listed.stdout);
    // nor has a log that is none
    fs::remove_file(&log).expect("removed");
    fs::create_dir(&log).expect("a directory");
    let listed = lab.run(["list", "--format", "json"]);
    listed.expect(0).says(&["could not read", "train.csv"]);
    assert!(is_unknown(&listed.stdout), "{}", listed.stdout);
}

/// Where several users share a directory of runs, each can put what they like among them.
#[test]
fn runs_of_other_users_among_own_ones_are_told_of() {
    let lab = Lab::new();
    let runs =
        [1, 2].map(|seed| Fake::new(&format!("fake-{seed}"), seed, 1e-3, 3.0).write(&lab.path("runs")));
    let told = "of user 12345, who decides what is on record there";
    let said = |args: &[&str]| lab.run(args).expect(0).stdout.clone();
    let calls: [&[&str]; 5] = [
        &["list"],
        &["list", "--format", "json"],
        &["compare", "runs"],
        &["compare", "runs", "--format", "json"],
        &["compare", "runs", "--format", "csv"],
    ];
    calls.iter().for_each(|call| assert!(!said(call).contains("of user")));
    // only root can give a directory away
    if std::os::unix::fs::lchown(&runs[1], Some(12345), None).is_ok() {
        for call in calls {
            assert!(said(call).contains(told), "{}", said(call));
        }
        assert!(said(&["compare", "runs"]).contains(&format!("fake-2: {told}")));
        said(&["compare", "runs", "--plot", "a.svg"]);
        let drawn = fs::read_to_string(lab.path("a.svg")).expect("a picture");
        assert!(prose(&drawn).contains(&format!("fake-2: {told}")), "{drawn}");
        assert!(said(&["compare", "fake-2"]).contains(told));
    }
}
