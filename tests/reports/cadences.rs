//! Runs that were not evaluated equally often, or not on as many tokens: what `runner compare` says of their best
//! values and of their seconds.

use crate::report_support;
use crate::support;

use report_support::{Fake, printed as text, with_recipe};
use serde_json::json;
use std::fs;
use support::Lab;

#[test]
fn figures_that_depend_on_how_often_runs_are_evaluated_say_so() {
    let lab = Lab::new();
    for seed in 1..=2u64 {
        let run = Fake::new(&format!("fake-{seed}"), seed, 1e-3, 3.0).write(&lab.path("runs"));
        let recipe = fs::read_to_string(run.join("recipe.toml")).expect("a recipe");
        fs::write(run.join("recipe.toml"), format!("{recipe}\n[eval]\nevery = {}\n", 3 * seed))
            .expect("a recipe");
    }
    let note = "runs were not evaluated equally often (eval.every = 3 and 6)";
    for args in
        [&["--by", "best_val_loss"][..], &["--target", "val_loss=4"], &["--align", "step", "--at", "2"]]
    {
        let said = text(&lab, args);
        assert!(said.contains(note), "{args:?}: {said}");
    }
    // the usual table has the best losses, too
    assert!(text(&lab, &[]).contains(note));
    assert!(!text(&lab, &["--metrics", "val_loss"]).contains(note));
}

#[test]
fn evaluations_that_are_not_equally_far_apart_by_tokens_or_in_a_part_say_so() {
    let lab = Lab::new();
    let write = |i: usize, tokens: usize, sessions: serde_json::Value| {
        for seed in 1..=2u64 {
            let fake = Fake::new(&format!("fake-{i}{seed}"), seed, 1e-3 * i as f64, 3.0);
            let extra = json!({ "sessions": sessions });
            let run = Fake { extra, ..fake }.write(&lab.path("runs"));
            let recipe = fs::read_to_string(run.join("recipe.toml")).expect("a recipe");
            let more = format!("[batch]\ntotal_tokens = {tokens}\n\n[eval]\nevery = 4\n");
            fs::write(run.join("recipe.toml"), format!("{recipe}\n{more}")).expect("a recipe");
        }
    };
    let target = ["--target", "val_loss=4"];
    let usual = json!([{"from_step": 0, "settings": {"eval.every": 4}}]);
    (1..=2).for_each(|i| write(i, 256, usual.clone()));
    assert!(!text(&lab, &target).contains("equally often"));
    // one recipe takes more tokens in a step
    write(2, 1024, json!([]));
    let said = text(&lab, &target);
    assert!(said.contains("runs were not evaluated equally often (every 1,024 and 4,096 tokens)"), "{said}");
    assert!(said.contains("which is sooner is not known"), "{said}");
    // and is evaluated after as many
    for seed in 1..=2 {
        let recipe = lab.path(format!("runs/fake-2{seed}/recipe.toml"));
        let text = fs::read_to_string(&recipe).expect("a recipe").replace("every = 4", "every = 1");
        fs::write(&recipe, text).expect("a recipe");
    }
    assert!(!text(&lab, &target).contains("equally often"));
    let best = ["--by", "best_loss", "--metrics", "best_loss"];
    let said = text(&lab, &best);
    assert!(said.contains("best_loss is the lowest of single batches"), "{said}");
    // one run was evaluated more often for a while
    write(
        2,
        256,
        json!([
            {"from_step": 0, "to_step": 2, "settings": {"eval.every": 1}},
            {"from_step": 2, "settings": {"eval.every": 4}},
        ]),
    );
    let said = text(&lab, &["--metrics", "best_val_loss"]);
    assert!(said.contains("runs were not evaluated equally often (eval.every = 1 and 4)"), "{said}");
    assert!(!text(&lab, &best).contains("single batches"));
}

#[test]
fn the_best_of_more_evaluations_in_eval_csv_is_said_to_be_one() {
    let lab = Lab::new();
    let header = "step,tokens,evaluated,precision,data,data_tokens,measured,perplexity\n";
    let row = |step| format!("{step},512,now,fp32,x.bin,64,val_loss=aa:64,{}\n", 9 - step);
    // a metric that is asked for by --by alone is shown, too
    let args = ["--by", "best_perplexity"];
    for (more, is_said) in [(String::new(), false), (row(2), true)] {
        for seed in 1..=2 {
            let run = Fake::new(&format!("fake-{seed}"), seed, 1e-3, 3.0).write(&lab.path("runs"));
            let rows = if seed == 1 { more.clone() } else { String::new() } + &row(4);
            fs::write(run.join("eval.csv"), format!("{header}{rows}")).expect("a log");
        }
        let said = text(&lab, &args);
        assert!(said.contains("5.0000"), "{said}");
        assert_eq!(said.contains("best_perplexity is the best of 1 and 2 evaluations"), is_said, "{said}");
    }
}

#[test]
fn a_row_of_eval_csv_that_beats_val_csv_is_the_best_of_both() {
    let lab = Lab::new();
    for seed in 1..=2 {
        let extra = json!({"digests": {"task_poems": "0123456789abcdef".repeat(4)}});
        let run =
            Fake { extra, ..Fake::new(&format!("fake-{seed}"), seed, 1e-3, 3.0) }.write(&lab.path("runs"));
        let rows = "step,tokens,val_loss,poems_acc\n0,0,9,0.1\n2,512,4,0.25\n4,1024,3,\n";
        fs::write(run.join("val.csv"), rows).expect("a log");
        if seed == 1 {
            let header = "step,tokens,evaluated,precision,data,data_tokens,measured,poems_acc\n";
            let row = "3,768,now,fp32,,,poems=0123456789abcdef,0.5\n";
            fs::write(run.join("eval.csv"), format!("{header}{row}")).expect("a log");
        }
    }
    let said = text(&lab, &["--by", "best_poems_acc"]);
    assert!(said.contains("50.0 %"), "{said}");
    assert!(said.contains("best_poems_acc is the best of 2 and 3 evaluations"), "{said}");
    let behind = |said: &str, of: &str| {
        assert!(
            said.contains(&format!("best_poems_acc was last measured before the end of {of}\n")),
            "{said}"
        );
    };
    behind(&said, "fake-1 (step 3) and fake-2 (step 2)");
    // one that is no better was a chance as well, and one of the same step is none
    let log = lab.path("runs/fake-1/eval.csv");
    let row = fs::read_to_string(&log).expect("a log");
    let at_end = row.replace("\n3,768", "\n4,1024").replace(",0.5", ",0.2");
    fs::write(&log, at_end).expect("a log");
    behind(&text(&lab, &["--by", "best_poems_acc"]), "fake-2 (step 2)");
    for (instead, is_further) in
        [(row.replace(",0.5", ",0.2"), true), (row.replace("\n3,768", "\n2,512"), false)]
    {
        fs::write(&log, instead).expect("a log");
        let said = text(&lab, &["--by", "best_poems_acc"]);
        assert_eq!(said.contains("is the best of 2 and 3 evaluations"), is_further, "{said}");
    }
}

#[test]
fn the_best_of_what_not_every_evaluation_measured_is_said_to_be_one() {
    let lab = Lab::new();
    for (recipe, is_measured) in [(1, [true; 3]), (2, [true, false, false])] {
        for seed in 1..=2u64 {
            let fake = Fake::new(&format!("fake-{recipe}{seed}"), seed, 1e-3 * f64::from(recipe), 3.0);
            let run = fake.write(&lab.path("runs"));
            let row = |(i, is_measured): (usize, &bool)| {
                let cell = if *is_measured { format!("0.{}{seed}", i + 2) } else { String::new() };
                format!("{},{},{}.5,{cell}\n", 2 * i, 512 * i, 9 - i)
            };
            let rows: String = is_measured.iter().enumerate().map(row).collect();
            fs::write(run.join("val.csv"), format!("step,tokens,val_loss,task_acc\n{rows}")).expect("a log");
        }
    }
    let said = text(&lab, &["--by", "best_task_acc"]);
    assert!(said.contains("best_task_acc is the best of 1 and 3 evaluations"), "{said}");
    // these were made by all evaluations of all runs
    let said = text(&lab, &["--by", "best_val_loss"]);
    assert!(!said.contains("is the best of"), "{said}");
}

#[test]
fn seconds_of_runs_that_scored_tasks_for_a_part_only_are_not_put_down_to_recipes() {
    let lab = Lab::new();
    let write = |tasks: serde_json::Value, settings: serde_json::Value| {
        for (recipe, tasks) in [(1, tasks.clone()), (2, json!(["choices"]))] {
            for seed in 1..=2u64 {
                let mut session = json!({"from_step": 0, "settings": settings});
                if !tasks.is_null() {
                    session["tasks"] = tasks.clone();
                }
                let extra = json!({ "sessions": [session] });
                let id = format!("fake-{recipe}{seed}");
                let fake = Fake { extra, ..Fake::new(&id, seed, 1e-3 * f64::from(recipe), 3.0) };
                let run = fake.write(&lab.path("runs"));
                let text = fs::read_to_string(run.join("recipe.toml")).expect("a recipe");
                let more = "\n[eval]\nevery = 4\ntasks = [\"../../choices.jsonl\"]\n";
                fs::write(run.join("recipe.toml"), text + more).expect("a recipe");
            }
        }
    };
    let every = json!({"eval.every": 4});
    let apart = "elapsed_s was measured in part under other settings";
    for (tasks, said_of_it) in [
        (json!(["choices"]), None),
        // which an earlier version did not record
        (serde_json::Value::Null, None),
        (json!([]), Some("part of it was trained with no eval.tasks")),
        (
            json!(["choices", "hellaswag"]),
            Some("part of it was trained with eval.tasks of choices and hellaswag"),
        ),
    ] {
        write(tasks.clone(), every.clone());
        let said = text(&lab, &["--by", "elapsed_s"]);
        assert_eq!(said.contains(apart), said_of_it.is_some(), "{tasks}: {said}");
        assert!(said_of_it.is_none_or(|words| said.contains(words)), "{tasks}: {said}");
        // a step is no slower for it
        let speed = ["--by", "tokens_per_s", "--metrics", "tokens_per_s"];
        assert!(!text(&lab, &speed).contains("under other settings"), "{tasks}");
    }
    write(json!(["choices"]), json!({"eval.every": 4, "checkpoint.every": 1}));
    let said = text(&lab, &["--by", "tokens_per_s"]);
    assert!(said.contains("checkpoint.every=1"), "{said}");
}

#[test]
fn a_batch_that_grows_is_evaluated_more_often_by_its_tokens() {
    let lab = Lab::new();
    let growing = "ramp_start = 128\nramp_increment = 128\nramp_tokens = 1024\n";
    let write = |ramps: [&str; 2]| {
        for (seed, ramp) in (1..).zip(ramps) {
            let run = Fake::new(&format!("fake-{seed}"), seed, 1e-3, 3.0).write(&lab.path("runs"));
            let batch = "[model]\nblock_size = 32\n\n[eval]\nevery = 2\n\n[batch]\ntotal_tokens = 512\n";
            with_recipe(&run, &format!("{batch}{ramp}"));
        }
        text(&lab, &["--by", "best_val_loss"])
    };
    let note = "runs were not evaluated equally often (every 256 to 1,024 and 1,024 tokens): best_val_loss is better";
    let said = write(["", growing]);
    assert!(said.contains(note), "{said}");
    let seconds = text(&lab, &["--by", "elapsed_s"]);
    assert!(
        seconds.contains("samples, and runs differ in the tokens between evaluations, so equal"),
        "{seconds}"
    );
    for same in [["", ""], [growing, growing], ["", "ramp_start = 0\nramp_tokens = 1024\n"]] {
        let said = write(same);
        assert!(!said.contains("equally often"), "{said}");
    }
    // one grows for longer
    let said = write([growing, &growing.replace("1024", "4096")]);
    assert!(said.contains("equally often (every 256 to 1,024 tokens)"), "{said}");
    // of runs that are never evaluated there is nothing to say
    for seed in 1..=2 {
        let recipe = lab.path(format!("runs/fake-{seed}/recipe.toml"));
        let never = fs::read_to_string(&recipe).expect("a recipe").replace("every = 2", "every = 0");
        fs::write(&recipe, never).expect("a recipe");
    }
    let seconds = text(&lab, &["--by", "elapsed_s"]);
    assert!(!seconds.contains("evaluat"), "{seconds}");
}

#[test]
fn what_differs_within_each_of_equal_runs_does_not_differ_between_them() {
    let lab = Lab::new();
    let rows = [(0, 10.5), (1, 7.0), (2, 6.0), (4, 3.5)];
    let sessions = json!([
        {"from_step": 0, "to_step": 2, "settings": {"eval.every": 1}},
        {"from_step": 2, "settings": {"eval.every": 2}},
    ]);
    // for how long each value held shows in the evaluations that there are
    for (val, are_equal) in [(&rows[..], true), (&rows[1..], false)] {
        for (seed, val) in [(1, &rows[..]), (2, val)] {
            let extra = json!({ "sessions": sessions });
            let fake =
                Fake { extra, val: val.to_vec(), ..Fake::new(&format!("fake-{seed}"), seed, 1e-3, 3.0) };
            let batch = "[model]\nblock_size = 32\n\n[eval]\nevery = 2\n\n[batch]\ntotal_tokens = 512\n";
            with_recipe(&fake.write(&lab.path("runs")), batch);
        }
        let said = text(&lab, &["--by", "best_val_loss"]);
        assert_eq!(!said.contains("equally often (eval.every = 1 and 2)"), are_equal, "{said}");
        let said = text(&lab, &["--by", "elapsed_s"]);
        assert_eq!(!said.contains("runs differ in the tokens between evaluations"), are_equal, "{said}");
    }
}

#[test]
fn the_best_of_unequally_many_evaluations_is_said_to_be_one() {
    let lab = Lab::new();
    let write = |id: u64, status, val: &[(u64, f64)], more: &str| {
        let fake = Fake { status, val: val.to_vec(), ..Fake::new(&format!("fake-{id}"), id, 1e-3, 3.0) };
        with_recipe(&fake.write(&lab.path("runs")), &format!("[eval]\nevery = 2\n{more}"));
    };
    let said = |args: &[&str]| text(&lab, &[&["--by", "best_val_loss"], args].concat());
    let whole = [(0, 10.5), (2, 7.0), (4, 3.5)];
    let branch = "\n[model.init_from]\nrun = \"trunk\"\nstep = 2\n";
    write(1, "finished", &whole, "");
    write(2, "finished", &whole[1..], branch);
    let note = "best_val_loss is the best of 2 and 3 evaluations (those of a branch are its own): better by chance the \
                more there are";
    assert!(said(&[]).contains(note), "{}", said(&[]));
    assert!(text(&lab, &[]).contains(note), "it is in the usual table");
    // up to a point, too
    assert!(said(&["--align", "step", "--at", "2"]).contains("is the best of 1 and 2 evaluations"));
    // one that has not ended is no part of a test
    write(2, "interrupted", &whole[..2], "");
    assert!(!said(&[]).contains("is the best of"), "{}", said(&[]));
    write(2, "finished", &whole, "");
    assert!(!said(&[]).contains("is the best of"), "{}", said(&[]));
}

#[test]
fn seconds_of_runs_that_read_more_at_an_evaluation_are_not_put_down_to_recipes() {
    let lab = Lab::new();
    let note = "seconds include evaluations, checkpoints and samples, and runs differ in the tokens of an evaluation";
    for (rows, others, every, is_said) in [
        ([8, 8], [0, 0], 2, false),
        ([8, 9], [0, 0], 2, true),
        ([8, 8], [0, 24], 2, true),
        // of none
        ([8, 9], [0, 0], 0, false),
    ] {
        for (i, (rows, others)) in rows.into_iter().zip(others).enumerate() {
            let plan =
                json!({"eval_rows": rows, "eval_others": [others], "data": {"val_sets": [{"name": "b"}]}});
            let fake = Fake::new(&format!("fake-{}", i + 1), i as u64 + 1, 1e-3, 3.0);
            let run = Fake { extra: json!({ "plan": plan }), ..fake }.write(&lab.path("runs"));
            with_recipe(&run, &format!("[model]\nblock_size = 32\n\n[eval]\nevery = {every}\n"));
        }
        for args in [&["--by", "elapsed_s"][..], &["--align", "time"], &["--target", "val_loss=4"]] {
            let said = text(&lab, args);
            assert_eq!(said.contains(note), is_said, "{args:?}: {said}");
        }
    }
}

#[test]
fn a_run_that_has_not_ended_has_no_lowest_batch_to_compare() {
    let lab = Lab::new();
    let write = |status, losses: &[f64]| {
        for (seed, status, losses) in [(1, "finished", &[10.0, 8.0, 6.0, 3.0][..]), (2, status, losses)] {
            let fake = Fake {
                status,
                losses: losses.to_vec(),
                ..Fake::new(&format!("fake-{seed}"), seed, 1e-3, 3.0)
            };
            fake.write(&lab.path("runs"));
        }
        text(&lab, &[])
    };
    let note = "best_loss is the lowest of single batches";
    assert!(!write("interrupted", &[10.0, 8.0]).contains(note));
    // of those that have, some made more steps
    assert!(write("finished", &[10.0, 8.0]).contains(note));
}

#[test]
fn programs_are_told_of_what_they_alone_are_shown() {
    let lab = Lab::new();
    for (i, every) in [1, 2].into_iter().enumerate() {
        let run = Fake::new(&format!("fake-{i}"), 1, 1e-3 * (i + 1) as f64, 3.0).write(&lab.path("runs"));
        with_recipe(&run, &format!("[eval]\nevery = {every}\n"));
    }
    let note = "equally often (eval.every = 1 and 2): best_val_loss is better";
    let args = ["--target", "loss=4"];
    assert!(!text(&lab, &args).contains(note));
    let notes = crate::report_support::compared(&lab, &args)["notes"].to_string();
    assert!(notes.contains(note), "{notes}");
}
