//! Runs that began where others were, and copies of runs: what `runner compare` says of them.

use crate::report_support;
use crate::support;

use report_support::{Fake, printed as text, with_recipe};
use serde_json::json;
use std::fs;
use support::Lab;

#[test]
fn branches_of_one_trunk_are_no_independent_seeds() {
    let lab = Lab::new();
    for (seed, parent) in [(1, "trunk-1"), (2, "trunk-1")] {
        let extra = json!({"parent": {"run": parent, "step": 2, "optimizer": true}});
        let run =
            Fake { extra, ..Fake::new(&format!("fake-{seed}"), seed, 1e-3, 3.0) }.write(&lab.path("runs"));
        let recipe = fs::read_to_string(run.join("recipe.toml")).expect("a recipe");
        let from = "\n[model]\ninit_from = { run = \"../trunk-1\", step = 2, optimizer = true }\n";
        fs::write(run.join("recipe.toml"), recipe + from).expect("a recipe");
    }
    let note = "branched off one run: they share its steps and its seed";
    assert!(text(&lab, &[]).contains(note));
    // of which earlier versions did not say what it had begun with
    let record = lab.path("runs/fake-1/run.json");
    let later = support::record(&lab.path("runs/fake-1"));
    let mut with = later.clone();
    with["parent"]["with_weights"] = json!(true);
    fs::write(&record, with.to_string()).expect("a record");
    assert!(text(&lab, &[]).contains(note));
    fs::write(&record, later.to_string()).expect("a record");
    // whose seconds begin with the branch
    let seconds = "fake-1 and fake-2: branched off another run, whose steps count and whose seconds do not";
    for args in [&["--align", "time"][..], &["--by", "elapsed_s"]] {
        assert!(text(&lab, args).contains(seconds), "{args:?}");
    }
    assert!(text(&lab, &[]).contains(seconds) && !text(&lab, &["--metrics", "val_loss"]).contains(seconds));
    let record = lab.path("runs/fake-2/run.json");
    let other = fs::read_to_string(&record).expect("a record").replace("trunk-1", "trunk-2");
    fs::write(&record, other).expect("a record");
    assert!(!text(&lab, &[]).contains(note));
}

#[test]
fn a_branch_that_seems_to_reach_a_loss_later_may_have_been_there_before_it_began() {
    let lab = Lab::new();
    // steps until the loss is as good, of two trunks and of two branches that began after two steps
    let said = |trunks: [usize; 2], branches: [usize; 2]| {
        for (i, step) in trunks.into_iter().chain(branches).enumerate() {
            let is_branch = i >= 2;
            let losses = (1..=12).map(|at| if at < step { 5.0 } else { 2.0 }).collect();
            let parent = json!({"parent": {"run": "trunk", "step": 2, "optimizer": true}});
            let extra = if is_branch { parent } else { json!({}) };
            let lr = if is_branch { 2e-3 } else { 1e-3 };
            let fake = Fake::new(&format!("fake-{i}"), i as u64 % 2, lr, 3.0);
            let run = Fake { losses, extra, val: Vec::new(), ..fake }.write(&lab.path("runs"));
            if is_branch {
                with_recipe(&run, "[model.init_from]\nrun = \"trunk\"\nstep = 2\n");
                let log = run.join("train.csv");
                let rows = fs::read_to_string(&log).expect("a log");
                let own: Vec<&str> = rows.lines().take(1).chain(rows.lines().skip(3)).collect();
                fs::write(&log, own.join("\n") + "\n").expect("a log");
            }
        }
        text(&lab, &["--target", "loss=3"])
    };
    let note = "that run may have reached it before, for its rows are not looked at";
    let unknown =
        "which is sooner is not known: a run that others branched off may have reached the target before";
    let later = said([4, 5], [9, 10]);
    assert!(later.contains(note) && later.contains(unknown) && !later.contains("Welch"), "{later}");
    let sooner = said([9, 10], [4, 5]);
    assert!(sooner.contains(note) && sooner.contains("Welch's t") && !sooner.contains(unknown), "{sooner}");
    let at_once = said([9, 10], [9, 10]);
    assert!(at_once.contains(unknown) && !at_once.contains("Welch"), "{at_once}");
}

#[test]
fn a_branch_of_a_run_that_began_with_weights_began_with_them() {
    let lab = Lab::new();
    let from = lab.train_in("others", &["schedule.max_steps=4"]);
    let weights = from.join("checkpoints/step-00000004");
    // which is what is left of them elsewhere
    let plain = lab.path("plain");
    fs::create_dir(&plain).expect("a directory");
    for name in ["model.safetensors", "config.json"] {
        fs::copy(weights.join(name), plain.join(name)).expect("copied");
    }
    // seeds of one recipe that begin so differ less, whatever else is compared
    let tuned = |seed: u64| {
        lab.train_in("tuned", &[&format!("seed={seed}"), "model.init_from=\"plain\"", "schedule.max_steps=4"])
    };
    tuned(1);
    let less = "seeds that begin with the same weights differ less than others do";
    let said = || lab.run(["compare", "tuned"]).expect(0).stdout.clone();
    assert!(!said().contains(less));
    tuned(2);
    assert!(said().contains(less), "{}", said());
    lab.train(&["seed=1"]);
    let branch = |trunk: &std::path::Path, name: &str| {
        let from = format!("model.init_from={{run=\"{}\",step=6}}", trunk.display());
        lab.train(&[&format!("name=\"{name}\""), &from])
    };
    let trunk =
        lab.train_in("trunks", &["model.init_from=\"plain\"", "checkpoint.every=6", "checkpoint.keep=0"]);
    let first = branch(&trunk, "first");
    assert_eq!(support::record(&first)["parent"]["with_weights"], true);
    let note = "began with weights that were trained before, and the steps, tokens and seconds of that count nowhere";
    let said = text(&lab, &[]);
    assert!(said.contains(note), "{said}");
    fs::remove_dir_all(&first).expect("removed");
    // which its own record still says when that of the trunk is gone
    let from = format!("model.init_from={{run=\"{}\",step=6}}", trunk.display());
    let stopped = lab.crash("runs", &["name=\"stopped\"", &from], "csv.before_row:4");
    fs::remove_file(trunk.join("run.json")).expect("removed");
    lab.run([std::ffi::OsStr::new("--resume"), stopped.as_os_str()]).expect(0);
    assert_eq!(support::record(&stopped)["parent"]["with_weights"], true);
    fs::remove_dir_all(&stopped).expect("removed");
    // one of a run that began with none
    let trunk = lab.train_in("trunks", &["checkpoint.every=6", "checkpoint.keep=0"]);
    let second = branch(&trunk, "second");
    assert_eq!(support::record(&second)["parent"]["with_weights"], json!(null));
    let said = text(&lab, &[]);
    assert!(!said.contains(note) && said.contains("branched off another run"), "{said}");
}

#[test]
fn a_copy_whose_id_is_not_that_of_its_hash_does_not_count_in_the_place_of_its_run() {
    let lab = Lab::new();
    for (id, last) in [("fake-52e1bd34", 3.0), ("fake-00000000", 9.0)] {
        let extra = json!({"hash": "52e1bd34".repeat(8)});
        Fake { extra, ..Fake::new(id, 1, 1e-3, last) }.write(&lab.path("runs"));
    }
    let said = text(&lab, &[]);
    let note = "fake-00000000 has the recipe and the seed of fake-52e1bd34: that is no further seed";
    assert!(said.contains(note), "{said}");
}
