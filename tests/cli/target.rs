//! `schedule.stop_at_val_loss`: a run ends at the evaluation that reaches the target as it would after its last step,
//! and may go on from there.

use crate::signals::{saying, wait_for_words};
use crate::support;

use std::path::Path;
use support::{Lab, checkpoints, column, ended, essence, record, results, tiny, val_csv, without};

/// Evaluations of a falling loss at every other step, and texts between them.
const FALLING: [&str; 5] =
    ["eval.every=2", "checkpoint.every=4", "checkpoint.keep=1", "sample.every=5", "sample.prompt=!"];

/// The run without a target.
fn undisturbed(lab: &Lab) -> std::path::PathBuf {
    lab.train_in("undisturbed", &FALLING)
}

/// The cell of `val_loss` at a step; all evaluations before it are higher.
fn loss_at(run: &Path, step: usize) -> String {
    let log = val_csv(run);
    let losses = log.numbers("val_loss");
    let row = log.cells("step").position(|cell| cell == step.to_string()).expect("an evaluation");
    assert!(losses[..row].iter().all(|loss| *loss > losses[row]), "{losses:?}");
    log.cells("val_loss").nth(row).expect("a cell").to_owned()
}

fn target(loss: &str) -> String {
    format!("schedule.stop_at_val_loss={loss}")
}

fn id(run: &Path) -> String {
    run.file_name().expect("a name").to_string_lossy().into_owned()
}

/// Asserts that the record names the evaluation that ended the run.
fn reached(run: &Path, step: u64, loss: &str, target: f64) {
    let record = record(run);
    let expected = serde_json::json!({
        "step": step, "val_loss": loss.parse::<f64>().expect("a number"), "target": target,
    });
    assert_eq!(record["reached_target"], expected);
    assert_eq!((record["status"].as_str(), &record["error"]), (Some("finished"), &serde_json::Value::Null));
    assert_eq!((record["steps_done"].as_u64(), record["total_steps"].as_u64()), (Some(step), Some(12)));
    assert!(record["files"]["train.csv"].is_object(), "{}", record["files"]);
}

#[test]
fn a_run_ends_at_the_evaluation_that_reaches_its_target_as_after_its_last_step() {
    let lab = Lab::new();
    let whole = undisturbed(&lab);
    assert!(record(&whole).get("reached_target").is_none());
    let loss = loss_at(&whole, 6);
    // hit exactly, and passed between two evaluations
    let between = loss.parse::<f64>().expect("a number") + 1e-4;
    for target_loss in [loss.parse().expect("a number"), between] {
        let asked = target(&target_loss.to_string());
        let ended = lab.run(tiny("runs", &[&FALLING[..], &[asked.as_str()]].concat()));
        let said =
            format!("finished at its target, val_loss {loss} <= {target_loss} after 6 of 12 steps, in ");
        ended.expect(0).says(&[
            &said,
            "step 6/12 validation loss",
            &format!("less once val_loss <= {target_loss}"),
        ]);
        let run = lab.run_of(&ended);
        assert_ne!(id(&run), id(&whole), "what it ends with is part of the experiment");
        reached(&run, 6, &loss, target_loss);
        assert_eq!(checkpoints(&run), ["step-00000006"]);
        let text = |run: &Path, file: &str| std::fs::read_to_string(run.join(file)).expect("a file");
        let begins = |file: &str| text(&whole, file).starts_with(&text(&run, file));
        assert!(begins("val.csv") && val_csv(&run).cells("step").eq(["0", "2", "4", "6"]));
        assert_eq!(column(&run, "loss"), column(&whole, "loss")[..6]);
        assert_eq!(column(&run, "lr"), column(&whole, "lr")[..6], "the schedule is that of the whole run");
        // the text after the last step, as ever
        let steps: Vec<String> = text(&run, "samples.txt")
            .lines()
            .filter(|line| line.starts_with("==="))
            .map(str::to_owned)
            .collect();
        assert_eq!(steps, ["=== step 0 ===", "=== step 5 ===", "=== step 6 ==="]);
        // the same command and --resume change nothing, and say why
        let before = support::everything(&run);
        let again = lab.run(tiny("runs", &[&FALLING[..], &[asked.as_str()]].concat()));
        let why =
            format!("already finished at its target, val_loss {loss} <= {target_loss} after 6 of 12 steps");
        let on = "goes on with a lower schedule.stop_at_val_loss, or with --unset of it";
        again.expect(0).says(&[&why, "--fresh starts over", on]);
        assert_eq!(lab.run_of(&again), run);
        let higher = target("100");
        for more in [&[][..], &["--set", higher.as_str()], &["--dry-run"]] {
            let path = run.display().to_string();
            let ended = lab.run([&["--resume", path.as_str()], more].concat());
            ended.expect(0).says(&[&why, on]);
        }
        assert!(support::everything(&run) == before);
        lab.run(["plan", "tiny.toml", "--set", &asked]).expect(0);
    }
}

#[test]
fn a_run_at_its_target_goes_on_to_a_lower_one_or_to_its_last_step() {
    let lab = Lab::new();
    let whole = undisturbed(&lab);
    let (first, second) = (loss_at(&whole, 4), loss_at(&whole, 8));
    for ranks in [1, 2] {
        let ranks = format!("batch.world_size={ranks}");
        let runs = format!("runs-{}", &ranks[17..]);
        let (rows, first_target) = ("batch.micro_batch=2", target(&first));
        let sets = [&FALLING[..], &[ranks.as_str(), rows]].concat();
        let whole = lab.train_in(&runs, &sets);
        // several ranks add up in another order
        let (first, second) = (loss_at(&whole, 4), loss_at(&whole, 8));
        let first_target = if ranks.ends_with('2') { target(&first) } else { first_target };
        let run = lab.train_in(&runs, &[&sets[..], &[first_target.as_str()]].concat());
        reached(&run, 4, &first, first.parse().expect("a number"));
        let resume = |more: &[&str]| {
            let ended = lab.run([&["--resume", &id(&run), "--runs-dir", &runs], more].concat());
            ended.expect(0);
            ended
        };
        let lower = target(&second);
        resume(&["--set", &lower, "--dry-run"]).says(&["would train 8 steps from", "step-00000004"]);
        resume(&["--set", &lower]).says(&["finished at its target", "after 8 of 12 steps"]);
        reached(&run, 8, &second, second.parse().expect("a number"));
        assert_eq!(record(&run)["sessions"][1]["overrides"], serde_json::json!([lower]));
        // the recipe is still the first one
        resume(&[]).says(&["already finished at its target", &format!("{second} <= {second}")]);
        resume(&["--unset", "schedule.stop_at_val_loss"]).says(&["finished in"]);
        assert!(record(&run).get("reached_target").is_none());
        assert_eq!(record(&run)["status"], "finished");
        assert!(results(&run) == results(&whole), "bytes of an undisturbed run");
        resume(&["--unset", "schedule.stop_at_val_loss"]).says(&["already finished"]);
    }
    // a run that never had a target gets one
    let sets = [&FALLING[..], &["schedule.max_steps=12"]].concat();
    let run = lab.crash("late", &sets, "csv.before_row:9");
    let lower = target(&second);
    lab.run(["--resume", &id(&run), "--runs-dir", "late", "--set", &lower]).expect(0);
    reached(&run, 8, &second, second.parse().expect("a number"));
    // its recipe has none, and goes on
    lab.run(tiny("late", &sets)).expect(0).says(&["finished in"]);
    assert!(record(&run).get("reached_target").is_none());
    assert!(results(&run) == results(&whole));
    assert!(first != second);
}

#[test]
fn a_run_that_dies_on_its_way_to_its_target_still_ends_there() {
    let lab = Lab::new();
    let loss = loss_at(&undisturbed(&lab), 6);
    let asked = target(&loss);
    for background in ["checkpoint.background=false", "checkpoint.background=true"] {
        let sets = [&FALLING[..], &[asked.as_str(), background, "checkpoint.keep_best=true"]].concat();
        let whole = lab.train_in(&format!("whole-{}", background.len()), &sets);
        reached(&whole, 6, &loss, loss.parse().expect("a number"));
        let best = record(&whole)["best_checkpoint"].clone();
        assert_eq!(best["step"], 6);
        for point in [
            "csv.before_row:8",
            "checkpoint.before_rename:4",
            "checkpoint.after_rename:4",
            "run_json.before_rename:5",
            "rotate.before_delete:2",
        ] {
            let runs = format!("runs-{}-{point}", background.len()).replace([':', '.'], "-");
            let mut command = lab.command(tiny(&runs, &sets));
            command.env("RUNNER_FAULT", point);
            let died = ended(command);
            assert_eq!(died.code, None, "{point} was never reached: {}", died.stderr);
            lab.run(tiny(&runs, &sets)).expect(0);
            let run = lab.only_run(&runs);
            reached(&run, 6, &loss, loss.parse().expect("a number"));
            assert_eq!(record(&run)["best_checkpoint"], best, "{point}");
            assert!(essence(&run) == essence(&whole), "{point}, {background}");
        }
    }
}

#[test]
fn a_target_that_the_first_or_the_last_evaluation_reaches() {
    let lab = Lab::new();
    let whole = undisturbed(&lab);
    // before the first step
    let run = lab.train(&[&FALLING[..], &["schedule.stop_at_val_loss=100"]].concat());
    reached(&run, 0, &loss_at(&whole, 0), 100.0);
    assert_eq!((checkpoints(&run), column(&run, "loss")), (vec!["step-00000000".to_owned()], vec![]));
    for command in [&["list"][..], &["compare", "runs"], &["watch", "runs"]] {
        lab.run(command).expect(0);
    }
    lab.run(["--resume", &id(&run), "--unset", "schedule.stop_at_val_loss"]).expect(0);
    let essentials = |run: &Path| without(results(run), "step-00000000");
    assert!(essentials(&run) == essentials(&whole));
    // after the last one: nothing was cut
    let last = loss_at(&whole, 12);
    let ended = lab.run(tiny("runs", &[&FALLING[..], &[target(&last).as_str()]].concat()));
    ended.expect(0).says(&["finished in"]);
    let run = lab.run_of(&ended);
    assert!(record(&run).get("reached_target").is_none());
    assert!(results(&run) == results(&whole));
}

#[test]
fn list_watch_and_compare_say_which_runs_ended_at_their_target() {
    let lab = Lab::new();
    let whole = lab.train(&FALLING);
    let asked = target(&loss_at(&whole, 6));
    let run = lab.train(&[&FALLING[..], &[asked.as_str()]].concat());
    let printed = |args: &[&str]| {
        let ended = lab.run(args);
        ended.expect(0);
        ended.stdout
    };
    let list = printed(&["list"]);
    let row = |text: &str, id: &str| {
        text.lines().find(|line| line.contains(id)).unwrap_or_else(|| panic!("{id}: {text}")).to_owned()
    };
    assert!(row(&list, &id(&run)).contains("finished at target      6  12   50 %"), "{list}");
    assert!(!row(&list, &id(&whole)).contains("target"), "{list}");
    let csv = printed(&["list", "--format", "csv"]);
    assert!(row(&csv, &id(&run)).contains(",finished,6,12,0.5,"), "{csv}");
    let watched = printed(&["watch", &id(&run)]);
    assert!(watched.contains(&format!("{}: finished at target, step 6/12", id(&run))), "{watched}");
    let compared = printed(&["compare", "runs"]);
    let note = format!("{}: schedule.stop_at_val_loss ended it before its last step", id(&run));
    assert!(compared.contains(&note), "{compared}");
    let json: serde_json::Value =
        serde_json::from_str(&printed(&["compare", &id(&run), "--format", "json"])).expect("JSON");
    assert_eq!(json["runs"][0]["status"], "finished");
    assert_eq!(json["runs"][0]["complete"], true);
}

#[test]
fn the_plan_says_that_a_run_may_end_earlier_and_what_evaluates_nothing_reaches_nothing() {
    let lab = Lab::new();
    let plan = |args: &[&str]| {
        let ended =
            lab.run([&["plan", "tiny.toml", "--set", "schedule.stop_at_val_loss=3.28"], args].concat());
        ended.expect(0);
        ended.stdout
    };
    let text = plan(&[]);
    assert!(text.contains("may end earlier: after the first evaluation with val_loss <= 3.28"), "{text}");
    let json: serde_json::Value = serde_json::from_str(&plan(&["--format", "json"])).expect("JSON");
    assert_eq!((&json["stop_at_val_loss"], &json["steps"]), (&3.28.into(), &12.into()));
    let refused = |set: &str, parts: &[&str]| {
        lab.run(tiny("runs", &["schedule.stop_at_val_loss=3.28", set])).expect(2).says(parts);
    };
    refused("eval.every=0", &["schedule.stop_at_val_loss", "`eval.every` is 0", "have data.val evaluated"]);
    refused("data.val=[]", &["`schedule.stop_at_val_loss` has no effect with data.val = []"]);
    for value in ["0", "-1", "nan", "\"low\""] {
        lab.run(tiny("runs", &[&target(value)])).expect(2).says(&["schedule.stop_at_val_loss"]);
    }
}

/// What the other steps had led to would be lost with the logs.
#[test]
fn a_run_without_its_checkpoints_does_not_begin_again_unasked() {
    let lab = Lab::new();
    let loss = loss_at(&undisturbed(&lab), 6);
    let target = target(&loss);
    let sets = [&FALLING[..], &[target.as_str()]].concat();
    let run = lab.train(&sets);
    std::fs::remove_dir_all(run.join("checkpoints")).expect("removed");
    let before = results(&run);
    for more in [&["--unset", "schedule.stop_at_val_loss"][..], &["--set", "schedule.stop_at_val_loss=0.1"]] {
        for dry in [&[][..], &["--dry-run"]] {
            let ended = lab.run([&["--resume", &id(&run)], more, dry].concat());
            ended.expect(1).says(&["no checkpoint left", "up to step 6", "--fresh"]);
            assert!(results(&run) == before);
        }
    }
    // what a plan says of it
    let killed = lab.crash("killed", &[], "csv.before_row:9");
    lab.crash("killed", &[], "csv.before_row:2");
    std::fs::remove_dir_all(killed.join("checkpoints")).expect("removed");
    let said = lab.run(["plan".to_owned()].into_iter().chain(tiny("killed", &[]))).expect(0).stdout.clone();
    assert!(said.contains("no checkpoint left, and was trained up to step"), "{said}");
    assert!(!said.contains("begins again"), "{said}");
    lab.run(["--resume", &id(&run)]).expect(0).says(&["already finished at its target"]);
    let fresh = tiny("runs", &sets).into_iter().chain(["--fresh".to_owned()]);
    lab.run(fresh).expect(0).says(&["finished at its target"]);
}

/// A record that calls a run finished stands beside the logs that it names.
#[test]
fn a_resumption_that_dies_at_its_record_leaves_a_finished_run_or_one_that_goes_on() {
    let lab = Lab::new();
    let whole = undisturbed(&lab);
    let (loss, lower) = (loss_at(&whole, 4), target(&loss_at(&whole, 8)));
    let first = target(&loss);
    let sets = [&FALLING[..], &[first.as_str()]].concat();
    // a stop within the evaluation that reaches the target: the checkpoint of its step is without the row
    let (command, said) = saying(&lab, &tiny("runs", &sets));
    let (mut live, gate) = lab.held(command, "evaluation.part:52");
    gate.reached();
    live.signal("INT");
    wait_for_words(&said, "SIGINT: stopping");
    gate.open();
    live.end().expect(130);
    let run = lab.only_run("runs");
    assert_eq!(val_csv(&run).numbers("step"), [0.0, 2.0]);
    lab.run(tiny("runs", &sets)).expect(0).says(&["finished at its target"]);
    for moment in ["before_rename", "after_rename"] {
        let mut command = lab.command(["--resume", &id(&run), "--set", &lower]);
        command.env("RUNNER_FAULT", format!("run_json.{moment}"));
        assert_eq!(ended(command).code, None, "{moment}");
        lab.run(tiny("runs", &sets)).expect(0).says(&["finished at its target"]);
        reached(&run, 4, &loss, loss.parse().expect("a number"));
    }
    lab.run(["--resume", &id(&run), "--set", &lower]).expect(0);
    lab.run(["--resume", &id(&run), "--unset", "schedule.stop_at_val_loss"]).expect(0);
    assert!(results(&run) == results(&whole));
}

/// Whatever it has been trained to meanwhile: the first evaluation that is as good counts.
#[test]
fn a_run_beyond_its_target_ends_without_another_step_and_names_the_evaluation_that_reached_it() {
    for ranks in ["batch.world_size=1", "batch.world_size=2"] {
        let lab = Lab::new();
        let sets = [&FALLING[..], &[ranks, "batch.micro_batch=2"]].concat();
        let whole = lab.train_in("undisturbed", &sets);
        let (loss, lower) = (loss_at(&whole, 4), target(&loss_at(&whole, 12)));
        let asked = target(&loss);
        let sets = [&sets[..], &[asked.as_str()]].concat();
        let run = lab.train(&sets);
        reached(&run, 4, &loss, loss.parse().expect("a number"));
        // it goes on to a lower one, and dies after the checkpoint of step 8
        let mut command = lab.command(["--resume", &id(&run), "--set", &lower]);
        command.env("RUNNER_FAULT", "csv.before_row:9");
        assert_eq!(ended(command).code, None);
        let rehearsed =
            lab.run(tiny("runs", &[&sets[..], &[]].concat()).into_iter().chain(["--dry-run".into()]));
        let to_end =
            format!("would end at its target, which val_loss {loss} has reached after 4 steps, from");
        rehearsed.expect(0).says(&[&to_end, "step-00000008"]);
        let again = lab.run(tiny("runs", &sets));
        let why =
            format!("finished at its target, val_loss {loss} <= {loss} after 4 of 12 steps (it has taken 8)");
        again.expect(0).says(&[&why]);
        let at = record(&run);
        let at_target = serde_json::json!({
            "step": 4, "val_loss": loss.parse::<f64>().expect("a number"), "target": at["reached_target"]["target"],
        });
        assert_eq!((&at["reached_target"], &at["steps_done"]), (&at_target, &8.into()), "{ranks}");
        assert_eq!((support::rows(&run), checkpoints(&run)), (8, vec!["step-00000008".to_owned()]));
        assert!(val_csv(&run).cells("step").eq(["0", "2", "4", "6", "8"]));
        // the same command says the same, and a lower one finds the evaluation that reaches it
        lab.run(tiny("runs", &sets)).expect(0).says(&[&format!("already {why}")]);
        let between = loss_at(&run, 6);
        lab.run(["--resume", &id(&run), "--set", &target(&between)])
            .expect(0)
            .says(&[&format!("val_loss {between} <= {between} after 6 of 12 steps (it has taken 8)")]);
        lab.run(["--resume", &id(&run), "--unset", "schedule.stop_at_val_loss"])
            .expect(0)
            .says(&["finished in"]);
        let of_the_logs = |run: &Path| without(results(run), "samples.txt");
        assert!(of_the_logs(&run) == of_the_logs(&whole), "bytes of an undisturbed run");
    }
}
