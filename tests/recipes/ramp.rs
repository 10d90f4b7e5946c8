//! A batch that grows, through the program: what the logs say, and that nothing but the recipe decides it.

use crate::support;

use std::fs;
use std::path::Path;
use support::{Lab, column, record, train_csv};

/// A lab whose `tiny.toml` begins with 12 rows of 32 tokens and grows by as many to 48.
fn lab() -> Lab {
    let lab = Lab::new();
    let text = fs::read_to_string(lab.path("tiny.toml")).expect("a recipe");
    let grown = "total_tokens = 1536\nramp_start = 384\nramp_tokens = 3000";
    let changed = text
        .replace("total_tokens = 256", grown)
        .replace(
            "max_steps = 12\nwarmup_steps = 3",
            "max_tokens = 1e4\nwarmup_tokens = 1000\ndecay_tokens = 8000",
        )
        .replace("every = 4", "every = 1")
        .replace("lr = 1e-2", "lr = 1e-3");
    assert!(changed.contains(grown) && changed.contains("warmup_tokens"));
    lab.write("tiny.toml", changed);
    lab
}

/// Tokens after each step: a thousand of the ramp's tokens add twelve rows.
const TOKENS: [f64; 10] = [384.0, 768.0, 1152.0, 1920.0, 2688.0, 3840.0, 5376.0, 6912.0, 8448.0, 9984.0];

fn state(run: &Path, step: u64) -> serde_json::Value {
    let path = run.join(format!("checkpoints/step-{step:08}/state.json"));
    serde_json::from_str(&fs::read_to_string(path).expect("a state")).expect("JSON")
}

fn id(run: &Path) -> String {
    run.file_name().expect("a name").to_string_lossy().into_owned()
}

#[test]
fn the_logs_count_what_each_step_takes() {
    let lab = lab();
    let run = lab.train(&["checkpoint.keep=0"]);
    assert_eq!(column(&run, "tokens"), TOKENS);
    // 4000 tokens are 124 rows and a rest
    let epochs: Vec<f64> = TOKENS.iter().map(|tokens| tokens / 32.0 / 124.0).collect();
    assert_eq!(column(&run, "epoch"), epochs);
    let lr: Vec<f64> = TOKENS
        .iter()
        .enumerate()
        .map(|(step, after)| {
            let before = if step == 0 { 0.0 } else { TOKENS[step - 1] };
            let way = ((before - 1000.0) / 7000.0).min(1.0);
            match before < 1000.0 {
                true => 1e-3 * (after / 1000.0).min(1.0),
                false => 1e-4 + 0.5 * (1.0 + (std::f64::consts::PI * way).cos()) * 9e-4,
            }
        })
        .collect();
    let said = column(&run, "lr");
    assert!(said.iter().zip(&lr).all(|(said, lr)| (said / lr - 1.0).abs() < 1e-9), "{said:?} {lr:?}");
    assert_eq!(said[9], 1e-4);
    let of = |step| (state(&run, step)["tokens"].clone(), state(&run, step)["rows_consumed"].clone());
    assert_eq!(of(5), (2688.into(), 84.into()));
    assert_eq!(of(10), (9984.into(), 312.into()));
    assert_eq!(record(&run)["plan"]["stages"].as_array().map(Vec::len), Some(4));
}

#[test]
fn ranks_and_micro_batches_read_the_same_rows_at_the_same_rates() {
    let lab = lab();
    let alone = lab.train(&[]);
    for (ranks, rows, more) in
        [(1, "12", ""), (1, "auto", ""), (2, "2", "distributed.shard_optimizer=true"), (3, "4", "")]
    {
        let sets =
            [format!("batch.world_size={ranks}"), format!("batch.micro_batch={rows}"), more.to_owned()];
        let sets: Vec<&str> = sets.iter().map(String::as_str).filter(|set| !set.is_empty()).collect();
        let run = lab.train_in(&format!("runs-{ranks}-{rows}"), &sets);
        for name in ["step", "tokens", "epoch", "lr"] {
            assert_eq!(column(&run, name), column(&alone, name), "{sets:?}");
        }
        // sums in another order; other rows would differ by far more
        for (ours, theirs) in column(&run, "loss").iter().zip(column(&alone, "loss")) {
            assert!((ours / theirs - 1.0).abs() < 1e-5, "{sets:?}: {ours} is not {theirs}");
        }
    }
}

#[test]
fn a_run_that_is_cut_in_any_stage_goes_on_as_if_it_had_not_been() {
    let lab = lab();
    // within the first stage, at its end, in a stage of one step, in the last
    for (i, (sets, cuts)) in [
        (&["batch.micro_batch=4"][..], &[2, 4, 6, 9][..]),
        (&["batch.micro_batch=4", "compute.precision=fp16"], &[5]),
        (&["batch.world_size=3", "batch.micro_batch=4", "distributed.shard_optimizer=true"], &[5]),
    ]
    .into_iter()
    .enumerate()
    {
        let whole = lab.train_in(&format!("whole-{i}"), sets);
        let cut = format!("cut-{i}");
        for row in cuts {
            let run = lab.crash(&cut, sets, &format!("csv.before_row:{row}"));
            let again = lab.train_in(&cut, sets);
            assert_eq!(again, run);
            assert_eq!(support::essence(&run), support::essence(&whole), "{sets:?}, cut before row {row}");
            fs::remove_dir_all(run).expect("removed");
        }
    }
}

#[test]
fn a_branch_keeps_the_position_in_the_data() {
    let lab = lab();
    let trunk = lab.train(&["checkpoint.keep=0"]);
    let from = format!("model.init_from={{run=\"runs/{}\",step=4}}", id(&trunk));
    let branch = lab.train_in("branches", &[&from]);
    assert_eq!(column(&branch, "tokens"), TOKENS[4..]);
    assert_eq!(column(&branch, "loss"), column(&trunk, "loss")[4..]);
    // a part of the ramp may be written out
    let text = fs::read_to_string(lab.path("tiny.toml")).expect("a recipe");
    lab.write("part.toml", text.replace("ramp_start = 384\n", ""));
    lab.run(["part.toml", "--set", &from, "--dry-run"]).expect(0);
    // a ramp that has taken other rows by then
    let ended = lab.run(support::tiny("branches", &[&from, "batch.ramp_tokens=2000"]));
    ended.expect(2).says(&["`batch.ramp_tokens` is 2000", "says 3000"]);
    assert_eq!(train_csv(&branch).rows.len(), 6);
    let compared = lab.run(["compare", "runs", "branches"]);
    compared.expect(0);
}
