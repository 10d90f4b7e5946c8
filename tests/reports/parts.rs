//! Runs that were not trained from beginning to end as their recipe says, or not evaluated as often as others: what
//! `runner compare` says of it.

use crate::report_support;
use crate::support;

use report_support::{Fake, compared as json, printed as text};
use serde_json::{Value, json};
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
    // and no ratio is made of such speeds
    let ratios = json(&lab, &["--metrics", "speedup"]);
    let ratio = |i: usize| ratios["runs"][i]["metrics"]["speedup"].clone();
    assert_eq!((ratio(0), ratio(1)), (1.into(), Value::Null));
    // of two runs with one recipe and one seed, the one that was trained as it says counts
    write(&lab, "fake-3", 1, usual);
    let copies = "fake-1 has the recipe and the seed of fake-3";
    assert!(text(&lab, &[]).contains(copies));
}

/// Of runs that were continued with other settings, those whose parts are about equally long are equally fast. A median
/// of steps tells what most of them were trained with, and a sum of seconds more.
#[test]
fn speeds_of_runs_of_unequal_parts_are_not_held_against_each_other() {
    let lab = Lab::new();
    // each part up to its end with so many threads; the last one of a run that was killed has not said its end
    let tests = |metric: &str, parts: [&[(u64, u64)]; 2], steps: usize| {
        for (i, parts) in parts.into_iter().enumerate() {
            let froms = [0].into_iter().chain(parts.iter().map(|(to, _)| *to));
            let part = |(from, (to, threads)): (u64, &(u64, u64))| json!({"from_step": from, "to_step": to, "settings": {"compute.threads": threads}});
            let mut sessions: Vec<_> = froms.clone().zip(parts).map(part).collect();
            sessions.push(json!({"from_step": froms.last(), "settings": {}}));
            for seed in 1..=2 {
                let fake = Fake::new(&format!("fake-{i}{seed}"), seed, 1e-3 * (i + 1) as f64, 3.0);
                let extra = json!({ "sessions": sessions });
                let tokens_per_s = 100.0 + (i as u64 + seed) as f64;
                Fake { extra, tokens_per_s, losses: vec![3.0; steps], ..fake }.write(&lab.path("runs"));
            }
        }
        json(&lab, &["--by", metric])["tests"].as_array().expect("tests").len()
    };
    let each = |parts, steps| ["tokens_per_s", "elapsed_s", "memory_bytes"].map(|of| tests(of, parts, steps));
    assert_eq!(each([&[(2, 2)], &[(2, 2)]], 4), [1, 1, 1]);
    assert_eq!(each([&[(1, 2)], &[(3, 2)]], 4), [0, 0, 1]);
    assert_eq!(each([&[(100, 2)], &[(101, 2)]], 1000), [1, 1, 1]);
    assert_eq!(each([&[(100, 2)], &[(400, 2)]], 1000), [1, 0, 1]);
    // what one step took makes no speed, and is what the most memory may be of
    assert_eq!(each([&[], &[(1, 2)]], 1000), [1, 1, 0]);
    // no setting was that of most steps
    assert_eq!(each([&[(450, 2), (900, 4)], &[(10, 2), (20, 4)]], 1000), [0, 0, 1]);
}

#[test]
fn a_few_steps_on_another_device_may_be_most_of_the_time() {
    let lab = Lab::new();
    let tests = |device: &str, first: u64, metric: &str| {
        for (i, seed) in [(0, 1), (0, 2), (1, 1), (1, 2)] {
            let mut sessions = vec![json!({"from_step": 0, "settings": {}, "device": "cpu"})];
            if i == 1 {
                sessions
                    .insert(0, json!({"from_step": 0, "to_step": first, "settings": {}, "device": device}));
                sessions[1]["from_step"] = first.into();
            }
            let fake = Fake::new(&format!("fake-{i}{seed}"), seed, 1e-3 * (i + 1) as f64, 3.0);
            let (extra, tokens_per_s) = (json!({ "sessions": sessions }), 100.0 + (i + seed) as f64);
            Fake { extra, tokens_per_s, losses: vec![3.0; 1000], ..fake }.write(&lab.path("runs"));
        }
        json(&lab, &["--by", metric])["tests"].as_array().expect("tests").len()
    };
    for (device, first, counts) in
        [("cpu", 1, [1, 1]), ("cuda:0 (a)", 1, [1, 0]), ("cuda:0 (a)", 500, [0, 0])]
    {
        let found = ["tokens_per_s", "elapsed_s"].map(|metric| tests(device, first, metric));
        assert_eq!(found, counts, "{device} {first}");
    }
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
        let said = text(&lab, &["--by", metric, "--metrics", metric]);
        assert!(!said.contains("that had trained other runs before"), "{said}");
    }
    let beside =
        "memory_bytes was measured in part in processes that had trained other runs before, so it says";
    assert!(text(&lab, &[]).contains(beside));
    // one that was resumed has read a checkpoint
    let resumed = || text(&lab, &["--by", "memory_bytes"]).contains("fake-0 also read a checkpoint");
    assert!(!resumed());
    let sessions = json!([{"from_step": 0, "to_step": 2}, {"from_step": 2, "to_step": 4}]);
    write(&lab, "fake-0", 0, sessions);
    assert!(resumed());
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
    // nor did they miss a lower one
    let lower = text(&lab, &["--target", "val_loss=3"]);
    let note = "whether val_loss <= 3 would be reached is not known of runs that schedule.stop_at_val_loss ended before: \
                fake-01 (best 3.5000)";
    assert!(lower.contains(note) && !lower.contains("not reached") && !lower.contains("0 of"), "{lower}");
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

/// Sessions that begin a step after each other.
fn each_a_step(sessions: &[serde_json::Value]) -> Vec<serde_json::Value> {
    let at = |(step, session): (usize, &serde_json::Value)| {
        let mut session = session.clone();
        session["from_step"] = json!(step);
        session
    };
    sessions.iter().enumerate().map(at).collect()
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
        let extra = json!({ "sessions": each_a_step(sessions), "hash": hash });
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
            "{shared} trained at the same time as other runs on one machine for most of their time, and {others} \
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
    for args in [&[][..], &["--by", "val_loss"], &["--target", "val_loss=9"], &["--metrics", "speedup"]] {
        says(&text(&lab, args), "fake-1 and fake-2", "fake-3");
    }
    for metric in ["val_loss", "memory_bytes"] {
        assert!(!of(metric).contains("at the same time"), "no speed is shown");
    }
    // where all shared it, with how many
    write("fake-4", 4, a, 60, Some(120));
    assert!(!speeds().contains("at the same time"), "with as many");
    write("fake-5", 5, a, 60, Some(120));
    let said = speeds();
    let note = "on one machine at least 2.0 other runs trained at the same time as fake-3, fake-4 and fake-5 on \
                average, and at most 1.0 at that of fake-1 and fake-2: speeds and seconds may differ by that as well";
    assert!(said.contains(note), "{said}");
    assert!(!of("val_loss").contains("at the same time"));
    // a copy that was taken while its run trained is no other, though it has not said its end
    hashed("fake-6", 1, "fake-1", &[session(a, [Some(0), None])]);
    assert!(speeds().contains(note), "{}", speeds());
    gone("fake-6");
    // one that may have been beside as many is not known to have been beside fewer
    hashed("fake-6", 6, "fake-6", &[session(a, [Some(10), None]), session(a, [Some(60), Some(61)])]);
    write("fake-1", 1, a, 0, Some(59));
    assert!(!speeds().contains("2.0 others"), "{}", speeds());
    gone("fake-6");
    // a median does not feel others for less than half of the time, however many
    for id in ["fake-3", "fake-4", "fake-5"] {
        gone(id);
    }
    for (i, from) in [100, 200, 300, 400].into_iter().enumerate() {
        let sessions = [[0, 30], [from, from + 70]].map(|span| session(a, span.map(Some)));
        let seed = i as u64 + 1;
        hashed(&format!("fake-{seed}"), seed, &format!("fake-{seed}"), &sessions);
    }
    write("fake-5", 5, a, 500, Some(600));
    assert!(!speeds().contains("at the same time"), "{}", speeds());
    gone("fake-4");
    gone("fake-5");
    write("fake-1", 1, a, 0, Some(60));
    write("fake-2", 2, a, 0, Some(60));
    // a third of the time makes sums longer, and no median
    write("fake-2", 2, a, 40, Some(100));
    write("fake-3", 3, a, 100, Some(160));
    let note = "fake-1 and fake-2 trained at the same time as other runs on one machine for a tenth or more of \
                their time, and fake-3 did not: seconds may differ by that as well";
    for args in [&["--by", "elapsed_s"][..], &["--align", "time"]] {
        assert!(text(&lab, args).contains(note), "{}", text(&lab, args));
    }
    assert!(!speeds().contains("at the same time"));
    // for sums those are told of as well that shared it for less than half of theirs
    write("fake-2", 2, a, 40, Some(150));
    write("fake-1", 1, a, 0, Some(45));
    write("fake-3", 3, a, 50, Some(100));
    write("fake-4", 4, a, 200, Some(300));
    let of_medians = "fake-3 trained at the same time as other runs on one machine for most of their time, and \
                      fake-1, fake-2 and fake-4 did not";
    let of_sums = "fake-1, fake-2 and fake-3 trained at the same time as other runs on one machine for a tenth or \
                   more of their time, and fake-4 did not: seconds";
    for said in [of("elapsed_s"), speeds()] {
        assert!(said.contains(of_medians), "{said}");
    }
    assert!(of("elapsed_s").contains(of_sums) && !speeds().contains("a tenth"), "{}", of("elapsed_s"));
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
    write("fake-3", 3, a, 5, Some(65));
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
    // one that was killed has trained until it wrote its logs last, and one that went on until then at least
    let killed = |status: &'static str, sessions: serde_json::Value| {
        let extra = json!({ "sessions": each_a_step(sessions.as_array().expect("sessions")) });
        // 51 seconds
        let fake = Fake { status, extra, tokens_per_s: 20.0, ..Fake::new("fake-2", 2, 1e-3, 3.0) };
        let run = fake.write(&lab.path("runs"));
        for log in ["train.csv", "val.csv"] {
            let log = fs::File::open(run.join(log)).expect("a log");
            log.set_modified(begun + std::time::Duration::from_secs(50)).expect("a time");
        }
    };
    write("fake-1", 1, a, 0, Some(60));
    write("fake-3", 3, a, 7000, Some(7100));
    killed("interrupted", json!([session(a, [Some(0), None])]));
    says(&speeds(), "fake-1 and fake-2", "fake-3");
    let mut first = session(a, [Some(0), None]);
    first["last_written"] = session(a, [Some(0), Some(50)])["ended"].clone();
    killed("finished", json!([first, session(a, [Some(5000), Some(5010)])]));
    says(&speeds(), "fake-1 and fake-2", "fake-3");
    // machines whose processors differ are not one, whatever they are called
    let mut elsewhere = session(a, [Some(0), Some(60)]);
    elsewhere["processor"] = json!("another");
    hashed("fake-1", 1, "fake-1", &[elsewhere]);
    assert!(!speeds().contains("at the same time"), "{}", speeds());
    write("fake-1", 1, a, 0, Some(60));
    // one whose clock was set back is of no time
    killed(
        "interrupted",
        json!([session(a, [Some(90), Some(20)]), session(a, [Some(95), None]), session(a, [Some(3), None])]),
    );
    assert!(!speeds().contains("fake-2 did not"), "{}", speeds());
    let mut first = session(a, [Some(0), None]);
    first["last_written"] = session(a, [Some(0), Some(50)])["ended"].clone();
    killed("finished", json!([first, session(a, [Some(5000), Some(5010)])]));
    // what began soon after may have been beside it
    write("fake-3", 3, a, 70, Some(80));
    let said = speeds();
    assert!(said.contains("and whether fake-3 did is not known: speeds and seconds"), "{said}");
    // a copy has the sessions of its run, and the same recipe at the same time has its own
    hashed("fake-2", 1, "fake-1", &[session(a, [Some(0), Some(60)])]);
    equal(&speeds());
    hashed("fake-2", 1, "fake-1", &[session(a, [Some(1), Some(60)])]);
    says(&speeds(), "fake-1 and fake-2", "fake-3");
}

#[test]
fn a_run_that_moved_to_another_host_is_told_of_where_speeds_are_shown() {
    let lab = Lab::new();
    let on = |host: &str, from: u64| {
        let [started, ended] = [from, from + 1].map(|hour| format!("2026-01-01T0{hour}:00:00Z"));
        json!({
            "from_step": from, "settings": {}, "device": "cpu", "host": host, "started": started, "ended": ended,
        })
    };
    write(&lab, "fake-1", 1, json!([on("a", 0), on("a", 2)]));
    write(&lab, "fake-2", 2, json!([on("a", 0), on("b", 2)]));
    let note = "speeds and seconds may be of several machines: fake-2 (on a and b)";
    assert!(text(&lab, &[]).contains(note), "{}", text(&lab, &[]));
    assert!(!text(&lab, &["--by", "val_loss", "--metrics", "val_loss"]).contains("names of hosts"));
}
