//! Branching: a new run that goes on from the whole state of another one.

use crate::support;

use serde_json::Value as Json;
use std::fs;
use std::path::{Path, PathBuf};
use support::{Lab, column, essence, everything, record, results, seen, train_csv, val_csv, without};

fn id(run: &Path) -> String {
    run.file_name().and_then(|name| name.to_str()).expect("a name").to_owned()
}

/// The override that branches off a run in `runs`.
fn from(run: &Path, more: &str) -> String {
    format!("model.init_from={{run=\"runs/{}\"{more}}}", id(run))
}

/// Trains the branch of a run below `branches`.
fn branch(lab: &Lab, run: &Path, more: &str, sets: &[&str]) -> PathBuf {
    lab.train_in("branches", &[&[from(run, more).as_str()], sets].concat())
}

/// A file of a checkpoint.
fn tensors(run: &Path, step: u64, name: &str) -> Vec<u8> {
    fs::read(run.join(format!("checkpoints/step-{step:08}/{name}"))).expect("a file")
}

/// The lines of a log from a step on, without the columns that tell of time.
fn rows_from(run: &Path, log: &str, step: u64) -> Vec<String> {
    let text = String::from_utf8(results(run)[log].clone()).expect("text");
    let is_later = |line: &&str| {
        line.split(',').next().and_then(|cell| cell.parse().ok()).is_some_and(|at: u64| at >= step)
    };
    text.lines().filter(is_later).map(str::to_owned).collect()
}

#[test]
fn under_the_same_keys_a_branch_is_the_uninterrupted_run() {
    for sets in [
        &[][..],
        &[
            "watchdog.max_loss_zscore=3",
            "watchdog.window=2",
            "watchdog.action=skip",
            "compute.precision=fp16",
        ],
        &["batch.world_size=2", "batch.micro_batch=2"],
        &["batch.world_size=2", "batch.micro_batch=2", "distributed.shard_optimizer=true"],
    ] {
        let lab = Lab::new();
        let sets = [&["checkpoint.keep=0"], sets].concat();
        let whole = lab.train(&sets);
        let new = branch(&lab, &whole, ",step=4", &sets);
        assert_ne!(id(&new), id(&whole));
        assert_eq!(rows_from(&new, "train.csv", 0), rows_from(&whole, "train.csv", 4), "{sets:?}");
        assert_eq!(rows_from(&new, "train.csv", 0).len(), 8);
        assert_eq!(rows_from(&new, "val.csv", 0), rows_from(&whole, "val.csv", 4), "{sets:?}");
        for step in [4, 8, 12] {
            for name in ["model.safetensors", "optimizer.safetensors"] {
                assert!(
                    tensors(&new, step, name) == tensors(&whole, step, name),
                    "{name} of {step}, {sets:?}"
                );
            }
        }
        let parent = &record(&new)["parent"];
        assert_eq!(parent["run"], id(&whole).as_str());
        assert_eq!((parent["step"].as_u64(), parent["optimizer"].as_bool()), (Some(4), Some(true)));
        assert_eq!(record(&new)["sessions"][0]["from_step"], 4);
    }
}

#[test]
fn a_branch_is_resumed_after_the_other_run_is_gone() {
    let lab = Lab::new();
    let whole = lab.train(&["checkpoint.keep=0"]);
    let sets = [from(&whole, ",step=4"), "seed=9".to_owned()];
    let sets: Vec<&str> = sets.iter().map(String::as_str).collect();
    let expected = essence(&lab.train_in("unbroken", &sets));
    let kept = lab.path("runs");
    let aside = lab.path("aside");
    // before its first checkpoint is there it needs the other run, and says so
    for (fault, begun) in
        [("checkpoint.before_rename", false), ("csv.before_row:2", true), ("csv.before_row:7", true)]
    {
        let run = lab.crash(fault.replace([':', '.'], "-").as_str(), &sets, fault);
        fs::rename(&kept, &aside).expect("moved");
        let named = run.display().to_string();
        let resumed = lab.run(["--resume", &named]);
        if begun {
            resumed.expect(0);
        } else {
            resumed.expect(2).says(&["model.init_from", "is not a run"]);
        }
        fs::rename(&aside, &kept).expect("moved back");
        if !begun {
            lab.run(["--resume", &named]).expect(0);
        }
        // the recipe names the other run by a path relative to its own directory, which is as deep
        assert!(without(essence(&run), "recipe.toml") == without(expected.clone(), "recipe.toml"), "{fault}");
    }
}

#[test]
fn the_identity_is_that_of_the_contents() {
    let lab = Lab::new();
    let whole = lab.train(&["checkpoint.keep=0"]);
    let more = ["schedule.max_steps=14"];
    let newest = branch(&lab, &whole, "", &more);
    assert_eq!(id(&branch(&lab, &whole, ",step=12,optimizer=true", &more)), id(&newest));
    assert_eq!(lab.runs("branches").len(), 1, "the same state, named in two ways");
    let recipe = fs::read_to_string(newest.join("recipe.toml")).expect("a recipe");
    let line = format!("init_from = {{ run = \"../../runs/{}\", step = 12, optimizer = true }}", id(&whole));
    assert!(recipe.contains(&line), "the step is written out:\n{recipe}");
    assert_ne!(id(&branch(&lab, &whole, ",step=8", &more)), id(&newest));
    // the weights alone are the weights of that checkpoint, however they are named
    let weights = branch(&lab, &whole, ",step=8,optimizer=false", &more);
    let checkpoint = format!("model.init_from=runs/{}/checkpoints/step-00000008", id(&whole));
    assert_eq!(id(&lab.train_in("branches", &[&checkpoint, more[0]])), id(&weights));
    assert_eq!(column(&weights, "step")[0], 0.0);
    assert_eq!(record(&weights)["parent"]["optimizer"], false);
    // elsewhere it is the same experiment
    fs::rename(lab.path("runs"), lab.path("moved")).expect("moved");
    let moved = format!("model.init_from={{run=\"moved/{}\",step=12}}", id(&whole));
    assert_eq!(id(&lab.train_in("branches", &[&moved, more[0]])), id(&newest));
}

#[test]
fn a_decay_branches_off_a_constant_rate() {
    let lab = Lab::new();
    let long = ["schedule.kind=wsd", "schedule.max_steps=40", "schedule.decay_steps=4", "checkpoint.keep=0"];
    let trunk = lab.train(&long);
    let recipe = format!(
        "extends = \"runs/{0}/recipe.toml\"\nname = \"decayed\"\n[model]\ninit_from = {{ run = \"runs/{0}\", step = 8 }}\n\
         [schedule]\nmax_steps = 14\ndecay_steps = 6\n",
        id(&trunk)
    );
    lab.write("decayed.toml", recipe);
    let plan = lab.run(["plan", "decayed.toml"]);
    plan.expect(0);
    let begins = format!("branches off {} at step 8", id(&trunk));
    assert!(plan.stdout.contains(&begins), "{}", plan.stdout);
    let ended = lab.run(["decayed.toml"]);
    ended.expect(0).says(&["step 8 of 14", &begins]);
    let run = lab.run_of(&ended);
    assert_eq!(column(&run, "step"), [8.0, 9.0, 10.0, 11.0, 12.0, 13.0]);
    assert_eq!(column(&run, "tokens")[0], 9.0 * 256.0);
    let rates = column(&run, "lr");
    assert!((rates[0] - 1e-2).abs() < 1e-12 && rates.is_sorted_by(|a, b| a > b), "{rates:?}");
    assert_eq!(column(&run, "loss")[0], column(&trunk, "loss")[8]);
    // 10 is the first evaluation at or after step 8
    assert_eq!(val_csv(&run).numbers("step"), [10.0, 14.0]);
    let compared = lab.run(["compare", "runs"]);
    compared.expect(0);
    assert!(compared.stdout.contains(&format!("{}@8", id(&trunk))), "{}", compared.stdout);
    assert_eq!(train_csv(&run).rows.len(), 6);
}

#[test]
fn other_data_and_another_order_are_said() {
    let lab = Lab::new();
    let whole = lab.train(&["checkpoint.keep=0"]);
    lab.shard("data/other.bin", &support::tokens(4000, 8));
    let sets = [from(&whole, ",step=8"), "seed=5".to_owned(), "data.train=data/other.bin".to_owned()];
    let sets: Vec<&str> = sets.iter().map(String::as_str).collect();
    let ended = lab.run(support::tiny("runs", &sets));
    ended.expect(0).says(&[
        "validation data may be among those",
        "the training data are not those",
        "the order of rows is another",
        "row 64",
    ]);
}

#[test]
fn what_a_branch_takes_is_what_its_own_steps_take() {
    let lab = Lab::new();
    let whole = lab.train_in("parents", &["checkpoint.keep=0"]);
    let from = format!("model.init_from={{run=\"parents/{}\",step=8}}", id(&whole));
    // rows of 32 tokens, 8 of which make a step
    for (name, rows) in [("small", 40), ("tiny", 4), ("row", 1)] {
        lab.shard(&format!("data/{name}.bin"), &support::tokens(32 * rows + 1, 8));
    }
    let planned = |more: &[&str]| {
        let args = support::tiny("runs", &[&[from.as_str(), "schedule.max_steps=11"], more].concat());
        let args = || std::iter::once("plan").chain(args.iter().map(String::as_str));
        let json = lab.run(args().chain(["--format", "json"])).expect(0).stdout.clone();
        let json: Json = serde_json::from_str(&json).expect("JSON");
        (lab.run(args()).expect(0).stdout.clone(), json)
    };
    let number = |value: &Json| value.as_f64().expect("a number");
    let (text, plan) = planned(&["data.train=data/small.bin"]);
    assert!((number(&plan["epochs"]) - 24.0 / 40.0).abs() < 1e-12, "{plan}");
    let says = ["3 steps, 768 tokens of its own", "0.60 epochs: by the run's own steps"];
    assert!(says.iter().all(|says| text.contains(says)), "{text}");
    assert_eq!((&plan["first_step"], &plan["steps"], &plan["tokens"]), (&8.into(), &11.into(), &2816.into()));
    assert_eq!(number(&plan["flops"]), number(&plan["flops_per_token"]) * 768.0);
    let predicted = &plan["predicted"];
    let steps = number(&predicted["training_s"]) / number(&predicted["step_s"]);
    assert!((steps - 3.0).abs() < 1e-9, "{predicted}");
    // the rows of the same data count, whichever run has read them
    let (text, same) = planned(&[]);
    assert!((number(&same["epochs"]) - 88.0 / number(&same["data"]["train_rows"])).abs() < 1e-12, "{same}");
    assert!(text.contains("epochs: with those of the other run"), "{text}");
    let lint = |name: &str| {
        let plan = planned(&[&format!("data.train=data/{name}.bin")]).1;
        let lints = plan["lints"].as_array().expect("a list").clone();
        lints.into_iter().find(|lint| lint["code"] == "many-epochs")
    };
    assert_eq!(lint("small"), None);
    let many = lint("tiny").expect("a lint");
    assert!(many["message"].as_str().expect("text").contains("goes through its data 6.0 times"), "{many}");
    assert_eq!(many["help"], "use more data, or 10 steps at most");
    assert_eq!(lint("row").expect("a lint")["help"], "use more data");
    // the log counts alike, also of a run that goes on without the other one
    let sets = [from.as_str(), "schedule.max_steps=11", "data.train=data/small.bin"];
    let ended = lab.run(support::tiny("runs", &sets));
    ended.expect(0).says(&["11 steps, 2,816 tokens; 3 steps of its own, 0.60 epochs of 40 rows"]);
    let expected = column(&lab.run_of(&ended), "epoch");
    assert!(expected.iter().zip([0.2, 0.4, 0.6]).all(|(found, epoch)| (found - epoch).abs() < 1e-6));
    let run = lab.crash("killed", &sets, "csv.before_row:3");
    fs::rename(lab.path("parents"), lab.path("gone")).expect("moved");
    lab.run(["--resume", &run.display().to_string()]).expect(0).says(&["0.60 epochs of 40 rows"]);
    assert_eq!(column(&run, "epoch"), expected);
    // a branch of the branch counts what that one has read of the same data
    let from = format!("model.init_from={{run=\"killed/{}\"}}", id(&run));
    let again = lab.train_in("again", &[&from, "data.train=data/small.bin", "schedule.max_steps=12"]);
    assert!((column(&again, "epoch")[0] - 0.8).abs() < 1e-6, "{:?}", column(&again, "epoch"));
}

#[test]
fn what_does_not_fit_the_state_is_refused_at_its_key() {
    let lab = Lab::new();
    let whole = lab.train(&[]);
    let named = format!("runs/{}", id(&whole));
    for (more, set, parts) in [
        (
            ",step=5",
            "schedule.max_steps=20",
            &["`model.init_from`", "no checkpoint of step 5", "it has 4, 8, 12"][..],
        ),
        ("", "schedule.max_steps=12", &["`schedule.max_steps` is 12", "step 12"]),
        ("", "batch.total_tokens=512", &["`batch.total_tokens` is 512", "256", "optimizer = false"]),
        ("", "model.n_layer=3", &["`model.n_layer` is 3", "recipe.toml` says 2", "model.init_from"]),
        ("", "model.block_size=16", &["`model.block_size` is 16", "says 32"]),
        (",step=-1", "seed=1", &["`step`", "{ run = "]),
        (",stop=1", "seed=1", &["no member `stop`", "run, step, optimizer"]),
        (",optimizer=1", "seed=1", &["`optimizer`", "true or false"]),
    ] {
        let ended = lab.run(support::tiny("runs", &[&from(&whole, more), set]));
        ended.expect(2).says(parts);
    }
    let none = lab.run(support::tiny("runs", &["model.init_from={run=\"data\"}"]));
    none.expect(2).says(&["data` is not a run"]);
    assert_eq!(lab.runs("runs").len(), 1);
    // a damaged state is no state
    fs::write(lab.path(&named).join("checkpoints/step-00000012/optimizer.safetensors"), "x").expect("damage");
    let sets = [from(&whole, ",step=12"), "schedule.max_steps=14".to_owned()];
    let damaged = lab.run(support::tiny("runs", &[&sets[0], &sets[1]]));
    assert_ne!(damaged.code, Some(0));
    damaged.says(&["optimizer.safetensors", "truncated or corrupted"]);
}

#[test]
fn a_run_that_began_with_weights_is_resumed_after_those_are_gone() {
    let lab = Lab::new();
    let first = lab.train_in("firsts", &[]);
    let from = format!("model.init_from=firsts/{}@latest", id(&first));
    let sets = [from.as_str(), "seed=5"];
    let whole = lab.train_in("whole", &sets);
    let run = lab.crash("runs", &sets, "csv.before_row:9");
    let early = lab.crash("early", &sets, "csv.before_row:2");
    fs::remove_dir_all(first.join("checkpoints")).expect("removed");
    lab.run(["--resume", &format!("runs/{}", id(&run))]).expect(0);
    assert!(essence(&run) == essence(&whole));
    // without a checkpoint of its own it needs them
    let named = format!("early/{}", id(&early));
    let refused = lab.run(["--resume", &named]);
    assert!(matches!(refused.code, Some(1 | 2)), "{}", refused.stderr);
    refused.says(&["model.init_from"]);
}

#[test]
fn a_refused_resume_shows_the_command_that_branches_off() {
    let lab = Lab::new();
    let run = lab.train(&[]);
    let named = format!("runs/{}", id(&run));
    let sets = ["--set", "schedule.max_steps=16", "--set", "optimizer.betas=[0.8, 0.9]"];
    let refused = lab.run(["--resume", &named].iter().chain(&sets));
    refused.expect(2).says(&["cannot change", "begin another experiment from this run's state"]);
    let command =
        refused.stderr.lines().find_map(|line| line.split_once("state: runner ")).expect("a command").1;
    let mut shell = lab.launcher("sh");
    shell.args(["-c", &format!("exec \"$RUNNER\" {command}")]);
    let output = shell.output().expect("it runs");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let new = lab.path(String::from_utf8(output.stdout).expect("UTF-8").trim());
    assert_eq!(column(&new, "step"), [12.0, 13.0, 14.0, 15.0]);
    // what no branch can change has no such command
    let refused = lab.run(["--resume", &named, "--set", "model.n_layer=3"]);
    assert!(!refused.expect(2).stderr.contains("init_from="), "{}", refused.stderr);
}

/// The digest of a text does not tell what its tokens are.
#[test]
fn tokens_that_mean_something_else_than_those_of_the_weights_are_said() {
    let lab = Lab::new();
    lab.write("a.txt", "so she sang, so he sang; so they sang of it all\n".repeat(60));
    let data = |tokenizer| ["data.train=a.txt", "data.val=a.txt", tokenizer, "eval.batches=1"];
    let parent = lab.train_in("parents", &data("data.tokenizer=bytes"));
    let (newest, parent) = (parent.join("checkpoints/step-00000012"), parent.display());
    let ways = [
        format!("model.init_from=\"{}\"", newest.display()),
        format!("model.init_from={{run=\"{parent}\",optimizer=false}}"),
        format!("model.init_from={{run=\"{parent}\",step=8}}"),
    ];
    for (at, way) in ways.iter().enumerate() {
        let begin = |tokenizer| {
            let runs = format!("{tokenizer}-{at}");
            lab.run(support::tiny(&runs, &[&data(tokenizer)[..], &[way]].concat()))
        };
        let said = "the tokens of the data are taken for char, and those of the weights are bytes";
        begin("data.tokenizer=char").expect(0).says(&[said]);
        let ended = begin("data.tokenizer=bytes");
        assert!(!ended.expect(0).stderr.contains("the tokens of"), "{}", ended.stderr);
    }
    // characters of another text have other numbers
    lab.write("b.txt", "It was: the end, as they said of old Adam\n".repeat(60));
    let chars = lab.train_in("chars", &data("data.tokenizer=char"));
    let way = format!("model.init_from=\"{}\"", chars.join("checkpoints/step-00000012").display());
    let sets = ["data.train=b.txt", "data.val=b.txt", "data.tokenizer=char", "eval.batches=1", &way];
    lab.run(support::tiny("other", &sets)).expect(0).says(&["taken for char", "are other ones"]);
}

#[test]
fn weights_alone_need_no_state_of_the_optimizer() {
    let lab = Lab::new();
    let parent = lab.train(&["checkpoint.keep=0"]);
    for step in [4, 8, 12] {
        let file = format!("checkpoints/step-{step:08}/optimizer.safetensors");
        fs::remove_file(parent.join(file)).expect("removed");
    }
    let begin = |more: &str| lab.run(support::tiny("runs", &[&from(&parent, more), "schedule.max_steps=13"]));
    begin(",step=8,optimizer=false").expect(0).says(&["begins at step 0 with the weights of"]);
    begin(",step=8").says(&["optimizer.safetensors"]);
    fs::write(parent.join("checkpoints/step-00000008/model.safetensors"), "x").expect("damage");
    begin(",step=8,optimizer=false").expect(1).says(&["model.safetensors", "is not what was saved"]);
}

/// The same recipe may begin another branch by then.
#[test]
fn a_branch_that_is_interrupted_names_the_command_that_resumes_it() {
    let lab = Lab::new();
    let parent = lab.train(&["checkpoint.keep=0"]);
    let args = support::tiny("runs", &[&from(&parent, ",step=8"), "schedule.max_steps=40"]);
    let (mut live, gate) = lab.held(lab.command(args), "csv.mid_row");
    gate.reached();
    live.signal("TERM");
    gate.open();
    let stopped = live.end();
    stopped.expect(143).says(&["interrupted after", "`runner --resume ", "` resumes"]);
    lab.run(["--resume", lab.run_of(&stopped).to_str().expect("UTF-8")]).expect(0);
}

/// Its seconds are its own, and its steps are not.
#[test]
fn a_branch_on_its_way_to_a_target_is_told_of() {
    let lab = Lab::new();
    let parent = lab.train_in("runs", &["eval.every=4"]);
    let branch = lab.train_in("runs", &[&from(&parent, ",step=8"), "eval.every=4", "schedule.max_steps=14"]);
    let last = support::val_csv(&branch).numbers("val_loss").into_iter().fold(f64::INFINITY, f64::min);
    let target = format!("val_loss={}", last + 1e-3);
    let compared = lab.run(["compare", "runs", "--target", &target]);
    let note = format!("{}: branched off another run, whose steps and tokens count", id(&branch));
    assert!(compared.expect(0).stdout.contains(&note), "{}", compared.stdout);
    let told = |more: &[&str]| {
        let compared = lab.run([&["compare", "runs"], more].concat());
        compared.expect(0).stdout.matches("branched off another run").count()
    };
    // the usual table has seconds
    assert_eq!([told(&[]), told(&["--metrics", "val_loss"]), told(&["--target", &target])], [1, 0, 1]);
}

/// A loop restarts, also where the other run keeps fewer checkpoints than it has branches.
#[test]
fn the_same_command_goes_on_after_the_checkpoint_that_a_run_began_from_is_gone() {
    let lab = Lab::new();
    let trunk = lab.train(&["checkpoint.keep=0"]);
    let weights = format!("model.init_from=\"runs/{}/checkpoints/step-00000004\"", id(&trunk));
    let named = format!("model.init_from=\"runs/{}@4\"", id(&trunk));
    for (way, from) in [
        from(&trunk, ",step=4"),
        format!("model.init_from={{run=\"runs/{}@4\"}}", id(&trunk)),
        from(&trunk, ",step=4,optimizer=false"),
        weights,
        named,
    ]
    .iter()
    .enumerate()
    {
        let sets = [from.as_str(), "seed=9", "schedule.max_steps=14"];
        let whole = lab.train_in(&format!("whole-{way}"), &sets);
        let finished = lab.train_in(&format!("finished-{way}"), &sets);
        let begun = lab.crash(&format!("begun-{way}"), &sets, "csv.before_row:9");
        let checkpoint = trunk.join("checkpoints/step-00000004");
        let aside = lab.path("aside");
        fs::rename(&checkpoint, &aside).expect("moved");
        let before = everything(&finished);
        let again = lab.run(support::tiny(&format!("finished-{way}"), &sets));
        again.expect(0).says(&["already finished"]);
        assert_eq!(lab.run_of(&again), finished);
        let recipe = finished.join("recipe.toml").display().to_string();
        let runs = format!("finished-{way}");
        lab.run([recipe.as_str(), "--runs-dir", &runs]).expect(0).says(&["already finished"]);
        assert!(everything(&finished) == before, "{from}");
        // several recipes are checked before the first is trained
        let args = support::tiny(&format!("begun-{way}"), &sets);
        let both = ["tiny.toml".to_owned()].into_iter().chain(args.clone()).chain(["--dry-run".to_owned()]);
        lab.run(both).expect(0).says(&["would train", "step-0000000"]);
        let plan = lab.run(["plan".to_owned()].into_iter().chain(args.clone()));
        assert!(plan.expect(0).stdout.contains("goes on from its checkpoint of step"), "{}", plan.stdout);
        assert_eq!(lab.run_of(lab.run(args).expect(0)), begun);
        assert!(essence(&begun) == essence(&whole), "{from}");
        // what has not begun, begins again, or began at another step needs it
        let fresh = support::tiny(&runs, &sets).into_iter().chain(["--fresh".to_owned()]);
        assert_ne!(lab.run(fresh).code, Some(0), "{from}");
        assert!(everything(&finished) == before, "{from}");
        let other = lab.run(support::tiny(&runs, &[from.as_str(), "seed=8", "schedule.max_steps=14"]));
        assert_ne!(other.code, Some(0), "{from}");
        other.says(&["model.init_from"]);
        fs::rename(&aside, &checkpoint).expect("moved back");
    }
    let missing = lab.run(support::tiny("new", &[from(&trunk, ",step=5").as_str()]));
    missing.expect(2).says(&["no checkpoint of step 5", "it has 4, 8, 12", "runner --resume"]);
}

/// A recipe that names no step means the newest checkpoint, which is another one once the other run has gone on.
#[test]
fn the_same_command_goes_on_with_the_branch_that_it_began() {
    for (way, fault) in [
        ("{run=\"RUN\"}", "csv.before_row:6"),
        ("{run=\"RUN\",optimizer=false}", "csv.before_row:13"),
        ("\"RUN@latest\"", "csv.before_row:13"),
    ] {
        let lab = Lab::new();
        let trunk = lab.crash("runs", &["checkpoint.keep=0"], "csv.before_row:9");
        let from = format!("model.init_from={}", way.replace("RUN", &format!("runs/{}", id(&trunk))));
        let sets = [from.as_str(), "seed=9", "schedule.max_steps=20"];
        let expected = essence(&lab.train_in("whole", &sets));
        let begun = lab.crash("begun", &sets, fault);
        let elsewhere = lab.crash("elsewhere", &sets, fault);
        lab.run(support::tiny("runs", &["checkpoint.keep=0"])).expect(0);
        let begun_again = || support::tiny("begun", &sets);
        let plan = lab.run(["plan".to_owned()].into_iter().chain(begun_again()));
        assert!(plan.expect(0).stdout.contains("goes on from its checkpoint of step"), "{}", plan.stdout);
        let again = lab.run(begun_again());
        let from_step =
            format!("at step {} and has not ended, so it goes on", record(&begun)["parent"]["step"]);
        again.expect(0).says(&[&from_step, "has step 12 by now"]);
        assert_eq!(lab.run_of(&again), begun);
        assert!(essence(&begun) == expected, "{way}");
        // once that has ended, the newest is another one, as it is for a run that starts over
        let next = lab.run_of(lab.run(begun_again()).expect(0));
        let fresh = support::tiny("elsewhere", &sets).into_iter().chain(["--fresh".to_owned()]);
        let fresh = lab.run_of(lab.run(fresh).expect(0));
        assert_eq!([&next, &fresh].map(|run| record(run)["parent"]["step"].as_u64()), [Some(12); 2]);
        assert!(next != begun && fresh != elsewhere && elsewhere.is_dir(), "{way}");
    }
}

/// A loss on seen data is low for no good reason.
#[test]
fn validation_data_that_the_weights_have_seen_are_told_of() {
    let lab = Lab::new();
    lab.shard("data/other.bin", &support::tokens(4000, 8));
    let trunk = lab.train_in("trunks", &["checkpoint.keep=0"]);
    let trunk_of = |more: &str| format!("model.init_from={{run=\"trunks/{}\"{more}}}", id(&trunk));
    let weights = format!("model.init_from=\"trunks/{}/checkpoints/step-00000012\"", id(&trunk));
    let ways = [trunk_of(",step=8"), trunk_of(",step=8,optimizer=false"), weights];
    for (i, from) in ways.iter().enumerate() {
        let other = ["data.train=data/other.bin", from.as_str(), "schedule.max_steps=16"];
        let runs = format!("runs-{i}");
        let said = |more: &[&str], lint: bool| {
            let sets = [&other[..], more].concat();
            let plan = lab.run(["plan".to_owned()].into_iter().chain(support::tiny(&runs, &sets)));
            let message = "were trained on the validation data";
            assert_eq!(plan.expect(0).stdout.contains(message), lint, "{}", plan.stdout);
            let ended = lab.run(support::tiny(&runs, &sets));
            assert_eq!(ended.expect(0).stderr.contains(message), lint, "{}", ended.stderr);
            assert_eq!(
                ended.stderr.contains("validation data may be among those"),
                !lint,
                "{}",
                ended.stderr
            );
            let run = lab.run_of(&ended);
            let expected = if lint { "validation_data" } else { "other_data" };
            assert_eq!(record(&run)["trained_before"], expected, "{from}");
            assert_eq!(seen(&lab, &run, &[]), lint, "{from}");
            run
        };
        let perhaps = said(&[], false);
        let seen = said(&["data.val=data/train.bin"], true);
        let compared = lab.run(["compare", &runs]);
        let whole = format!("{}: the weights that it began with were trained on the validation", id(&seen));
        let may = format!("{}: the weights that it began with were trained on other data", id(&perhaps));
        let random = lab.train_in(&runs, &["seed=8"]);
        let mixed = lab.run(["compare", &runs]).expect(0).stdout.clone();
        assert_eq!(mixed.contains("began with weights that were trained before"), i > 0, "{mixed}");
        assert!(mixed.contains(&may), "{mixed}");
        fs::remove_dir_all(random).expect("removed");
        assert!(compared.expect(0).stdout.contains(&whole), "{}", compared.stdout);
        // what begins with the weights of that one has seen as much, also after it was interrupted
        let from = format!("model.init_from={{run=\"{}\",optimizer=false}}", seen.display());
        let sets = [other[0], other[2], &from, "data.val=data/train.bin"];
        let again = lab.crash("again", &sets, "csv.before_row:7");
        lab.run(["--resume", &again.display().to_string()]).expect(0);
        assert_eq!(record(&again)["trained_before"], "validation_data");
    }
    let own = lab.run_of(lab.run(support::tiny("overlap", &["data.val=data/train.bin"])).expect(0));
    let compared = lab.run(["compare", "overlap"]);
    let note = format!("{}: validation data are among the training data", id(&own));
    assert!(compared.expect(0).stdout.contains(&note), "{}", compared.stdout);
    // the same data, and random weights, say nothing
    for from in [trunk_of(",step=8"), "seed=3".to_owned()] {
        let ended = lab.run(support::tiny("runs", &[&from, "schedule.max_steps=14"]));
        assert!(!ended.expect(0).stderr.contains("validation data"), "{}", ended.stderr);
        assert!(record(&lab.run_of(&ended)).get("trained_before").is_none());
    }
}

/// The other run has read the part that this one cuts off for validation.
#[test]
fn a_part_of_what_the_weights_have_seen_whole_is_seen() {
    let lab = Lab::new();
    let trunk = lab.train_in("trunks", &[]);
    let from = format!("model.init_from={{run=\"trunks/{}\",step=12}}", id(&trunk));
    let args = support::tiny("runs", &[&from, "data.val_fraction=0.2", "schedule.max_steps=14"]);
    let ended = lab.run(args.into_iter().chain(["--unset".to_owned(), "data.val".to_owned()]));
    ended.expect(0).says(&["lint val-overlap", "were trained on the validation data"]);
    let run = lab.run_of(&ended);
    assert_eq!(record(&run)["trained_before"], "validation_data");
    assert!(seen(&lab, &run, &[]));
}

#[test]
fn one_of_several_files_that_the_weights_have_seen_is_known_again() {
    let lab = Lab::new();
    lab.shard("data/other.bin", &support::tokens(4000, 8));
    lab.shard("data/new.bin", &support::tokens(4000, 9));
    let trunk = lab.train_in("trunks", &["data.train=[\"data/train.bin\", \"data/other.bin\"]"]);
    let child = |from: &Path, val: &str| {
        let from = format!("model.init_from={{run=\"{}\",optimizer=false}}", from.display());
        let sets = [from.as_str(), "data.train=data/new.bin", val];
        let ended = lab.run(support::tiny("runs", &sets));
        ended.expect(0).says(&["lint val-overlap", "were trained on the validation data"]);
        let run = lab.run_of(&ended);
        assert_eq!(record(&run)["trained_before"], "validation_data");
        assert!(seen(&lab, &run, &[]));
        run
    };
    // the same files in another order are no other data
    let from = format!("model.init_from={{run=\"{}\",optimizer=false}}", trunk.display());
    let again = lab.train(&[&from, "data.train=[\"data/other.bin\", \"data/train.bin\"]"]);
    assert!(record(&again).get("trained_before").is_none());
    let child_of_it = child(&child(&trunk, "data.val=data/other.bin"), "data.val=data/train.bin");
    let on = |data: &str| seen(&lab, &child_of_it, &["--data", data]);
    for data in ["data/train.bin", "data/other.bin", "data/new.bin"] {
        assert!(on(data), "{data}");
    }
    assert!(!on("data/val.bin"));
    // by the weights alone, and built-in texts by their beginning
    let weights = child_of_it.join("checkpoints/step-00000012/model.safetensors");
    assert!(seen(&lab, &weights, &["--data", "data/other.bin"]));
    let bytes = ["data.tokenizer=bytes", "data.val=[]", "data.train=builtin:lipsum:words=3000"];
    let lipsum = lab.train_in("lipsum", &bytes);
    let on = |data: &str| seen(&lab, &lipsum, &["--data", data]);
    assert!(on("builtin:lipsum:words=2000") && !on("builtin:lipsum:seed=2,words=2000"));
}

/// The first checkpoint of a branch is that of the other run.
#[test]
fn a_branch_has_not_seen_its_data_before_its_first_step() {
    let lab = Lab::new();
    lab.shard("data/new.bin", &support::tokens(4000, 9));
    let trunk = lab.train_in("trunks", &["schedule.max_steps=8"]);
    let from = format!("model.init_from={{run=\"{}\",step=8}}", trunk.display());
    let sets = [from.as_str(), "data.train=data/new.bin", "schedule.max_steps=12"];
    let branch = lab.train(&sets);
    let seen_at = |step: u64, data: &str| {
        let checkpoint = branch.join(format!("checkpoints/step-{step:08}"));
        seen(&lab, &checkpoint, &["--data", data])
    };
    assert!(seen_at(8, "data/train.bin") && !seen_at(8, "data/new.bin"));
    assert!(seen_at(12, "data/train.bin") && seen_at(12, "data/new.bin"));
    // and what begins with it
    let first = branch.join("checkpoints/step-00000008");
    let from = format!("model.init_from=\"{}\"", first.display());
    for (val, is_told) in [("data/new.bin", false), ("data/train.bin", true)] {
        let sets = [from.as_str(), "data.train=data/val.bin", &format!("data.val={val}")];
        let ended = lab.run(support::tiny("others", &sets));
        assert_eq!(ended.expect(0).stderr.contains("val-overlap"), is_told, "{val}: {}", ended.stderr);
    }
}

/// Of several sets, those are told of that are trained on.
#[test]
fn a_set_beside_one_that_is_trained_on_is_not_seen() {
    let lab = Lab::new();
    lab.shard("data/other.bin", &support::tokens(4000, 8));
    let sets = ["data.val={ fit = \"data/train.bin\", new = \"data/val.bin\", old = \"data/other.bin\" }"];
    let trunk = lab.train_in("trunks", &["data.train=data/other.bin"]);
    let from = format!("model.init_from={{run=\"{}\",optimizer=false}}", trunk.display());
    let run = lab.train(&[sets[0], "data.val_main=new", &from]);
    assert_eq!(record(&run)["trains_on_sets"], serde_json::json!(["fit"]));
    assert_eq!(record(&run)["trained_before_sets"], serde_json::json!(["old"]));
    let ended = lab.run(["eval", run.to_str().expect("a path of this test"), "--format", "json"]);
    let found: Json = serde_json::from_str(&ended.expect(0).stdout).expect("JSON");
    let of = |set: &Json| (set["name"].clone(), set["seen"].clone());
    let others: Vec<_> = found[0]["sets"].as_array().expect("sets").iter().map(of).collect();
    assert_eq!(found[0]["data"]["seen"], Json::Null, "nothing is known of it");
    assert_eq!(others, [("fit".into(), true.into()), ("old".into(), true.into())]);
    let compared = lab.run(["compare", "runs"]);
    let notes = [
        format!("{}: validation data of fit are among the training data", id(&run)),
        format!("{}: the weights that it began with were trained on validation data of old:", id(&run)),
    ];
    for note in notes {
        assert!(compared.expect(0).stdout.contains(&note), "{}", compared.stdout);
    }
    let two = "data.val={ new = \"data/val.bin\", old = \"data/other.bin\" }";
    let ended = lab.run(support::tiny("two", &[two, "data.val_main=new", &from]));
    ended.expect(0).says(&["the weights that it begins with were trained on validation data of old"]);
}

/// What was begun from the state of a run that is there no longer is no branch of the run that took its place.
#[test]
fn a_branch_of_a_run_that_was_started_over_is_another_one() {
    for takes_state in [true, false] {
        let lab = Lab::new();
        let trunk = lab.train(&["checkpoint.keep=0"]);
        let from = format!("model.init_from={{run=\"runs/{}\",optimizer={takes_state}}}", id(&trunk));
        let sets = [from.as_str(), "schedule.max_steps=20"];
        let begun = lab.crash("branches", &sets, "csv.before_row:7");
        // as a processor with other instructions would train it
        fs::remove_dir_all(&trunk).expect("removed");
        let other = lab.train_in("others", &["checkpoint.keep=0", "seed=77"]);
        fs::rename(&other, &trunk).expect("moved");
        let again = lab.run(support::tiny("branches", &sets));
        assert_ne!(lab.run_of(again.expect(0)), begun);
        assert!(!again.stderr.contains("so it goes on"), "{}", again.stderr);
    }
}

/// Its first evaluation may end it, before it has taken a step.
#[test]
fn a_branch_without_a_step_of_its_own_is_shown_where_it_began() {
    let lab = Lab::new();
    let trunk = lab.train_in("trunks", &["checkpoint.keep=0", "eval.every=4"]);
    let from = format!("model.init_from={{run=\"trunks/{}\",step=8}}", id(&trunk));
    let sets = [&from, "eval.every=4", "schedule.max_steps=14", "schedule.stop_at_val_loss=100"];
    let run = lab.run_of(lab.run(support::tiny("runs", &sets)).expect(0));
    assert!(column(&run, "step").is_empty());
    let listed = lab.run(["list", "--runs-dir", "runs", "--format", "csv"]).expect(0).stdout.clone();
    let (head, row) = listed.trim_end().split_once('\n').expect("a row");
    let steps = head.split(',').zip(row.split(',')).find(|(name, _)| *name == "steps");
    assert_eq!(steps, Some(("steps", "8")), "{listed}");
    let watched = lab.run(["watch", "--runs-dir", "runs", &id(&run)]);
    assert!(watched.expect(0).stdout.contains("step 8/14"), "{}", watched.stdout);
}
