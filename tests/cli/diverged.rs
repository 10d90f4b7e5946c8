//! Runs that lose their numbers: fp32 ends them, fp16 scales the loss down first.

use crate::support;

use std::fs;
use std::path::Path;
use support::{Lab, checkpoints, column, essence, everything, record, rows, tiny, train_csv};

/// Every weight of every checkpoint.
fn weights(run: &Path) -> Vec<f32> {
    let mut all = Vec::new();
    for checkpoint in checkpoints(run) {
        for file in ["model.safetensors", "optimizer.safetensors"] {
            let bytes = fs::read(run.join("checkpoints").join(&checkpoint).join(file)).expect("a file");
            let tensors = safetensors::SafeTensors::deserialize(&bytes).expect("tensors");
            for (_, tensor) in tensors.tensors() {
                let values = tensor.data().chunks_exact(4).map(|b| [b[0], b[1], b[2], b[3]]);
                all.extend(values.map(f32::from_le_bytes));
            }
        }
    }
    all
}

#[test]
fn a_diverged_run_ends_with_code_4_and_keeps_a_good_checkpoint() {
    let lab = Lab::new();
    for lr in ["1e10", "1e30", "1e38"] {
        let lr = format!("optimizer.lr={lr}");
        let sets = [lr.as_str(), "optimizer.clip_norm=0.0", "checkpoint.every=1", "checkpoint.keep=1"];
        let args = tiny("runs", &sets);
        let diverged = lab.run(&args);
        diverged.expect(4).says(&["diverged at step", "optimizer.lr", "schedule.warmup_steps"]);
        let run = lab.run_of(&diverged);
        assert_eq!(record(&run)["status"], "diverged");
        assert!(record(&run)["error"].as_str().is_some_and(|error| error.starts_with("at step")));
        let text = fs::read_to_string(run.join("train.csv")).expect("a log");
        assert!(!text.contains("NaN") && !text.contains("inf"), "{text}");
        assert!(rows(&run) < 12);
        assert_eq!(checkpoints(&run).len(), 1, "the last good one is kept");
        let weights = weights(&run);
        assert!(
            !weights.is_empty() && weights.iter().all(|w| w.is_finite()),
            "{lr}: {:?}",
            checkpoints(&run)
        );
        let before = everything(&run);
        let again = lab.run(&args);
        again.expect(4).says(&["diverged", "--fresh", "--resume"]);
        assert_eq!(again.stdout, diverged.stdout);
        assert!(everything(&run) == before, "nothing is tried again");
        // told to, it tries again and ends the same way
        let id = run.file_name().and_then(|name| name.to_str()).expect("a name");
        lab.run(["--resume", id]).expect(4).says(&["diverged at step"]);
        assert!(
            support::results(&run).into_iter().all(|(name, bytes)| before
                .get(&name)
                .is_none_or(|b| name.ends_with(".csv") || b.0 == bytes))
        );
    }
}

#[test]
fn weights_that_overflow_in_an_update_are_never_saved() {
    let lab = Lab::new();
    // the gradients are finite, but the rate is not one that a weight could survive
    for (name, every, steps) in [("last", 0, 1), ("each", 1, 12), ("each-last", 1, 1)] {
        let (every, steps) = (format!("checkpoint.every={every}"), format!("schedule.max_steps={steps}"));
        let lr = ["optimizer.lr=3.4e38", "optimizer.weight_decay=1.0", "schedule.warmup_steps=1"];
        let sets = [&lr[..], &["eval.every=0", &every, &steps]].concat();
        let ended = lab.run(tiny(name, &sets));
        ended.expect(4).says(&["diverged at step 0", "the weight `", "is not finite after the update"]);
        let run = lab.run_of(&ended);
        assert!(!run.join("checkpoints").exists(), "{:?}", checkpoints(&run));
        assert_eq!(record(&run)["status"], "diverged");
        lab.run(tiny(name, &sets)).expect(4).says(&["diverged"]);
    }
}

/// One token per step: the gradient of its logit is nearly the loss scale itself, which half precision cannot hold at
/// the start.
const OVERFLOWING: [&str; 8] = [
    "compute.precision=fp16",
    "model.block_size=1",
    "model.vocab_size=8192",
    "batch.total_tokens=1",
    "batch.micro_batch=1",
    "data.shuffle=false",
    "eval.every=0",
    "checkpoint.every=2",
];

#[test]
fn an_overflow_in_fp16_is_a_skipped_step_and_survives_a_restart() {
    let lab = Lab::new();
    let whole = lab.train_in("whole", &OVERFLOWING);
    let (skipped, scale) = (column(&whole, "skipped"), column(&whole, "loss_scale"));
    assert_eq!((skipped[0], scale[0]), (1.0, 65536.0));
    assert_eq!(*skipped.last().expect("rows"), 0.0, "{skipped:?}");
    for (i, pair) in scale.windows(2).enumerate() {
        assert_eq!(pair[1], if skipped[i] == 1.0 { pair[0] / 2.0 } else { pair[0] });
    }
    let csv = train_csv(&whole);
    let norm = csv.header.iter().position(|name| name == "grad_norm").expect("a column");
    assert!(!csv.rows[0][norm].parse::<f64>().expect("a number").is_finite(), "{:?}", csv.rows[0]);
    for row in [2, 4, 7] {
        let runs = format!("runs-{row}");
        let run = lab.crash(&runs, &OVERFLOWING, &format!("csv.before_row:{}", row + 1));
        assert_eq!(rows(&run), row);
        let resumed = lab.run(tiny(&runs, &OVERFLOWING));
        resumed.expect(0).says(&[&format!("step {} of 12", row / 2 * 2)]);
        assert!(essence(&run) == essence(&whole), "after a crash in step {row}");
    }
}
