//! What a finished run directory holds: the logs' columns and cadences, the checkpoints and the samples.

use crate::support;

use runner::run::row::Row;
use runner::run::{TrainRow, ValRow};
use std::fs;
use support::{Lab, checkpoints, column, record, train_csv, val_csv};

/// The names of the columns; `run::log` tests what they are.
fn names<R: Row>() -> Vec<&'static str> {
    R::COLUMNS.iter().map(|column| column.name).collect()
}

#[test]
fn train_csv_has_a_row_per_step_with_the_numbers_of_the_formula() {
    let lab = Lab::new();
    let run = lab.train(&[]);
    let csv = train_csv(&run);
    assert_eq!(csv.header, names::<TrainRow>());
    assert_eq!(csv.numbers("step"), (0..12).map(f64::from).collect::<Vec<_>>());
    assert_eq!(csv.numbers("tokens"), (1..=12).map(|n| 256.0 * f64::from(n)).collect::<Vec<_>>());
    // 4000 tokens are (4000 - 1) / 32 = 124 rows, of which a step takes 8
    let epoch: Vec<_> = (1..=12).map(|n| 8.0 * f64::from(n) / 124.0).collect();
    assert_eq!(csv.numbers("epoch"), epoch);
    let (peak, min) = (1e-2, 1e-3);
    for (step, lr) in (0..12).map(f64::from).zip(csv.numbers("lr")) {
        let cosine = min + 0.5 * (1.0 + (std::f64::consts::PI * (step - 3.0) / 9.0).cos()) * (peak - min);
        let expected = if step < 3.0 { peak * (step + 1.0) / 3.0 } else { cosine };
        assert!((lr - expected).abs() < 1e-15, "step {step}: {lr} is not {expected}");
    }
    // a model that knows nothing is as surprised by each of 256 tokens
    assert!((csv.numbers("loss")[0] - 256f64.ln()).abs() < 0.1);
    assert!(csv.numbers("loss")[11] < csv.numbers("loss")[0] - 0.2);
    assert!(csv.numbers("grad_norm").iter().all(|norm| norm.is_finite() && *norm > 0.0));
    assert_eq!((csv.numbers("loss_scale"), csv.numbers("skipped")), (vec![1.0; 12], vec![0.0; 12]));
    let elapsed = csv.numbers("elapsed_s");
    assert!(elapsed.windows(2).all(|pair| pair[0] < pair[1]), "{elapsed:?}");
    assert!(csv.numbers("memory_bytes").iter().all(|bytes| *bytes > 1e6));
    for (ms, rate) in csv.numbers("step_ms").into_iter().zip(csv.numbers("tokens_per_s")) {
        assert!((ms / 1e3 * rate - 256.0).abs() < 1e-6, "{ms} ms at {rate} tokens/s");
    }
    assert!(csv.numbers("mfu").iter().all(|mfu| *mfu > 0.0));
    // shortest round-trip floats
    for name in ["lr", "grad_norm", "epoch", "step_ms", "tokens_per_s", "elapsed_s"] {
        for cell in csv.cells(name) {
            assert_eq!(cell, cell.parse::<f64>().expect("a number").to_string());
        }
    }
    for cell in csv.cells("loss") {
        assert_eq!(cell, cell.parse::<f32>().expect("a number").to_string());
    }
}

#[test]
fn other_schedules_have_their_formulas() {
    let lab = Lab::new();
    let lr = |sets: &[&str]| column(&lab.train(sets), "lr");
    let close = |found: Vec<f64>, expected: &dyn Fn(f64) -> f64| {
        for (step, lr) in (0..12).map(f64::from).zip(found) {
            assert!((lr - expected(step)).abs() < 1e-15, "step {step}: {lr} is not {}", expected(step));
        }
    };
    let warm = |step: f64| 1e-2 * (step + 1.0) / 3.0;
    let linear = |step: f64| if step < 3.0 { warm(step) } else { 1e-2 - 9e-3 * (step - 3.0) / 9.0 };
    close(lr(&["schedule.kind=linear"]), &linear);
    let wsd = |step: f64| match step {
        s if s < 3.0 => warm(s),
        s if s < 8.0 => 1e-2,
        s => 1e-2 - 9e-3 * (s - 8.0) / 4.0,
    };
    close(lr(&["schedule.kind=wsd", "schedule.decay_steps=4"]), &wsd);
    let constant = lab.run(
        support::tiny("runs", &["schedule.kind=constant"])
            .iter()
            .map(String::as_str)
            .chain(["--unset", "schedule.warmup_steps"]),
    );
    close(column(&lab.run_of(constant.expect(0)), "lr"), &|_| 1e-2);
}

#[test]
fn validation_comes_at_the_start_every_so_often_and_at_the_end() {
    let lab = Lab::new();
    for (every, steps) in [
        (0, &[][..]),
        (1, &[0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12]),
        (4, &[0, 4, 8, 12]),
        (5, &[0, 5, 10, 12]),
        (100, &[0, 12]),
    ] {
        let run = lab.train_in(&format!("every-{every}"), &[&format!("eval.every={every}")]);
        let csv = val_csv(&run);
        assert_eq!(csv.header, names::<ValRow>());
        let found: Vec<_> = csv.numbers("step").into_iter().map(|step| step as u64).collect();
        assert_eq!(found, steps, "every {every}");
        let tokens: Vec<_> = steps.iter().map(|step| (step * 256) as f64).collect();
        assert_eq!(csv.numbers("tokens"), tokens);
        let losses = csv.numbers("val_loss");
        assert!(losses.last().is_none_or(|last| *last < losses[0]), "{losses:?}");
        let results = &record(&run)["results"];
        assert_eq!(
            results["final_val_loss"].as_f64().map(|loss| loss as f32),
            losses.last().map(|l| *l as f32)
        );
    }
    // no validation data, no validation
    let run = lab.train_in("none", &["data.val=[]"]);
    assert_eq!(val_csv(&run).rows.len(), 0);
}

#[test]
fn the_newest_checkpoints_are_kept_and_each_is_a_model_directory() {
    let lab = Lab::new();
    let names = |steps: &[u32]| steps.iter().map(|step| format!("step-{step:08}")).collect::<Vec<_>>();
    for (every, keep, steps) in [
        (4, 3, &[4, 8, 12][..]),
        (2, 3, &[8, 10, 12]),
        (5, 1, &[12]),
        (5, 0, &[5, 10, 12]),
        (0, 3, &[12]),
        (100, 3, &[12]),
    ] {
        let sets = [format!("checkpoint.every={every}"), format!("checkpoint.keep={keep}")];
        let run = lab.train_in(&format!("{every}-{keep}"), &[&sets[0], &sets[1]]);
        assert_eq!(checkpoints(&run), names(steps), "every {every}, keep {keep}");
        for name in checkpoints(&run) {
            let dir = run.join("checkpoints").join(name);
            let entries = fs::read_dir(dir).expect("a directory");
            let mut files: Vec<_> = entries.map(|e| e.expect("an entry").file_name()).collect();
            files.sort();
            let names = [
                "config.json",
                "generation_config.json",
                "model.safetensors",
                "optimizer.safetensors",
                "state.json",
                "tokenizer.json",
                "tokenizer_config.json",
            ];
            assert_eq!(files, names);
        }
    }
    let run = lab.only_run("4-3");
    let read = |name| fs::read(run.join("checkpoints/step-00000008").join(name)).expect("a file");
    let config: serde_json::Value = serde_json::from_slice(&read("config.json")).expect("JSON");
    let state: serde_json::Value = serde_json::from_slice(&read("state.json")).expect("JSON");
    for (key, value) in
        [("n_layer", 2), ("n_head", 2), ("n_embd", 32), ("n_positions", 32), ("vocab_size", 256)]
    {
        assert_eq!(config[key], value, "{key}");
    }
    for (key, value) in [("step", 8), ("tokens", 2048), ("updates_applied", 8), ("rows_consumed", 64)] {
        assert_eq!(state[key], value, "{key}");
    }
    let bytes = read("model.safetensors");
    let tensors = safetensors::SafeTensors::deserialize(&bytes).expect("tensors");
    assert_eq!(tensors.len(), 2 + 2 * 12 + 2);
    let c_attn = tensors.tensor("transformer.h.1.attn.c_attn.weight").expect("a tensor");
    assert_eq!(c_attn.shape(), [32, 96], "inputs by outputs, as Conv1D has it");
    assert_eq!(tensors.tensor("transformer.wte.weight").expect("a tensor").shape(), [256, 32]);
}

#[test]
fn the_record_has_plan_results_and_times() {
    let lab = Lab::new();
    let run = lab.train(&["sample.every=6", "sample.prompt=!", "sample.tokens=3"]);
    let record = record(&run);
    assert_eq!(record["id"], run.file_name().and_then(|name| name.to_str()).expect("a name"));
    assert!(
        record["id"]
            .as_str()
            .is_some_and(|id| id == format!("tiny-{}", &record["hash"].as_str().expect("a hash")[..8]))
    );
    for (key, value) in [("total_steps", 12), ("steps_done", 12), ("threads", 1)] {
        assert_eq!(record[key], value, "{key}");
    }
    for (key, value) in
        [("status", "finished"), ("device", "cpu"), ("engine", "fused"), ("precision", "fp32")]
    {
        assert_eq!(record[key], value, "{key}");
    }
    // 256·32 + 32·32 embeddings; per block 12·32² and 13·32; the last LayerNorm
    let parameters = 256 * 32 + 32 * 32 + 2 * (12 * 32 * 32 + 13 * 32) + 2 * 32;
    assert_eq!(record["plan"]["parameters"], parameters);
    assert_eq!(
        record["results"]["final_loss"].as_f64().map(|l| l as f32),
        column(&run, "loss").last().map(|l| *l as f32)
    );
    let text = String::from_utf8_lossy(&fs::read(run.join("samples.txt")).expect("samples")).into_owned();
    let heads: Vec<_> = text.lines().filter(|line| line.starts_with("===")).collect();
    assert_eq!(heads, ["=== step 0 ===", "=== step 6 ===", "=== step 12 ==="]);
}
