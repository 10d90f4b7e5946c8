//! The life of a run: finished ones are left alone, interrupted ones go on, live ones are not touched.

use crate::support;

use std::fs;
use std::path::Path;
use support::{Lab, essence, everything, record, rows, tiny, wait};

#[test]
fn a_finished_run_is_not_touched() {
    let lab = Lab::new();
    let run = lab.train(&["sample.every=6", "sample.prompt=!"]);
    let before = everything(&lab.path("runs"));
    let again = lab.run(tiny("runs", &["sample.every=6", "sample.prompt=!"]));
    again.expect(0).says(&["already finished"]);
    let resumed = lab.run(["--resume", run.to_str().expect("UTF-8")]);
    resumed.expect(0).says(&["already finished"]);
    assert!(everything(&lab.path("runs")) == before, "something changed");
    // cadences and the name of a kept file are no other experiment
    lab.run(tiny("runs", &["eval.every=1", "checkpoint.every=1"])).expect(0).says(&["already finished"]);
    assert!(everything(&lab.path("runs")) == before, "something changed");
}

#[test]
fn fresh_discards_and_trains_again() {
    let lab = Lab::new();
    let run = lab.train(&[]);
    let (first, created) = (essence(&run), fs::metadata(run.join("train.csv")).and_then(|m| m.modified()));
    fs::write(run.join("checkpoints/step-00000012/model.safetensors"), "damaged").expect("written");
    fs::write(run.join("notes.txt"), "of an earlier life").expect("written");
    lab.run(tiny("runs", &[])).expect(0).says(&["already finished"]);
    let mut args = tiny("runs", &[]);
    args.push("--fresh".to_owned());
    let fresh = lab.run(&args);
    fresh.expect(0).says(&["step 0 of 12"]);
    assert_eq!(lab.run_of(&fresh), run);
    // what the run has not written is not its to discard
    fs::remove_file(run.join("notes.txt")).expect("it has stayed");
    assert!(essence(&run) == first);
    assert_ne!(fs::metadata(run.join("train.csv")).and_then(|m| m.modified()).ok(), created.ok());
    assert_eq!(record(&run)["sessions"].as_array().expect("sessions").len(), 1);
}

#[test]
fn an_interrupted_run_goes_on_where_its_checkpoint_stands() {
    let lab = Lab::new();
    let sets = ["sample.every=3", "sample.prompt=!"];
    let whole = lab.train_in("whole", &sets);
    // rows of both logs count: the validation at steps 0, 5 and 10 has one each
    let run = lab.crash("runs", &sets, "csv.before_row:12");
    assert_eq!(rows(&run), 9);
    let resumed = lab.run(tiny("runs", &sets));
    resumed.expect(0).says(&["step 8 of 12"]);
    assert_eq!(lab.run_of(&resumed), run);
    assert!(essence(&run) == essence(&whole));
    let record = record(&run);
    assert_eq!((&record["status"], &record["steps_done"]), (&"finished".into(), &12.into()));
    let sessions: Vec<_> = record["sessions"].as_array().expect("sessions").iter().collect();
    assert_eq!(sessions.iter().map(|s| &s["from_step"]).collect::<Vec<_>>(), [0, 8]);
    let elapsed = support::column(&run, "elapsed_s");
    assert!(elapsed.windows(2).all(|pair| pair[0] < pair[1]), "the clock goes on: {elapsed:?}");
}

#[test]
fn samples_and_logs_are_cut_back_to_the_checkpoint() {
    let lab = Lab::new();
    let sets =
        ["sample.every=1", "sample.prompt=!", "eval.every=1", "schedule.max_steps=6", "checkpoint.every=2"];
    let whole = lab.train_in("whole", &sets);
    // the last row before the crash is that of step 3's evaluation; steps 2 and 3 have samples already
    let run = lab.crash("runs", &sets, "csv.before_row:8");
    let steps = |run: &Path| {
        let text = String::from_utf8_lossy(&fs::read(run.join("samples.txt")).expect("samples")).into_owned();
        text.lines().filter(|l| l.starts_with("=== step ")).map(str::to_owned).collect::<Vec<_>>()
    };
    assert_eq!(steps(&run).len(), 4);
    lab.run(tiny("runs", &sets)).expect(0).says(&["step 2 of 6"]);
    assert_eq!(steps(&run), (0..=6).map(|step| format!("=== step {step} ===")).collect::<Vec<_>>());
    assert!(essence(&run) == essence(&whole));
}

#[test]
fn damaged_checkpoints_are_passed_over_and_set_aside() {
    let lab = Lab::new();
    let whole = lab.train_in("whole", &["checkpoint.keep=0"]);
    let run = lab.crash("runs", &["checkpoint.keep=0"], "csv.before_row:13");
    let newest = run.join("checkpoints/step-00000008");
    let mut bytes = fs::read(newest.join("optimizer.safetensors")).expect("read");
    *bytes.last_mut().expect("not empty") ^= 1;
    fs::write(newest.join("optimizer.safetensors"), bytes).expect("written");
    let resumed = lab.run(tiny("runs", &["checkpoint.keep=0"]));
    resumed.expect(0).says(&[
        "step-00000008",
        "optimizer.safetensors",
        "corrupted",
        "set aside",
        "step 4 of 12",
    ]);
    assert!(support::without(essence(&run), "damaged-1-") == essence(&whole));
    // nothing but damage is an error, not a silent new beginning
    let run = lab.crash("lost", &["checkpoint.keep=0"], "csv.before_row:8");
    fs::remove_file(run.join("checkpoints/step-00000004/state.json")).expect("removed");
    let before = support::train_csv(&run);
    let refused = lab.run(tiny("lost", &["checkpoint.keep=0"]));
    refused.expect(1).says(&["its only checkpoint is not intact", "--fresh"]);
    assert_eq!(support::train_csv(&run), before);
}

#[test]
fn a_run_is_trained_again_from_its_own_recipe_wherever_it_lies() {
    let lab = Lab::new();
    let run = lab.train(&["schedule.max_steps=4"]);
    let id = run.file_name().expect("a name").to_str().expect("UTF-8").to_owned();
    let own = format!("runs/{id}/recipe.toml");
    let again = lab.run([own.as_str()]);
    again.expect(0).says(&["already finished"]);
    assert_eq!(again.stdout, format!("runs/{id}\n"));
    let elsewhere = lab.run([own.as_str(), "--runs-dir", "elsewhere"]);
    assert_eq!(elsewhere.expect(0).stdout, format!("elsewhere/{id}\n"));
    assert!(support::results(&run) == support::results(&lab.path("elsewhere").join(&id)));
    // the whole tree moves: recipes, data and runs
    let moved = Lab::new();
    for name in ["data", "runs", "tiny.toml"] {
        let _ = fs::remove_dir_all(moved.path(name));
        fs::rename(lab.path(name), moved.path(name)).expect("moved");
    }
    let before = everything(&moved.path("runs"));
    let again = moved.run([own.as_str()]);
    again.expect(0).says(&["already finished"]);
    assert_eq!(again.stdout, format!("runs/{id}\n"));
    moved.run(tiny("runs", &["schedule.max_steps=4"])).expect(0).says(&["already finished"]);
    assert!(everything(&moved.path("runs")) == before);
}

#[test]
fn a_live_run_is_left_alone() {
    let lab = Lab::new();
    let sets = ["schedule.max_steps=100000000", "eval.every=0", "checkpoint.every=0"];
    let mut live = lab.start(tiny("runs", &sets));
    let run = lab.only_run("runs");
    wait("steps", || rows(&run) > 0);
    let id = live.id().to_string();
    let second = lab.run(tiny("runs", &sets));
    second.expect(3).says(&["being written by process", &id, "stop it"]);
    let line = format!("runs/{}\n", run.file_name().expect("a name").display());
    assert_eq!(second.stdout, line, "one line per recipe, whoever trains its run");
    let mut args = tiny("runs", &sets);
    args.push("--fresh".to_owned());
    assert_eq!(lab.run(&args).expect(3).stdout, line);
    let shown = run.to_str().expect("UTF-8");
    assert_eq!(lab.run(["--resume", shown]).expect(3).stdout, format!("{shown}\n"));
    let steps = rows(&run);
    wait("more steps", || rows(&run) > steps);
    assert!(live.kill());
}

#[test]
fn several_recipes_are_trained_in_order() {
    let lab = Lab::new();
    for (name, lr) in [("a", "1e-3"), ("b", "2e-3")] {
        lab.write(
            &format!("{name}.toml"),
            format!("extends = \"tiny.toml\"\nname = \"{name}\"\noptimizer.lr = {lr}\n"),
        );
    }
    let both = lab.run(["a.toml", "b.toml", "--set", "schedule.max_steps=3"]);
    let runs = lab.runs("runs");
    assert_eq!(both.expect(0).stdout, format!("runs/{}\nruns/{}\n", runs[0], runs[1]));
    assert!(runs[0].starts_with("a-") && runs[1].starts_with("b-"), "{runs:?}");
}

#[test]
fn several_recipes_are_checked_before_the_first_is_trained() {
    let lab = Lab::new();
    let base = "extends = \"tiny.toml\"\n";
    for (name, text, part) in [
        ("unknown.toml", "optimizer.momentum = 1\n", "optimizer.momentum"),
        ("cuda.toml", "compute.device = \"cuda\"\n", "compute.device"),
        ("missing.toml", "data.train = \"data/none.bin\"\n", "data/none.bin"),
        (
            "huge.toml",
            "model.n_embd = 20000\nmodel.n_layer = 100\nbatch.micro_batch = 1\n",
            "not even a micro_batch of 1 fits",
        ),
        ("other.toml", "data.val = \"data/none.txt\"\n", "data/none.txt"),
        ("weights.toml", "model.init_from = \"data/none.safetensors\"\n", "data/none.safetensors"),
        ("branch.toml", "model.init_from = { run = \"firsts/none-01234567\" }\n", "firsts/none-01234567"),
    ] {
        lab.write(name, format!("{base}{text}"));
        let ended = lab.run(["tiny.toml", name]);
        ended.expect(2).says(&[name, part]);
        assert_eq!((ended.stdout.as_str(), lab.runs("runs")), ("", vec![]), "{name}");
    }
    // and all of them are told about at once
    let ended = lab.run(["missing.toml", "other.toml", "weights.toml", "branch.toml", "tiny.toml"]);
    ended.expect(2).says(&[
        "data/none.bin",
        "data/none.txt",
        "data/none.safetensors",
        "firsts/none-01234567",
    ]);
}

#[test]
fn a_recipe_may_start_from_what_the_one_before_it_makes() {
    let lab = Lab::new();
    let id = lab.train_in("rehearsal", &["schedule.max_steps=4"]);
    let id = id.file_name().and_then(|name| name.to_str()).expect("a name");
    let base = "extends = \"tiny.toml\"\nschedule.max_steps = 4\n";
    lab.write("donor.toml", base);
    let from = format!("runs/{id}/checkpoints/step-00000004");
    lab.write("heir.toml", format!("{base}name = \"heir\"\nmodel.init_from = \"{from}\"\n"));
    // as the shell would spell the directory, or through a link
    std::os::unix::fs::symlink("runs", lab.path("linked")).expect("a link");
    for runs_dir in ["data/../runs", "linked"] {
        lab.run(["donor.toml", "heir.toml", "--runs-dir", runs_dir]).expect(0);
        std::fs::remove_dir_all(lab.path("runs")).expect("removed");
        std::fs::create_dir(lab.path("runs")).expect("a directory");
    }
    lab.run(["donor.toml", "heir.toml"]).expect(0);
    assert!(lab.path(&from).is_dir());
    assert!(lab.runs("runs")[0].starts_with("heir-"), "{:?}", lab.runs("runs"));
}

#[test]
fn one_failing_recipe_does_not_stop_the_others() {
    let lab = Lab::new();
    lab.write(
        "bad.toml",
        "extends = \"tiny.toml\"\nname = \"bad\"\noptimizer.lr = 1e30\noptimizer.clip_norm = 0.0\n",
    );
    lab.write("good.toml", "extends = \"tiny.toml\"\nname = \"good\"\n");
    let ended = lab.run(["bad.toml", "good.toml"]);
    ended.expect(4).says(&["diverged", "finished in"]);
    let runs = lab.runs("runs");
    assert_eq!(ended.stdout, format!("runs/{}\nruns/{}\n", runs[0], runs[1]));
    assert_eq!(record(&lab.path("runs").join(&runs[0]))["status"], "diverged");
    assert_eq!(record(&lab.path("runs").join(&runs[1]))["status"], "finished");
    // the first failure is the exit code, whatever comes after it
    lab.write("later.toml", "extends = \"tiny.toml\"\nname = \"later\"\nseed = 3\n");
    let mut live = lab.start(["tiny.toml", "--set", "schedule.max_steps=100000000", "--set", "eval.every=0"]);
    wait("a run", || lab.runs("runs").len() == 3);
    let tiny = lab.path("runs").join(lab.runs("runs").pop().expect("three"));
    wait("steps", || rows(&tiny) > 0);
    let long = ["--set", "schedule.max_steps=100000000", "--set", "eval.every=0"];
    lab.run(["tiny.toml", "bad.toml"].iter().chain(&long)).expect(3).says(&["being written", "diverged"]);
    assert!(live.kill());
}

/// The second one would discard what the first has trained.
#[test]
fn a_fresh_call_takes_each_run_once() {
    let lab = Lab::new();
    lab.write("again.toml", "extends = \"tiny.toml\"\nname = \"tiny\"\n[eval]\nevery = 3\n");
    lab.write("other.toml", "extends = \"tiny.toml\"\nseed = 2\n");
    let refused = lab.run(["tiny.toml", "again.toml", "--fresh"]);
    refused.expect(2).says(&["two recipes of this call are of one run", "--fresh would discard it"]);
    assert_eq!(lab.runs("runs").len(), 0);
    // what they begin from counts by its contents
    let from = lab.train_in("from", &[]).join("checkpoints/step-00000012");
    for (copy, name) in [("a", "one"), ("b", "two")] {
        fs::create_dir(lab.path(copy)).expect("a directory");
        for file in ["config.json", "model.safetensors"] {
            fs::copy(from.join(file), lab.path(copy).join(file)).expect("copied");
        }
        let recipe = format!("extends = \"tiny.toml\"\nname = \"same\"\nmodel.init_from = \"{copy}\"\n");
        lab.write(&format!("{name}.toml"), recipe);
    }
    let refused = lab.run(["one.toml", "two.toml", "--fresh"]);
    refused.expect(2).says(&["two recipes of this call are of one run, `same-"]);
    lab.run(["tiny.toml", "other.toml", "--fresh"]).expect(0);
    lab.run(["tiny.toml", "again.toml"]).expect(0).says(&["already finished"]);
}

#[test]
fn what_no_run_writes_stays_among_its_checkpoints() {
    let lab = Lab::new();
    let run = lab.crash("runs", &["checkpoint.keep=1", "checkpoint.every=2"], "csv.before_row:9");
    let mine = ["step-5/notes", "step-3", "step-00000002.txt"].map(|name| run.join("checkpoints").join(name));
    fs::create_dir(run.join("checkpoints/step-5")).expect("a directory");
    mine.iter().for_each(|path| fs::write(path, "mine").expect("written"));
    // even under the names of files that a checkpoint has
    fs::write(run.join("checkpoints/step-5/model.safetensors"), "mine").expect("written");
    let asked = lab.run(["list", &run.to_string_lossy(), "--remove"]);
    asked.expect(2).says(&["with 4 files that the run has not written"]);
    lab.run(tiny("runs", &["checkpoint.keep=1", "checkpoint.every=2"])).expect(0);
    assert!(mine.iter().all(|path| path.is_file()));
    assert_eq!(support::checkpoints(&run).iter().filter(|name| name.len() == 13).count(), 1);
}
