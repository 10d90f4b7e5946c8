//! `--resume RUN`: a run goes on from its own recipe, changed in nothing that would make it another experiment.

use crate::support;

use runner::run::checkpoint::{self, CheckpointState, ChosenState};
use std::fs;
use std::path::{Path, PathBuf};
use support::{Lab, essence, everything, record, results, rows};

/// A run of `tiny.toml` that was killed after 9 of 12 steps, with checkpoints at 4 and 8.
fn killed(lab: &Lab) -> PathBuf {
    let run = lab.crash("runs", &[], "csv.before_row:12");
    assert_eq!(rows(&run), 9);
    run
}

fn id(run: &Path) -> &str {
    run.file_name().and_then(|name| name.to_str()).expect("a name")
}

#[test]
fn a_run_is_found_by_path_by_id_and_by_the_beginning_of_its_id() {
    let whole = Lab::new();
    let whole = (essence(&whole.train(&[])), whole).0;
    for how in ["path", "absolute", "trailing slash", "id", "prefix"] {
        let lab = Lab::new();
        let run = killed(&lab);
        let named = match how {
            "path" => format!("runs/{}", id(&run)),
            "absolute" => run.display().to_string(),
            "trailing slash" => format!("runs/{}/", id(&run)),
            "id" => id(&run).to_owned(),
            _ => id(&run)[..7].to_owned(),
        };
        let resumed = lab.run(["--resume", &named]);
        resumed.expect(0).says(&["step 8 of 12"]);
        assert_eq!(lab.run_of(&resumed), run, "{how}");
        assert!(essence(&run) == whole, "by {how}");
    }
}

#[test]
fn a_run_elsewhere_is_found_below_its_directory_of_runs() {
    let lab = Lab::new();
    let run = lab.crash("far/away", &[], "csv.before_row:12");
    lab.run(["--resume", id(&run)]).expect(2).says(&[id(&run)]);
    lab.run(["--resume", id(&run), "--runs-dir", "far/away"]).expect(0).says(&["step 8 of 12"]);
    assert_eq!(record(&run)["status"], "finished");
}

#[test]
fn what_names_no_run_or_several_is_refused() {
    let lab = Lab::new();
    let run = lab.train(&["schedule.max_steps=4"]);
    let other = lab.train(&["schedule.max_steps=3"]);
    for named in ["nothing", "runs", "tiny.toml", "runs/tiny-", "/"] {
        lab.run(["--resume", named]).expect(2).says(&[&format!("`{named}`"), "--runs-dir"]);
    }
    let several = lab.run(["--resume", "tiny-"]);
    several.expect(2).says(&["`tiny-`", id(&run), id(&other)]);
    // a whole id is itself, though another run's name begins with it
    let copy = lab.path("runs").join(format!("{}-copy", id(&run)));
    fs::create_dir(&copy).expect("a directory");
    fs::copy(run.join("recipe.toml"), copy.join("recipe.toml")).expect("a copy");
    let named = lab.run(["--resume", id(&run)]);
    named.expect(0).says(&["already finished"]);
    assert_eq!(lab.run_of(&named), run);
}

#[test]
fn what_does_not_change_the_mathematics_may_change() {
    let lab = Lab::new();
    let whole = lab.train_in("whole", &[]);
    let run = killed(&lab);
    let sets = ["compute.threads=2", "checkpoint.every=5", "eval.every=2", "checkpoint.keep=0"];
    let mut args = vec!["--resume", id(&run)];
    args.extend(sets.iter().flat_map(|set| ["--set", set]));
    lab.run(&args).expect(0).says(&["step 8 of 12", "with 2 threads"]);
    let record = record(&run);
    let overrides: Vec<_> = record["sessions"][1]["overrides"].as_array().expect("a list").iter().collect();
    assert_eq!(overrides.len(), 4, "{overrides:?}");
    assert!(sets.iter().all(|set| overrides.iter().any(|found| found == set)), "{overrides:?}");
    let names = |run: &Path| support::checkpoints(run);
    assert_eq!(names(&run), ["step-00000004", "step-00000008", "step-00000010", "step-00000012"]);
    let column = |run: &Path| (support::column(run, "loss"), support::column(run, "grad_norm"));
    assert_eq!(column(&run), column(&whole));
    assert_eq!(support::val_csv(&run).numbers("step"), [0.0, 5.0, 8.0, 10.0, 12.0]);
    let last = |run: &Path| fs::read(run.join("checkpoints/step-00000012/model.safetensors")).expect("read");
    assert!(last(&run) == last(&whole));
    assert!(
        fs::read(run.join("recipe.toml")).expect("read")
            == fs::read(whole.join("recipe.toml")).expect("read")
    );
}

#[test]
fn another_micro_batch_goes_on_with_the_same_losses() {
    let lab = Lab::new();
    let whole = support::column(&lab.train_in("whole", &[]), "loss");
    for micro_batch in ["batch.micro_batch=1", "batch.micro_batch=8", "batch.micro_batch=\"auto\""] {
        let run = killed(&lab);
        lab.run(["--resume", id(&run), "--set", micro_batch]).expect(0).says(&["step 8 of 12"]);
        let losses = support::column(&run, "loss");
        assert_eq!(losses[..8], whole[..8]);
        for (resumed, whole) in losses.iter().zip(&whole) {
            assert!((resumed - whole).abs() <= 1e-5 * whole, "{micro_batch}: {losses:?}");
        }
        fs::remove_dir_all(&run).expect("removed");
    }
}

#[test]
fn a_micro_batch_that_a_session_is_given_holds_for_that_session() {
    let lab = Lab::new();
    let run = lab.crash("runs", &["batch.micro_batch=\"auto\""], "csv.before_row:7");
    let given = ["--resume", id(&run), "--set", "batch.micro_batch=2"];
    let mut session = lab.command(given);
    session.env("RUNNER_FAULT", "csv.before_row:6");
    support::ended(session).says(&["step 4 of 12", "4 x 2 rows"]);
    let state = |step: u64| CheckpointState::read(&checkpoint::path_of(&run, step)).expect("intact");
    assert_eq!((state(4).micro_batch, state(4).chosen), (8, None));
    let chosen = Some(ChosenState { micro_batch: 8, keeps_outputs: None });
    assert_eq!((state(8).micro_batch, state(8).chosen), (2, chosen));
    // under the same number again, under another one, and without
    let rehearsed = |more: &[&str]| lab.run(given[..2].iter().chain(more).chain(&["--dry-run"]));
    rehearsed(&given[2..]).expect(0).says(&["step 8 of 12", "4 x 2 rows"]);
    rehearsed(&["--set", "batch.micro_batch=4"]).expect(0).says(&["2 x 4 rows"]);
    rehearsed(&[]).expect(0).says(&["1 x 8 rows"]);
    lab.run(&given[..2]).expect(0).says(&["1 x 8 rows"]);
    assert_eq!((state(12).micro_batch, state(12).chosen), (8, None));
}

#[test]
fn what_is_offered_instead_can_be_pasted_into_a_shell() {
    let lab = Lab::new();
    let run = lab.crash("my runs", &["eval.batches=1"], "csv.before_row:12");
    let refused = lab.run(["--runs-dir", "my runs", "--resume", id(&run), "--set", "eval.tokens=64"]);
    let (id, changes) = (id(&run), "--unset eval.batches --set eval.tokens=64");
    refused.expect(2).says(&[
        &format!("runner 'my runs/{id}/recipe.toml' {changes}"),
        &format!("--set 'model.init_from={{run=\"my runs/{id}\",step=8}}' {changes}"),
    ]);
    let a_run = lab.run(["plan", &format!("my runs/{id}")]);
    a_run.expect(2).says(&[&format!("`runner plan 'my runs/{id}/recipe.toml'`")]);
}

#[test]
fn what_changes_the_mathematics_is_refused_with_what_to_do_instead() {
    let lab = Lab::new();
    let run = killed(&lab);
    let before = everything(&run);
    for (set, change) in [
        ("optimizer.lr=0.02", "optimizer.lr (0.01 -> 0.02)"),
        ("seed=1", "seed (1337 -> 1)"),
        ("schedule.max_steps=24", "schedule.max_steps (12 -> 24)"),
        ("batch.total_tokens=512", "batch.total_tokens (256 -> 512)"),
        ("model.n_layer=3", "model.n_layer (2 -> 3)"),
        ("compute.precision=\"bf16\"", "compute.precision (\"fp32\" -> \"bf16\")"),
        ("data.shuffle=false", "data.shuffle (true -> false)"),
        ("name=\"other\"", "name (\"tiny\" -> \"other\")"),
    ] {
        let refused = lab.run(["--resume", id(&run), "--set", set, "--set", "compute.threads=2"]);
        let word = if set.contains('"') { format!("'{set}'") } else { set.to_owned() };
        let instead = format!("runner runs/{}/recipe.toml --set {word}", id(&run));
        refused.expect(2).says(&["a resumed run cannot change", change, &instead, "runs/README.md"]);
        assert_eq!(refused.stdout, "");
        // what may change is not blamed, and no list of it is in the way; a branch has the dimensions and the
        // batch of its run
        let branches = !["model.", "batch."].iter().any(|fixed| set.starts_with(fixed));
        let lines: Vec<&str> = refused.stderr.lines().collect();
        assert!(lines.iter().all(|line| line.len() < 200), "{lines:?}");
        assert_eq!(lines.len(), 3 + usize::from(branches), "{lines:?}");
        assert_eq!(refused.stderr.contains("--set 'model.init_from={run="), branches, "{lines:?}");
        assert!(!refused.stderr.contains("threads"), "{}", refused.stderr);
    }
    // the command that it offers trains that run
    let offered = ["--set", "optimizer.lr=0.02", "--runs-dir", "instead"];
    lab.run([&[format!("runs/{}/recipe.toml", id(&run)).as_str()][..], &offered].concat()).expect(0);
    // a name is no mathematics
    let named = lab.run(["--resume", id(&run), "name=other"]);
    named.expect(2).says(&["its directory is called so"]);
    lab.run(["--resume", id(&run), "--set", "optimizer.lrr=1"]).expect(2).says(&["optimizer.lrr", "lr"]);
    assert!(everything(&run) == before, "a refusal changes nothing");
}

#[test]
fn changed_data_or_recipe_is_not_resumed() {
    let lab = Lab::new();
    let run = killed(&lab);
    let kept = fs::read(lab.path("data/train.bin")).expect("read");
    lab.shard("data/train.bin", &support::tokens(4000, 77));
    let before = everything(&run);
    lab.run(["--resume", id(&run)]).expect(2).says(&[
        id(&run),
        "train had digest",
        "bring the old contents back",
    ]);
    assert!(everything(&run) == before);
    fs::write(lab.path("data/train.bin"), kept).expect("written");
    let recipe = fs::read_to_string(run.join("recipe.toml")).expect("read");
    fs::write(run.join("recipe.toml"), recipe.replace("lr = 0.01", "lr = 0.02")).expect("written");
    lab.run(["--resume", id(&run)]).expect(2).says(&["recipe.toml was edited"]);
    fs::write(run.join("recipe.toml"), recipe).expect("written");
    lab.run(["--resume", id(&run)]).expect(0);
    assert!(results(&run) == results(&lab.train_in("whole", &[])));
}
