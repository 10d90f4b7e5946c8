//! Runs that were not trained from beginning to end as their recipe says, or not evaluated as often as others: what
//! `runner compare` says of it.

use crate::report_support;
use crate::support;

use report_support::{Fake, compared as json, printed as text};
use serde_json::json;
use std::fs;
use support::Lab;

/// Writes a run of which the sessions are these.
fn write(lab: &Lab, id: &str, seed: u64, sessions: serde_json::Value) {
    Fake { extra: json!({ "sessions": sessions }), ..Fake::new(id, seed, 1e-3, 3.0) }
        .write(&lab.path("runs"));
}

#[test]
fn what_a_part_was_trained_with_is_said_where_the_recipe_does_not_say_it() {
    let lab = Lab::new();
    let sets = ["watchdog.action=\"skip\"", "watchdog.max_loss_zscore=0.8", "compute.threads=1"];
    let first = json!({"from_step": 0, "overrides": []});
    // those of earlier versions say what --set changed
    write(&lab, "fake-1", 1, json!([first]));
    write(&lab, "fake-2", 2, json!([first, {"from_step": 2, "overrides": sets}]));
    let note = "fake-2: part of it was trained with compute.threads=1, watchdog.max_loss_zscore=0.8 and \
                watchdog.action=\"skip\"";
    let said = text(&lab, &[]);
    assert!(said.contains(note), "{said}");
    assert!(!said.contains("fake-1: part"), "{said}");
    // later ones what their recipe said, whichever call changed it
    let with = |threads: u64| json!({"from_step": 0, "to_step": 2, "settings": {"compute.threads": threads}});
    write(&lab, "fake-2", 2, json!([with(2), {"from_step": 2, "settings": {}}]));
    assert!(text(&lab, &[]).contains("fake-2: part of it was trained with compute.threads=2\n"));
    // a session of which no step is left says nothing
    write(&lab, "fake-2", 2, json!([with(2), {"from_step": 0, "settings": {}}]));
    assert!(!text(&lab, &[]).contains("part of it"));
    let ended = json!({"from_step": 4, "to_step": 4, "settings": {"compute.threads": 2}});
    write(&lab, "fake-2", 2, json!([first, ended]));
    assert!(!text(&lab, &[]).contains("part of it"));
    // and where it was
    write(&lab, "fake-2", 2, json!([{"from_step": 0, "settings": {}, "device": "cuda:0", "host": ""}]));
    assert!(text(&lab, &[]).contains("part of it was trained with run.device=cuda:0"));
}

#[test]
fn speeds_of_other_settings_are_not_put_down_to_those_of_the_recipe() {
    let lab = Lab::new();
    let threads = json!([{"from_step": 0, "settings": {"compute.threads": 2}}]);
    let usual = json!([{"from_step": 0, "settings": {}}]);
    write(&lab, "fake-1", 1, threads.clone());
    write(&lab, "fake-2", 2, usual.clone());
    let args = ["--by", "tokens_per_s", "--metrics", "tokens_per_s,val_loss"];
    let said = text(&lab, &args);
    assert!(said.contains("tokens_per_s was measured in part under other settings"), "{said}");
    assert!(!text(&lab, &["--by", "val_loss"]).contains("val_loss was measured"));
    let relative = text(&lab, &["--metrics", "speedup,gain"]);
    assert!(relative.contains("tokens_per_s was measured in part under other settings"), "{relative}");
    // of two runs with one recipe and one seed, the one that was trained as it says counts
    write(&lab, "fake-3", 1, usual);
    let copies = "fake-1 has the recipe and the seed of fake-3";
    assert!(text(&lab, &[]).contains(copies));
}

#[test]
fn the_memory_of_a_run_is_also_that_of_its_last_checkpoint() {
    let lab = Lab::new();
    let extra = json!({ "results": { "peak_memory_bytes": 5_000_000_000u64 } });
    Fake { extra, ..Fake::new("fake-1", 1, 1e-3, 3.0) }.write(&lab.path("runs"));
    Fake::new("fake-2", 2, 1e-3, 3.0).write(&lab.path("runs"));
    let of = |args: &[&str]| {
        let found = json(&lab, args);
        [0, 1].map(|i| found["runs"][i]["metrics"]["memory_bytes"].as_f64().expect("a number"))
    };
    let [of_steps, whole] = of(&["--by", "memory_bytes"]);
    assert!(of_steps < 5e9 && whole == 5e9, "{of_steps} {whole}");
    let cut = of(&["--by", "memory_bytes", "--align", "step"]);
    assert_eq!(cut, [of_steps; 2], "what came after is of no step");
}

#[test]
fn memory_of_a_process_that_had_trained_other_runs_is_not_put_down_to_the_recipe() {
    let lab = Lab::new();
    for (i, before) in [0, 0, 1].into_iter().enumerate() {
        write(&lab, &format!("fake-{i}"), i as u64, json!([{"from_step": 0, "recipes_before": before}]));
    }
    let said = text(&lab, &["--by", "memory_bytes"]);
    let note =
        "memory_bytes was measured in part in processes that had trained other runs before: 2 sets of runs";
    assert!(said.contains(note), "{said}");
    for metric in ["tokens_per_s", "elapsed_s", "loss"] {
        let said = text(&lab, &["--by", metric]);
        assert!(!said.contains(&format!("{metric} was measured")), "{said}");
    }
}

#[test]
fn a_run_that_goes_on_records_what_it_goes_on_with() {
    let lab = Lab::new();
    let run = lab.crash("runs", &["eval.every=6"], "csv.before_row:12");
    // the same run, by a recipe that says something else
    lab.train(&["eval.every=4"]);
    let sessions = support::record(&run)["sessions"].clone();
    let every = |i: usize| sessions[i]["settings"]["eval.every"].clone();
    assert_eq!([every(0), every(1)], [json!(6), json!(4)], "{sessions:#}");
    assert!(sessions[0]["host"].is_string() && sessions[0]["device"] == "cpu", "{sessions:#}");
    let said = text(&lab, &[]);
    assert!(said.contains("part of it was trained with eval.every=6"), "{said}");
    // of what cannot be read nobody knows what else there was
    fs::write(run.join("recipe.toml"), "eval.every").expect("written");
    let said = text(&lab, &[]);
    assert!(!said.contains("part of it was trained"), "{said}");
}

#[test]
fn a_run_that_goes_on_with_other_vector_instructions_is_as_fast_as_neither() {
    let lab = Lab::new();
    let simd = |simd: &str| json!([{"from_step": 0, "to_step": 2, "settings": {}, "simd": simd}]);
    let write = |id: &str, seed, then: &str, last: &str| {
        let extra = json!({"sessions": simd(then), "simd": last});
        Fake { extra, ..Fake::new(id, seed, 1e-3, 3.0) }.write(&lab.path("runs"));
    };
    write("fake-1", 1, "avx2", "avx2");
    write("fake-2", 2, "avx2", "avx512");
    let args = ["--by", "tokens_per_s", "--metrics", "tokens_per_s"];
    let said = text(&lab, &args);
    assert!(said.contains("fake-2: part of it was trained with run.simd=avx2"), "{said}");
    assert!(said.contains("and in part under other settings"), "{said}");
    // whole runs of different instructions say so in their rows
    write("fake-2", 2, "avx512", "avx512");
    let said = text(&lab, &["--wide"]);
    assert!(said.contains("simd") && said.contains("avx512"), "{said}");
    let said = text(&lab, &args);
    assert!(said.contains("tokens_per_s was measured on machines that differ"), "{said}");
    // threads that a recipe asks for are what is compared, also with those that another one leaves to the machine
    for (asked, used, is_apart) in
        [([0, 0], [1, 2], true), ([0, 0], [2, 2], false), ([1, 2], [1, 2], false), ([0, 1], [2, 1], false)]
    {
        for (i, (asked, used)) in asked.into_iter().zip(used).enumerate() {
            let extra = json!({"threads": used, "device": "cpu"});
            let run = Fake { extra, ..Fake::new(&format!("fake-{}", i + 1), i as u64 + 1, 1e-3, 3.0) }
                .write(&lab.path("runs"));
            let recipe = fs::read_to_string(run.join("recipe.toml")).expect("a recipe");
            let asked = format!("[compute]\nthreads = {asked}\n");
            fs::write(run.join("recipe.toml"), recipe.replace("[compute]\n", &asked)).expect("a recipe");
        }
        assert_eq!(text(&lab, &args).contains("on machines that differ"), is_apart, "{asked:?} {used:?}");
    }
    // a run records what it computes on
    let run = lab.train(&[]);
    let sessions = support::record(&run)["sessions"].clone();
    assert!(sessions[0]["processor"].is_string(), "{sessions:#}");
}

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
        json!([{"from_step": 0, "to_step": 2, "settings": {"eval.every": 1}}, {"from_step": 2, "settings": {"eval.every": 4}}]),
    );
    let said = text(&lab, &["--metrics", "best_val_loss"]);
    assert!(said.contains("runs were not evaluated equally often (eval.every = 1 and 4)"), "{said}");
    assert!(!text(&lab, &best).contains("single batches"));
}

#[test]
fn losses_at_which_a_target_ended_runs_are_not_tested() {
    let lab = Lab::new();
    for (i, step) in [3, 4].into_iter().enumerate() {
        for seed in 1..=2u64 {
            // the evaluation that reaches a target is the best one so far
            let extra = json!({
                "reached_target": {"step": step, "val_loss": 3.5, "target": 3.5},
                "best_checkpoint": {"step": step, "val_loss": 3.5, "path": "checkpoints/x"},
            });
            let id = format!("fake-{i}{seed}");
            let fake = Fake::new(&id, seed, 1e-3 * (i + 1) as f64, 3.0 + 0.1 * i as f64);
            let (losses, val) = (fake.losses[..step].to_vec(), vec![(0, 10.5), (step as u64, 3.5)]);
            Fake { extra, losses, val, ..fake }.write(&lab.path("runs"));
        }
    }
    assert_eq!(json(&lab, &[])["tests"], json!([]));
    let said = text(&lab, &[]);
    assert!(said.contains("val_loss was measured at different steps"), "{said}");
    // how far they went is not
    let way = text(&lab, &["--by", "tokens", "--metrics", "steps,tokens"]);
    assert!(!way.contains("tokens was measured") && !way.contains("steps was measured"), "{way}");
    assert!(said.contains("ended it before its last step: --target compares how soon"), "{said}");
    assert_eq!(json(&lab, &["--target", "val_loss=4"])["tests"].as_array().map(Vec::len), Some(1));
}

#[test]
fn a_run_that_went_beyond_its_target_does_not_count_as_of_the_target() {
    let lab = Lab::new();
    for seed in 1..=2u64 {
        let extra = json!({"reached_target": {"step": 4, "val_loss": 3.5, "target": 3.5}});
        let fake = Fake::new(&format!("fake-{seed}"), seed, 1e-3, 3.0);
        let losses = fake.losses.iter().copied().chain((seed == 2).then_some(2.0)).collect();
        let val = fake.val.iter().copied().chain((seed == 2).then_some((5, 2.5))).collect();
        Fake { extra, losses, val, ..fake }.write(&lab.path("runs"));
    }
    let said = text(&lab, &[]);
    assert!(said.contains("val_loss was measured at different steps"), "{said}");
}

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
fn files_that_were_changed_between_runs_are_named() {
    let lab = Lab::new();
    for seed in 1..=4u64 {
        let contents = if seed > 2 { "new" } else { "old" };
        let extra = json!({"digests": {"train": contents}});
        Fake { extra, ..Fake::new(&format!("fake-{seed}"), seed, 1e-3, 3.0) }.write(&lab.path("runs"));
    }
    let said = text(&lab, &[]);
    assert!(said.contains("data.train names the same path and other contents in ("), "{said}");
    assert!(said.contains("it was changed between them"), "{said}");
    // an order by a loss of other data says so, too
    let sorted = |lab: &Lab| lab.run(["list", "--sort", "val_loss"]).expect(0).stdout.clone();
    assert!(!sorted(&lab).contains("was measured on different data"));
    let record = lab.path("runs/fake-4/run.json");
    let other =
        fs::read_to_string(&record).expect("a record").replace("\"train\":", "\"val\":\"v\",\"train\":");
    fs::write(&record, other).expect("a record");
    assert!(sorted(&lab).contains("val_loss was measured on different data (data.val)"), "{}", sorted(&lab));
    // another part of a file is no change of it
    for seed in 1..=4u64 {
        let recipe = lab.path(format!("runs/fake-{seed}/recipe.toml"));
        let text = fs::read_to_string(&recipe).expect("a recipe");
        let part = format!("[data]\nval_fraction = 0.{}\n", if seed > 2 { 2 } else { 1 });
        fs::write(&recipe, text.replace("[data]\n", &part)).expect("a recipe");
    }
    assert!(!text(&lab, &[]).contains("names the same path"));
}

#[test]
fn steps_whose_update_was_left_out_are_counted_and_told_of() {
    let lab = Lab::new();
    for seed in 1..=2 {
        Fake::new(&format!("fake-{seed}"), seed, 1e-3, 3.0).write(&lab.path("runs"));
    }
    assert!(!text(&lab, &[]).contains("skipped"));
    let log = lab.path("runs/fake-2/train.csv");
    let rows = fs::read_to_string(&log).expect("a log");
    fs::write(&log, rows.replacen(",0.1,1,0,", ",0.1,1,1,", 2)).expect("a log");
    let said = text(&lab, &[]);
    let note = "skipped steps, whose update was left out, count among the steps and tokens: fake-2 (2)";
    assert!(said.contains(note), "{said}");
    let csv = lab.run(["compare", "runs", "--format", "csv", "--sort", "seed"]).expect(0).stdout.clone();
    let mut lines = csv.lines().map(|line| line.split(',').collect::<Vec<_>>());
    let head = lines.next().expect("a header");
    let place = head.iter().position(|name| *name == "skipped_steps").expect("a column");
    assert_eq!(lines.map(|line| line[place].to_owned()).collect::<Vec<_>>(), ["0", "2"]);
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
        assert!(!text(&lab, &["--by", "tokens_per_s"]).contains("under other settings"), "{tasks}");
    }
    write(json!(["choices"]), json!({"eval.every": 4, "checkpoint.every": 1}));
    let said = text(&lab, &["--by", "tokens_per_s"]);
    assert!(said.contains("checkpoint.every=1"), "{said}");
}

#[test]
fn it_is_said_which_runs_shared_their_machine_with_others_of_these() {
    let lab = Lab::new();
    let session = |place: [&str; 2], [from, to]: [Option<u32>; 2]| {
        let at = |second: u32| {
            format!("2026-01-01T{:02}:{:02}:{:02}Z", second / 3600, second / 60 % 60, second % 60)
        };
        let [host, device] = place;
        let (started, ended) = (at(from.expect("a start")), to.map(at));
        json!({
            "from_step": 0, "settings": {}, "host": host, "device": device, "started": started, "ended": ended,
        })
    };
    let hashed = |id: &str, seed, hash: &str, sessions: &[serde_json::Value]| {
        let extra = json!({ "sessions": sessions, "hash": hash });
        Fake { extra, ..Fake::new(id, seed, 1e-3, 3.0) }.write(&lab.path("runs"));
    };
    let write = |id: &str, seed, place: [&str; 2], from: u32, to: Option<u32>| {
        hashed(id, seed, id, &[session(place, [Some(from), to])]);
    };
    let gone = |id: &str| fs::remove_dir_all(lab.path("runs").join(id)).expect("a run");
    let of = |metric: &str| text(&lab, &["--by", metric, "--metrics", metric]);
    let speeds = || of("tokens_per_s");
    let says = |said: &str, shared: &str, others: &str| {
        let note = format!(
            "{shared} trained at the same time as others of these on one machine for most of their time, and {others} \
             did not: speeds and seconds may differ by that as well"
        );
        assert!(said.contains(&note), "{said}");
    };
    let a = ["a", "cpu"];
    write("fake-1", 1, a, 0, Some(60));
    write("fake-2", 2, a, 0, Some(60));
    write("fake-3", 3, a, 60, Some(120));
    for metric in ["tokens_per_s", "mfu", "elapsed_s", "step_ms"] {
        says(&of(metric), "fake-1 and fake-2", "fake-3");
    }
    for metric in ["val_loss", "memory_bytes"] {
        assert!(!of(metric).contains("at the same time"), "speeds are not judged");
    }
    // one that is longer than each of the others
    write("fake-1", 1, a, 0, Some(90));
    write("fake-2", 2, a, 10, Some(40));
    write("fake-3", 3, a, 40, Some(70));
    write("fake-4", 4, a, 90, Some(120));
    says(&speeds(), "fake-1, fake-2 and fake-3", "fake-4");
    // one of which a process was killed, who knows when, may have been beside any
    hashed("fake-4", 4, "fake-4", &[session(a, [Some(90), None]), session(a, [Some(120), Some(130)])]);
    write("fake-5", 5, a, 95, Some(105));
    write("fake-6", 6, a, 120, Some(130));
    write("fake-7", 7, a, 140, Some(150));
    says(&speeds(), "fake-1, fake-2, fake-3 and fake-6", "fake-7");
    // of one that never went on, its logs say when it had ended
    for id in ["fake-4", "fake-5", "fake-6", "fake-7"] {
        gone(id);
    }
    hashed("fake-4", 4, "fake-4", &[session(a, [Some(90), None])]);
    let begun = std::time::SystemTime::UNIX_EPOCH + std::time::Duration::from_secs(1_767_225_600);
    for log in ["train.csv", "val.csv"] {
        let log = fs::File::open(lab.path("runs/fake-4").join(log)).expect("a log");
        log.set_modified(begun + std::time::Duration::from_secs(100)).expect("a time");
    }
    write("fake-5", 5, a, 100, Some(110));
    write("fake-6", 6, a, 7000, Some(7100));
    says(&speeds(), "fake-1, fake-2 and fake-3", "fake-6");
    // one that does not say where it was may have been anywhere
    let mut nowhere = session(a, [Some(6900), Some(7050)]);
    nowhere["host"] = json!(null);
    hashed("fake-7", 7, "fake-7", &[nowhere]);
    write("fake-8", 8, a, 8000, Some(8100));
    says(&speeds(), "fake-1, fake-2 and fake-3", "fake-8");
    for id in ["fake-4", "fake-5", "fake-6", "fake-7", "fake-8"] {
        gone(id);
    }
    write("fake-1", 1, a, 0, Some(60));
    write("fake-2", 2, a, 0, Some(60));
    // all of them, or none: on other machines or devices, one after the other, or who knows when
    write("fake-3", 3, a, 20, Some(90));
    let equal = |said: &str| assert!(!said.contains("at the same time"), "{said}");
    equal(&speeds());
    for (place, from, to) in [
        (["b", "cpu"], 0, Some(60)),
        (["a", "cuda:1 (NVIDIA H100)"], 0, Some(60)),
        (a, 50, Some(110)),
        (a, 0, None),
    ] {
        write("fake-2", 2, place, from, to);
        write("fake-3", 3, ["c", "cpu"], 0, Some(60));
        equal(&speeds());
    }
    // a copy has the sessions of its run, and the same recipe at the same time has its own
    hashed("fake-2", 1, "fake-1", &[session(a, [Some(0), Some(60)])]);
    equal(&speeds());
    hashed("fake-2", 1, "fake-1", &[session(a, [Some(1), Some(60)])]);
    says(&speeds(), "fake-1 and fake-2", "fake-3");
}

/// Edits the recipe of a run that was written.
fn with_recipe(run: &std::path::Path, more: &str) {
    let recipe = fs::read_to_string(run.join("recipe.toml")).expect("a recipe");
    fs::write(run.join("recipe.toml"), format!("{recipe}\n{more}")).expect("a recipe");
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
