//! The best checkpoint: it stays besides the newest ones, whatever happens, and is named by `RUN@best`.

use crate::faults_storage::edit;
use crate::signals::{saying, wait_for_words};
use crate::support;

use std::path::Path;
use support::{
    Lab, checkpoints, column, ended, essence, everything, record, tiny, train_csv, val_csv, without,
};

/// Evaluations at every step, of which the lowest is an early one: the learning rate is far too high.
const EARLY: [&str; 5] = [
    "checkpoint.keep_best=true",
    "checkpoint.keep=1",
    "eval.every=1",
    "optimizer.lr=0.05",
    "optimizer.clip_norm=0",
];
/// Evaluations between the checkpoints that are due, each better than the one before.
const FALLING: [&str; 4] =
    ["checkpoint.keep_best=true", "checkpoint.keep=1", "checkpoint.every=4", "eval.every=3"];

/// The step and the loss of the lowest row of `val.csv`, the first of equal ones.
fn lowest(run: &Path) -> (u64, f64) {
    let log = val_csv(run);
    let (steps, losses) = (log.numbers("step"), log.numbers("val_loss"));
    let best = (0..losses.len()).reduce(|best, row| if losses[row] < losses[best] { row } else { best });
    let best = best.expect("an evaluation");
    (steps[best] as u64, losses[best])
}

fn name(step: u64) -> String {
    format!("step-{step:08}")
}

/// Asserts that the record names the lowest evaluation, and that its checkpoint and the newest are there alone.
fn holds_best_and_last(run: &Path) -> u64 {
    let (step, loss) = lowest(run);
    let best = &record(run)["best_checkpoint"];
    assert_eq!(best["step"].as_u64(), Some(step), "{best}");
    assert_eq!(best["val_loss"].as_f64().map(|loss| loss as f32), Some(loss as f32));
    assert_eq!(best["path"], format!("checkpoints/{}", name(step)));
    let mut expected = vec![name(step), name(12)];
    expected.dedup();
    assert_eq!(checkpoints(run), expected);
    step
}

#[test]
fn the_lowest_validation_loss_keeps_its_checkpoint() {
    let lab = Lab::new();
    let all = ["checkpoint.every=1", "checkpoint.keep=0"];
    let plain = lab.train_in("all", &[&EARLY[2..], &all].concat());
    assert!(record(&plain).get("best_checkpoint").is_none());
    for (case, more) in [
        &[][..],
        &["checkpoint.background=true"],
        &["batch.world_size=2", "batch.micro_batch=2"],
        &["checkpoint.every=0"],
        &["checkpoint.every=3"],
    ]
    .iter()
    .enumerate()
    {
        let run = lab.train_in(&format!("case-{case}"), &[&EARLY, *more].concat());
        let step = holds_best_and_last(&run);
        assert!(step < 11, "the lowest is an early one: {:?}", column(&run, "loss"));
        if !more.contains(&"batch.world_size=2") {
            for file in ["model.safetensors", "optimizer.safetensors"] {
                let bytes = |run: &Path| {
                    std::fs::read(run.join("checkpoints").join(name(step)).join(file)).expect("a file")
                };
                assert!(bytes(&run) == bytes(&plain), "{file}, {more:?}");
            }
        }
    }
    // nothing else changes
    let run = lab.path("case-0").join(plain.file_name().expect("one id for both"));
    assert_eq!(train_csv(&run).numbers("loss"), train_csv(&plain).numbers("loss"));
    assert_eq!(val_csv(&run), val_csv(&plain));
}

#[test]
fn a_run_that_dies_at_any_write_never_names_a_best_checkpoint_that_is_not_there() {
    let lab = Lab::new();
    for background in [false, true] {
        let how = format!("checkpoint.background={background}");
        let sets = [&FALLING[..], &[how.as_str()]].concat();
        let whole = lab.train_in(&format!("whole-{background}"), &sets);
        holds_best_and_last(&whole);
        for point in [
            "checkpoint.before_rename",
            "checkpoint.before_rename:2",
            "checkpoint.before_rename:4",
            "checkpoint.after_rename:2",
            "checkpoint.after_rename:3",
            "checkpoint.mid_optimizer:60",
            "run_json.before_rename:3",
            "run_json.before_rename:5",
            "run_json.after_rename:4",
            "run_json.after_rename:6",
            "rotate.before_delete",
            "rotate.before_delete:2",
            "rotate.mid_delete:3",
        ] {
            let runs = format!("runs-{background}-{point}").replace([':', '.'], "-");
            let mut command = lab.command(tiny(&runs, &sets));
            command.env("RUNNER_FAULT", point);
            let died = ended(command);
            assert_eq!(died.code, None, "{point} was never reached: {}", died.stderr);
            let run = lab.only_run(&runs);
            let best = record(&run)["best_checkpoint"].clone();
            if let Some(path) = best["path"].as_str() {
                assert!(run.join(path).join("state.json").is_file(), "{point}: {best} is gone");
            }
            lab.run(tiny(&runs, &sets)).expect(0);
            holds_best_and_last(&run);
            assert_eq!(record(&run)["best_checkpoint"], record(&whole)["best_checkpoint"], "{point}");
            assert!(essence(&run) == essence(&whole), "{point}, in the background: {background}");
        }
    }
}

#[test]
fn one_failed_look_at_a_checkpoint_costs_neither_its_name_nor_its_place() {
    let lab = Lab::new();
    let sets = ["checkpoint.keep_best=true", "checkpoint.keep=2", "checkpoint.every=3", "eval.every=3"];
    let whole = lab.train_in("whole", &sets);
    assert_eq!(checkpoints(&whole), [9, 12].map(name));
    for nth in 1..=12 {
        let mut command = lab.command(tiny(&format!("runs-{nth}"), &sets));
        command.env("RUNNER_FAULT", format!("eio:state.read:{nth}"));
        ended(command).expect(0);
        let run = lab.only_run(&format!("runs-{nth}"));
        assert_eq!(record(&run)["best_checkpoint"], record(&whole)["best_checkpoint"], "look {nth}");
        let kept = checkpoints(&run);
        assert!(kept.ends_with(&[9, 12].map(name)), "look {nth}: {kept:?}");
    }
}

#[test]
fn a_run_goes_on_keeping_its_best_and_may_be_told_to_begin_or_to_cease() {
    let lab = Lab::new();
    let run = lab.crash("runs", &EARLY, "csv.before_row:16");
    let best = record(&run)["best_checkpoint"]["step"].as_u64().expect("a best checkpoint");
    // of a stopped run it stays, and is the best at the end
    lab.run(tiny("runs", &EARLY)).expect(0);
    assert_eq!(holds_best_and_last(&run), best);
    let ceased = lab.crash("ceased", &EARLY, "csv.before_row:16");
    let ceasing = [&EARLY, &["checkpoint.keep_best=false"][..]].concat();
    lab.run(tiny("ceased", &ceasing)).expect(0).says(&[&name(best), "checkpoint.keep_best is false now"]);
    assert!(record(&ceased).get("best_checkpoint").is_none());
    assert_eq!(checkpoints(&ceased), [name(12)]);
    // begun late: the best of what is evaluated from then on, also by a later resume from its own recipe
    let plain = lab.crash("begun", &EARLY[1..], "csv.before_row:16");
    let newest = checkpoints(&plain).pop().expect("a checkpoint");
    let mut command = lab.command(tiny("begun", &EARLY));
    command.env("RUNNER_FAULT", "csv.before_row:3");
    assert_eq!(ended(command).code, None);
    let recipe = std::fs::read_to_string(plain.join("recipe.toml")).expect("a recipe");
    assert!(recipe.contains("keep_best = true"), "{recipe}");
    let resumed = lab.run(["--resume".as_ref(), plain.as_os_str()]);
    assert!(!resumed.expect(0).stderr.contains("keep_best"), "{}", resumed.stderr);
    let kept = record(&plain)["best_checkpoint"]["step"].as_u64().expect("a best checkpoint");
    assert!(name(kept) >= newest && checkpoints(&plain).contains(&name(kept)));
}

#[test]
fn a_best_checkpoint_that_is_damaged_or_lost_stays_the_best_one_and_is_not_deleted() {
    let lab = Lab::new();
    type Damage = fn(&Path);
    let damages: [(&str, Damage); 5] = [
        ("model.safetensors", |best| edit(&best.join("model.safetensors"), |bytes| bytes[1500] ^= 1)),
        ("optimizer.safetensors", |best| {
            edit(&best.join("optimizer.safetensors"), |bytes| bytes.truncate(9))
        }),
        ("tokenizer.json", |best| edit(&best.join("tokenizer.json"), |bytes| bytes.push(b' '))),
        ("state.json", |best| edit(&best.join("state.json"), |bytes| bytes.clear())),
        ("state.json", |best| std::fs::remove_dir_all(best).expect("removed")),
    ];
    let sets = [&EARLY[..], &["data.tokenizer=bytes", "checkpoint.every=4"]].concat();
    for (case, (file, damage)) in damages.into_iter().enumerate() {
        let runs = format!("runs-{case}");
        let run = lab.crash(&runs, &sets, "csv.before_row:16");
        let (best, loss) = lowest(&run);
        let checkpoint = run.join("checkpoints").join(name(best));
        damage(&checkpoint);
        let before = checkpoint.is_dir().then(|| everything(&checkpoint));
        let words = ["-q".to_owned()].into_iter().chain(tiny(&runs, &sets));
        let said = lab.run(words);
        said.expect(0).says(&[
            &name(best),
            file,
            "is the checkpoint of the best evaluation",
            "bring it back",
        ]);
        let named = &record(&run)["best_checkpoint"];
        assert_eq!(named["step"].as_u64(), Some(best), "{file}: {named}");
        assert_eq!(named["val_loss"].as_f64().map(|loss| loss as f32), Some(loss as f32));
        assert_eq!(checkpoint.is_dir().then(|| everything(&checkpoint)), before, "{file}");
        let sampled =
            lab.run(["sample", &format!("{}@best", run.display()), "--prompt", "!", "--tokens", "2"]);
        match (before, file) {
            (None, _) => sampled.expect(2).says(&["has lost its best checkpoint"]),
            // a model does without it
            (Some(_), "optimizer.safetensors") => sampled.expect(0),
            (Some(_), _) => sampled.expect(1).says(&[file, "is not what was saved"]),
        };
    }
}

#[test]
fn what_was_evaluated_at_the_step_of_a_checkpoint_counts_at_any_cadence() {
    let lab = Lab::new();
    let best = lowest(&lab.train_in("whole", &EARLY)).0;
    let due = format!("checkpoint.every={best}");
    let rarely = format!("eval.every={}", best + 1);
    let sets = [&EARLY[..], &[due.as_str()]].concat();
    // after the evaluation and the step that follow the checkpoint
    let point = format!("csv.before_row:{}", 2 * best + 4);
    for more in [&[][..], &["batch.world_size=2", "batch.micro_batch=2"]] {
        let runs = format!("runs-{}", more.len());
        let sets = [&sets[..], more].concat();
        let run = lab.crash(&runs, &sets, &point);
        assert_eq!(record(&run)["best_checkpoint"]["step"].as_u64(), Some(best));
        let loss = lowest(&run).1;
        let args = |runs: &str| tiny(runs, &[&sets[..], &[rarely.as_str()]].concat());
        // and killed once more, before that evaluation is written again
        let mut command = lab.command(args(&runs));
        command.env("RUNNER_FAULT", "csv.before_row:1");
        assert_eq!(ended(command).code, None);
        assert_eq!(record(&run)["best_checkpoint"]["step"].as_u64(), Some(best));
        let said = lab.run(["-q".to_owned()].into_iter().chain(args(&runs)));
        assert_eq!((said.code, said.stderr.as_str()), (Some(0), ""), "nothing is lost");
        assert_eq!(
            lowest(&run),
            (best, loss),
            "{}",
            std::fs::read_to_string(run.join("val.csv")).expect("a log")
        );
        let named = &record(&run)["best_checkpoint"];
        assert_eq!(named["step"].as_u64(), Some(best), "{named}");
        assert!(checkpoints(&run).contains(&name(best)), "{:?}", checkpoints(&run));
    }
}

#[test]
fn checkpoints_are_named_by_their_run() {
    let lab = Lab::new();
    let run = lab.train(&[&EARLY[..], &["checkpoint.every=4", "checkpoint.keep=2"]].concat());
    let best = lowest(&run).0;
    let id = run.file_name().expect("a name").to_string_lossy().into_owned();
    let path = |step: u64| format!("runs/{id}/checkpoints/{}", name(step));
    let sampled = |model: &str| {
        let ended = lab.run(["sample", model, "--prompt", "!", "--tokens", "9", "--seed", "3"]);
        ended.expect(0);
        ended.stdout
    };
    for (word, step) in [("best", best), ("latest", 12), ("8", 8), ("0008", 8)] {
        for model in [format!("runs/{id}@{word}"), format!("{}@{word}", &id[..7])] {
            assert_eq!(sampled(&model), sampled(&path(step)), "{model}");
        }
    }
    let refused = |args: &[&str], parts: &[&str]| {
        lab.run(args).expect(2).says(parts);
    };
    let steps = format!("it has {best}, 8, 12");
    for (word, why) in [("7", "has no checkpoint of step 7"), ("bset", "no checkpoint that is called `bset`")]
    {
        refused(&["sample", &format!("{id}@{word}")], &[&id, why, &steps]);
        let from = format!("model.init_from=runs/{id}@{word}");
        refused(&["tiny.toml", "--set", &from], &["model.init_from", why, &steps]);
    }
    let meant = format!("names a checkpoint, and what is meant here is a run: `runs/{id}`");
    refused(&["--resume", &format!("{id}@8")], &[&meant]);
    refused(&["compare", &format!("{id}@best")], &[&meant]);
    let plain = lab.train_in("plain", &[]);
    let plain = plain.strip_prefix(lab.dir()).expect("below it").display().to_string();
    refused(
        &["sample", &format!("{plain}@best")],
        &["keeps no best checkpoint", "checkpoint.keep_best = true", "it has 4, 8, 12"],
    );
    // a path that holds the sign stays a path
    std::fs::rename(lab.path(path(8)), lab.path(format!("runs/{id}@other"))).expect("rename");
    assert_eq!(sampled(&format!("runs/{id}@other")), sampled(&format!("runs/{id}@other/")));
}

#[test]
fn another_run_begins_from_a_named_checkpoint() {
    let lab = Lab::new();
    let run = lab.train(&[&EARLY[..], &["checkpoint.every=4", "checkpoint.keep=0"]].concat());
    let id = run.file_name().expect("a name").to_string_lossy().into_owned();
    let best = lowest(&run).0;
    let begun = |runs: &str, from: &str, more: &[&str]| {
        let from = format!("model.init_from={from}");
        lab.train_in(runs, &[&[from.as_str(), "seed=5"], more].concat())
    };
    // the weights alone
    let named = begun("named", &format!("runs/{id}@best"), &[]);
    let direct = begun("direct", &format!("runs/{id}/checkpoints/{}", name(best)), &[]);
    assert_eq!(named.file_name(), direct.file_name(), "one experiment");
    let results = |run: &Path| without(essence(run), "recipe.toml");
    assert!(results(&named) == results(&direct));
    let parent = &record(&named)["parent"];
    assert_eq!((&parent["run"], parent["step"].as_u64()), (&id.as_str().into(), Some(best)));
    let written = std::fs::read_to_string(named.join("recipe.toml")).expect("a recipe");
    assert!(written.contains(&format!("{id}@{best}\"")), "{written}");
    // the whole state
    let named = begun("state", &format!("{{run=\"runs/{id}@8\"}}"), &[]);
    let direct = begun("state-of", &format!("{{run=\"runs/{id}\",step=8}}"), &[]);
    assert!(essence(&named) == essence(&direct));
    let both = format!("model.init_from={{run=\"runs/{id}@8\",step=4}}");
    lab.run(["tiny.toml", "--set", &both]).expect(2).says(&["names step 8, and `step` is 4"]);
}

#[test]
fn what_evaluates_nothing_keeps_no_best() {
    let lab = Lab::new();
    lab.run(tiny("runs", &["checkpoint.keep_best=true", "eval.every=0"]))
        .expect(2)
        .says(&["checkpoint.keep_best", "`eval.every` is 0"]);
    lab.run(tiny("runs", &["checkpoint.keep_best=true", "data.val=[]"]))
        .expect(2)
        .says(&["`checkpoint.keep_best` has no effect with data.val = []"]);
}

/// The evaluation of a checkpoint's step is made again by who goes on from it. Until it is, the earlier one counts.
#[test]
fn a_session_that_ends_before_an_evaluation_is_made_again_takes_nothing_back() {
    let lab = Lab::new();
    let sets = ["checkpoint.keep_best=true", "checkpoint.keep=2", "checkpoint.every=4", "eval.every=4"];
    let whole = lab.train_in("whole", &sets);
    // the thirteenth row is that of the second step after the checkpoint of step 8
    let run = lab.crash("runs", &sets, "csv.before_row:13");
    let found = |run: &Path| {
        let record = record(run);
        (
            record["best_checkpoint"].clone(),
            record["results"]["best_val_loss"].clone(),
            val_csv(run).numbers("step"),
        )
    };
    let best = record(&run)["best_checkpoint"].clone();
    assert_eq!((best["step"].as_u64(), val_csv(&run).numbers("step")), (Some(8), vec![0.0, 4.0, 8.0]));
    let expected = (best.clone(), best["val_loss"].clone(), vec![0.0, 4.0, 8.0]);
    let id = run.file_name().expect("a name").to_string_lossy().into_owned();
    let args = |more: &[&str]| -> Vec<String> {
        [&["--resume", &id], more].concat().into_iter().map(str::to_owned).collect()
    };
    let resume = |more: &[&str]| lab.command(args(more));
    for _ in 0..2 {
        let mut command = resume(&[]);
        command.env("RUNNER_FAULT", "error:csv.before_row:1");
        ended(command).expect(1);
        assert_eq!(found(&run), expected);
        let (command, said) = saying(&lab, &args(&[]));
        let (mut live, gate) = lab.held(command, "evaluation.part:3");
        gate.reached();
        live.signal("INT");
        wait_for_words(&said, "SIGINT: stopping");
        gate.open();
        live.end().expect(130);
        assert_eq!(found(&run), expected);
    }
    // at a cadence that does not come by, it is made again all the same, and its checkpoint stays
    let mut command = resume(&["--set", "eval.every=50", "--set", "checkpoint.keep=1"]);
    command.env("RUNNER_FAULT", "csv.before_row:4");
    assert_eq!(ended(command).code, None);
    assert_eq!(found(&run).0, best);
    assert!(checkpoints(&run).contains(&name(8)));
    ended(resume(&[])).expect(0);
    assert!(val_csv(&run) == val_csv(&whole));
    assert_eq!(record(&run)["best_checkpoint"], record(&whole)["best_checkpoint"]);
}
