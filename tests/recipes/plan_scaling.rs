//! What several ranks cost: the table of docs/scaling.md against the formula in the program, and what `runner plan` says.

use crate::support;

use runner::plan::scaling::{Scaling, wire_bytes};
use support::{Lab, ended, tiny};

#[test]
fn the_table_on_paper_is_what_the_formula_gives() {
    let text = include_str!("../../docs/scaling.md");
    let rows: Vec<Vec<f64>> = text
        .lines()
        .filter(|line| line.starts_with("| 124M") || line.starts_with("| 1558M"))
        .map(|line| {
            let cells =
                line.trim_matches('|').split('|').map(|cell| cell.trim().replace([',', '%', 'M'], ""));
            cells.map(|cell| cell.trim().parse().unwrap_or_else(|_| panic!("{cell}"))).collect()
        })
        .collect();
    assert_eq!(rows.len(), 6);
    for row in rows {
        let [
            model,
            ranks,
            tokens,
            micro,
            compute,
            megabytes,
            link,
            communication,
            exposed,
            speed,
            efficiency,
        ] = row.try_into().expect("eleven columns");
        let elements = if model == 124.0 { 124_475_904 } else { 1_557_686_400 };
        let wire = wire_bytes(elements, ranks as usize);
        let flops = if model == 124.0 { 803_261_952.0 } else { 9_817_526_400.0 };
        let per_rank = tokens / ranks;
        let compute_s = per_rank * flops / (0.45 * 989e12);
        let micro_steps = (per_rank / (micro * 1024.0)) as usize;
        let scaling = Scaling::new(wire, link * 1e9, compute_s, micro_steps, true, tokens as usize);
        for (shown, value, digits) in [
            (compute, compute_s * 1e3, 0.05),
            (megabytes, wire as f64 / 1e6, 0.5),
            (communication, scaling.communication_s * 1e3, 0.05),
            (exposed, scaling.exposed_s * 1e3, 0.05),
            (speed, scaling.tokens_per_s / 1e6, 0.005),
            (efficiency, scaling.efficiency * 100.0, 0.5),
        ] {
            assert!((shown - value).abs() <= digits * 1.001, "{shown} is shown for {value}");
        }
    }
}

fn plan(lab: &Lab, more: &[&str]) -> serde_json::Value {
    let mut args = vec!["plan".to_owned()];
    args.extend(tiny("runs", &["batch.world_size=4", "batch.micro_batch=1"]));
    args.extend(["--format", "json"].into_iter().chain(more.iter().copied()).map(str::to_owned));
    let ended = ended(lab.command(args));
    serde_json::from_str(&ended.expect(0).stdout).expect("JSON")
}

#[test]
fn a_plan_knows_its_ranks() {
    let lab = Lab::new();
    let alone = {
        let mut args = vec!["plan".to_owned()];
        args.extend(tiny("runs", &["batch.micro_batch=1"]));
        args.extend(["--format".to_owned(), "json".to_owned()]);
        serde_json::from_str::<serde_json::Value>(&ended(lab.command(args)).expect(0).stdout).expect("JSON")
    };
    let ranks = plan(&lab, &["--link", "2"]);
    assert_eq!((ranks["world_size"].as_u64(), ranks["ranks_here"].as_u64()), (Some(4), Some(4)));
    assert_eq!((ranks["rows_per_rank"].as_u64(), ranks["micro_steps"].as_u64()), (Some(2), Some(2)));
    assert_eq!(ranks["total_bytes"], alone["total_bytes"], "of one rank");
    let wire = ranks["wire_bytes_per_step"].as_f64().expect("bytes");
    assert_eq!(
        wire * 2.0,
        ranks["bytes"]["gradients"].as_f64().expect("bytes") * 3.0,
        "2 (4 - 1) / 4 of the gradients"
    );
    let scaling = &ranks["scaling"];
    let seconds = |key: &str| scaling[key].as_f64().expect("seconds");
    assert_eq!(seconds("communication_s"), wire / 2e9);
    assert_eq!(seconds("exposed_s"), seconds("communication_s"), "on the CPU nothing is hidden");
    assert_eq!(alone["scaling"], serde_json::Value::Null);
    // measured here, for threads
    assert!(plan(&lab, &[])["scaling"]["bytes_per_s"].as_f64().is_some_and(|rate| rate > 1e6));
    // sharded moments
    let sharded = plan(&lab, &["--set", "distributed.shard_optimizer=true"]);
    let moments = |plan: &serde_json::Value| plan["bytes"]["moments"].as_f64().expect("bytes");
    assert!((moments(&sharded) / moments(&ranks) - 0.25).abs() < 0.01);
    // rank 0 gathers them for a checkpoint, one of the two after the other
    assert_eq!(sharded["gathered_bytes"], ranks["bytes"]["parameters"], "{sharded}");
    assert_eq!(ranks["gathered_bytes"], 0);
    // Muon's matrices go to one rank each: the cut lies in `c_fc`, nearer to its start, so the second rank has 8 of
    // the block's 12 C², and two moments of every vector
    let [world, layers, width] = ["batch.world_size=2", "model.n_layer=1", "model.n_embd=256"];
    let uneven =
        plan(&lab, &["--set", "optimizer.kind=muon", "--set", world, "--set", layers, "--set", width]);
    let of_second = 8 * 256 * 256 + 2 * 15 * 256;
    assert_eq!(moments(&uneven), f64::from(4 * of_second), "{uneven}");
    lab.run(["plan", "tiny.toml", "--link", "0"]).expect(2).says(&["--link 0"]);
}

#[test]
fn a_bench_of_ranks_says_what_they_send() {
    let lab = Lab::new();
    let mut args = vec!["bench", "tiny.toml", "--steps", "3", "--format", "json"];
    args.extend(["--set", "batch.world_size=2", "--set", "batch.micro_batch=1"]);
    let ended = lab.run(&args);
    let bench: serde_json::Value = serde_json::from_str(&ended.expect(0).stdout).expect("JSON");
    assert_eq!((bench["world_size"].as_u64(), bench["ranks_by"].as_str()), (Some(2), Some("threads")));
    assert!(bench["phases"]["communication"].as_f64().is_some_and(|ms| ms > 0.0));
    assert!(bench["wire_bytes_per_s"].as_f64().is_some_and(|rate| rate > 0.0));
}

/// A plan of many ranks, in which each has a row of its own.
fn crowd(lab: &Lab, ranks: u64, more: &[&str]) -> serde_json::Value {
    let world = format!("batch.world_size={ranks}");
    let tokens = format!("batch.total_tokens={}", 32 * ranks);
    let mut args = vec!["plan".to_owned()];
    args.extend(tiny("runs", &[&world, &tokens, "batch.micro_batch=1"]));
    args.extend(["--format", "json"].iter().chain(more).map(|word| (*word).to_owned()));
    serde_json::from_str(&ended(lab.command(args)).expect(0).stdout).expect("JSON")
}

#[test]
fn memory_and_time_are_of_the_same_ranks() {
    let lab = Lab::new();
    let ranks = 4096;
    let step_s = |plan: &serde_json::Value| {
        let of = |part: &str, key: &str| plan[part][key].as_f64().expect("seconds");
        assert_eq!(of("predicted", "step_s"), of("scaling", "step_s"), "with what ranks say to each other");
        assert_eq!(of("predicted", "tokens_per_s"), of("scaling", "tokens_per_s"));
        of("predicted", "step_s") - of("scaling", "exposed_s")
    };
    // the first plan times a small step, which the other one remembers
    let spread = crowd(&lab, ranks, &["--ranks-here", "1", "--link", "40"]);
    let here = crowd(&lab, ranks, &["--link", "40"]);
    assert_eq!((&spread["ranks_here"], &here["ranks_here"]), (&1.into(), &ranks.into()));
    assert_eq!(spread["total_bytes"], here["total_bytes"], "of one rank");
    assert_eq!(spread["refusal"], serde_json::Value::Null);
    // as much memory as all of them share, and as many threads
    let free = here["free_bytes"].as_u64().expect("bytes") / ranks;
    let needs = here["total_bytes"].as_u64().expect("bytes");
    assert_eq!(here["refusal"].is_null(), needs <= free, "{}", here["refusal"]);
    let threads = std::thread::available_parallelism().map_or(1, usize::from) as f64;
    let crowding = step_s(&here) / step_s(&spread);
    assert!((crowding / (ranks as f64 / threads) - 1.0).abs() < 1e-6, "{crowding}");
    // in words
    let text = |more: &[&str]| {
        let args = ["plan", "tiny.toml", "--set", "batch.world_size=4", "--set", "batch.micro_batch=1"];
        lab.run(args.iter().chain(more)).expect(0).stdout.clone()
    };
    assert!(text(&[]).contains("4 of 2 rows per step, all on this machine"));
    assert!(text(&["--ranks-here", "1"]).contains("4 of 2 rows per step, 1 on each machine like this one"));
    let refused = lab.run(["plan", "tiny.toml", "--ranks-here", "2"]);
    refused.expect(2).says(&["2 ranks cannot share this machine: batch.world_size is 1", "--ranks-here 1"]);
    lab.run(["plan", "tiny.toml", "--ranks-here", "0"]).expect(2);
}

#[test]
fn a_plan_of_thousands_of_ranks_starts_no_more_than_the_machine_runs() {
    let lab = Lab::new();
    let plan = crowd(&lab, 8192, &[]);
    let rate = plan["scaling"]["bytes_per_s"].as_f64().expect("measured");
    assert!(rate > 0.0 && rate < plan_of_two(&lab), "8192 ranks share what two have: {rate}");
}

fn plan_of_two(lab: &Lab) -> f64 {
    crowd(lab, 2, &[])["scaling"]["bytes_per_s"].as_f64().expect("measured")
}
