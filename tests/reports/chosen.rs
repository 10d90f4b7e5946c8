//! What `auto` came to on the machines of runs: what `runner compare` says of it, and what it does not compare.

use crate::report_support;
use crate::support;

use report_support::{Fake, compared as json, printed as text, with_recipe};
use serde_json::json;
use std::fs;
use support::Lab;

#[test]
fn what_auto_came_to_is_said_where_it_differs_and_something_depends_on_it() {
    let lab = Lab::new();
    let write = |seed: u64, rows: u64, recompute: &str, more: &str| {
        let extra = json!({"plan": {"micro_batch": rows, "recompute": recompute}});
        let fake = Fake { extra, ..Fake::new(&format!("fake-{seed}"), seed, 1e-3, 3.0) };
        with_recipe(&fake.write(&lab.path("runs")), more);
    };
    let note = "batch.micro_batch = auto came to 8 (fake-2) and 64 (fake-1), by the recipe and the memory";
    write(1, 64, "none", "");
    write(2, 8, "none", "");
    for args in [&[][..], &["--by", "memory_bytes"], &["--target", "val_loss=9"]] {
        let said = text(&lab, args);
        assert!(said.contains(note) && !said.contains("compute.recompute = auto"), "{said}");
    }
    assert!(json(&lab, &[])["runs"][0]["notes"].to_string().contains(note));
    assert!(!text(&lab, &["--metrics", "val_loss"]).contains("= auto"));
    write(2, 64, "block", "");
    let said = text(&lab, &[]);
    assert!(said.contains("compute.recompute = auto came to none (fake-1) and block (fake-2)"), "{said}");
    // one that its recipe asks for has a column
    write(2, 8, "none", "[batch]\nmicro_batch = 8\n");
    assert!(!text(&lab, &[]).contains("= auto"));
}

#[test]
fn memory_and_speed_are_not_put_down_to_a_recipe_where_machines_chose() {
    let lab = Lab::new();
    let write = |i: u64, lr: f64, rows: u64, more: &str| {
        let plan = json!({"micro_batch": rows, "recompute": "none", "bytes": [["parameters", 40], ["scratch", rows]]});
        let id = format!("fake-{i}");
        let fake = Fake {
            tokens_per_s: (100 * rows + i) as f64,
            extra: json!({ "plan": plan }),
            ..Fake::new(&id, i % 3, lr, 3.0)
        };
        with_recipe(&fake.write(&lab.path("runs")), more);
    };
    let of = |rows: &dyn Fn(u64) -> u64, more: [&str; 2]| {
        for i in 0..6 {
            let (lr, more) = if i < 3 { (1e-3, more[0]) } else { (3e-3, more[1]) };
            write(i, lr, rows(i), more);
        }
    };
    let by = |metric: &str| text(&lab, &["--by", metric]);
    let note = "tokens_per_s was measured with a choice of auto that differs: 2 sets of runs, which are neither ranked";
    // one recipe's machines had more memory than the other's
    of(&|i| if i < 3 { 64 } else { 8 }, ["", ""]);
    let said = by("tokens_per_s");
    assert!(said.contains(note) && !said.contains("in tokens_per_s by"), "{said}");
    assert!(!by("val_loss").contains("2 sets"));
    assert!(text(&lab, &[]).contains("measured with a choice of auto that differs, so "));
    // of both some
    of(&|i| if i % 3 == 0 { 64 } else { 8 }, ["", ""]);
    let mixed =
        "of their seeds were measured with a choice of auto that differs, so there is no mean and no test";
    let said = text(&lab, &[]);
    assert!(said.contains(mixed), "{said}");
    // other models choose otherwise
    of(&|i| if i < 3 { 64 } else { 8 }, ["", "[model]\nn_layer = 24\n"]);
    let said = by("tokens_per_s");
    assert!(!said.contains("2 sets") && said.contains("in tokens_per_s by"), "{said}");
    // and so do recipes that say it
    of(&|i| if i < 3 { 64 } else { 8 }, ["[batch]\nmicro_batch = 64\n", ""]);
    assert!(by("tokens_per_s").contains("in tokens_per_s by"));
}

#[test]
fn a_run_that_went_on_with_less_memory_says_what_auto_had_come_to() {
    let lab = Lab::new();
    let session = |from: u64, to: u64, recompute: &str| json!({"from_step": from, "to_step": to, "recompute": recompute});
    let write = |seed: u64, second: &str| {
        let sessions = json!([session(0, 2, "none"), session(2, 4, second)]);
        let extra = json!({"plan": {"recompute": second}, "sessions": sessions});
        let run =
            Fake { extra, ..Fake::new(&format!("fake-{seed}"), seed, 1e-3, 3.0) }.write(&lab.path("runs"));
        let recipe = fs::read_to_string(run.join("recipe.toml")).expect("a recipe");
        let recipe = recipe.replacen("[compute]", "[compute]\nrecompute = \"auto\"", 1);
        fs::write(run.join("recipe.toml"), recipe).expect("a recipe");
    };
    let note = "part of it was trained with compute.recompute=none";
    write(1, "none");
    write(2, "none");
    assert!(!text(&lab, &[]).contains(note));
    write(2, "block");
    let said = text(&lab, &[]);
    assert!(said.contains(note), "{said}");
    // which a session puts on record
    let run = lab.train(&["compute.recompute=auto"]);
    assert_eq!(support::record(&run)["sessions"][0]["recompute"], "none");
    let run = lab.train(&["seed=7"]);
    assert!(support::record(&run)["sessions"][0]["recompute"].is_null());
}

#[test]
fn memory_and_speed_of_ranks_that_were_joined_otherwise_are_not_put_down_to_a_recipe() {
    let lab = Lab::new();
    let write = |i: u64, lr: f64, ranks: &str, more: &str| {
        let extra = json!({"sessions": [{"from_step": 0, "ranks": ranks}]});
        let fake = Fake {
            tokens_per_s: (1000 * (1 + i / 3) + i) as f64,
            extra,
            ..Fake::new(&format!("fake-{i}"), i % 3, lr, 3.0)
        };
        with_recipe(&fake.write(&lab.path("runs")), more);
    };
    let of = |ranks: [&str; 2], more: [&str; 2]| {
        for i in 0..6 {
            let at = usize::from(i >= 3);
            write(i, [1e-3, 3e-3][at], ranks[at], more[at]);
        }
        text(&lab, &["--by", "tokens_per_s"])
    };
    let two = "[batch]\nworld_size = 2\n";
    let processes = "processes, 2 on one machine";
    let note = "tokens_per_s was measured with ranks that were joined in other ways: 2 sets of runs";
    assert!(of(["threads", "threads"], [two, two]).contains("in tokens_per_s by"));
    let said = of(["threads", processes], [two, two]);
    assert!(said.contains(note) && !said.contains("in tokens_per_s by"), "{said}");
    assert!(!text(&lab, &["--by", "val_loss"]).contains("2 sets"));
    // more ranks are another setting
    assert!(of(["threads", processes], [two, "[batch]\nworld_size = 4\n"]).contains("in tokens_per_s by"));
    let run = lab.train(&["batch.world_size=2", "schedule.max_steps=4"]);
    assert_eq!(support::record(&run)["sessions"][0]["ranks"], "threads");
}
