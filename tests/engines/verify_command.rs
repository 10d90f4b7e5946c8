//! `runner verify` as its users see it: what it prints, what programs can rely on, how it ends.

use crate::verify_support;

use serde_json::Value;
use verify_support::Place;

/// Verifies with these settings and parses the JSON; the exit code beside it.
fn json(place: &Place, settings: &[&str]) -> (i32, Value) {
    let mut arguments = vec!["verify", "tiny.toml", "--format", "json", "--steps", "3"];
    settings.iter().for_each(|setting| arguments.extend(["--set", setting]));
    let said = place.run(&arguments);
    (said.code, serde_json::from_str(&said.stdout).unwrap_or_else(|e| panic!("{e}: {}", said.stderr)))
}

#[test]
fn the_table_has_every_step_and_every_tensor_in_order_of_computation() {
    let place = Place::new();
    let said = place.run(&["verify", "tiny.toml", "--steps", "3"]);
    assert_eq!(said.code, 0, "{}", said.stderr);
    let lines: Vec<_> = said.stdout.lines().collect();
    assert_eq!(
        lines[0],
        "tiny: the fused engine on the CPU in fp32 with flash attention against dfdx in fp32, 3 steps on the recipe's data"
    );
    assert!(lines[2].trim_start().starts_with("step "), "nothing was cut down: {}", lines[1]);
    let rows: Vec<Vec<&str>> = lines.iter().map(|line| line.split_whitespace().collect()).collect();
    for step in ["0", "1", "2"] {
        assert!(rows.iter().any(|row| row.first() == Some(&step) && row.last() == Some(&"ok")), "{step}");
    }
    let tensors: Vec<_> = rows.iter().filter(|row| row.len() == 6 && row[0].contains('.')).collect();
    assert_eq!(tensors.len(), 2 + 2 * 12 + 2);
    let names: Vec<_> = tensors.iter().map(|row| row[0]).collect();
    assert_eq!(names[..4], ["wte.weight", "wpe.weight", "h.0.ln_1.weight", "h.0.ln_1.bias"]);
    assert_eq!(names[27], "ln_f.bias");
    let last = &lines[lines.len() - 2..];
    assert_eq!(
        last,
        ["tolerances: loss 1e-5, later 1e-4, gradient 1e-4, parameters 1e-4, change 1e-3", "passed"]
    );
}

#[test]
fn the_json_has_the_documented_keys() {
    let place = Place::new();
    let (code, json) = json(&place, &[]);
    assert_eq!(code, 0);
    let keys = |value: &Value| value.as_object().expect("an object").keys().cloned().collect::<Vec<_>>();
    assert_eq!(
        keys(&json),
        [
            "recipe",
            "device",
            "precision",
            "attention",
            "rows",
            "declared",
            "verified",
            "passed",
            "tolerances",
            "steps",
            "tensors",
            "first_failure",
            "last_gradient_failure"
        ]
    );
    assert_eq!((&json["recipe"], &json["precision"]), (&"tiny".into(), &"fp32".into()));
    assert_eq!(json["attention"], "flash");
    assert_eq!(json["passed"], true);
    assert_eq!(json["first_failure"], Value::Null);
    assert_eq!(keys(&json["tolerances"]), ["loss", "later_loss", "gradient", "parameter", "change"]);
    for scope in ["declared", "verified"] {
        let expected =
            serde_json::json!({"n_layer": 2, "block_size": 70, "micro_batch": 4, "micro_steps": 2});
        assert_eq!(json[scope], expected, "{scope}");
    }
    let step = [
        "step",
        "loss",
        "reference_loss",
        "loss_error",
        "grad_norm",
        "reference_grad_norm",
        "applied",
        "passed",
    ];
    assert_eq!(keys(&json["steps"][2]), step);
    assert_eq!(json["steps"].as_array().map(Vec::len), Some(3));
    let tensor = [
        "name",
        "gradient_error",
        "gradient_cosine",
        "parameter_error",
        "change_error",
        "gradient_passed",
        "parameter_passed",
        "left_out",
    ];
    assert_eq!(keys(&json["tensors"][0]), tensor);
    assert_eq!(json["tensors"].as_array().map(Vec::len), Some(28));
}

/// AdamW makes a whole step of a gradient that is all rounding, and some seed has one in a tensor of few elements.
#[test]
fn every_seed_of_a_small_model_passes() {
    let place = Place::new();
    let mut left_out = 0;
    let small = ["model.n_layer=1", "model.n_embd=32", "model.n_head=2", "model.block_size=32"];
    let step = ["batch.micro_batch=4", "batch.total_tokens=128", "compute.precision=tf32"];
    for seed in 0..12 {
        let seed = format!("seed={seed}");
        let verify = ["verify", "builtin:quickstart", "--steps", "1", "--format", "json", &seed];
        let said = place.run(&[&verify[..], &small, &step].concat());
        assert_eq!(said.code, 0, "{seed}: {}", said.stdout);
        let json: Value = serde_json::from_str(&said.stdout).expect("JSON");
        let tensors = json["tensors"].as_array().expect("tensors");
        left_out += tensors.iter().map(|t| t["left_out"].as_u64().expect("a number")).sum::<u64>();
    }
    assert!(left_out > 0, "no seed needs it");
}

/// The largest gradient error of any tensor.
fn gradient_error(json: &Value) -> f64 {
    let tensors = json["tensors"].as_array().expect("tensors");
    tensors.iter().map(|t| t["gradient_error"].as_f64().expect("a number")).fold(0.0, f64::max)
}

/// A precision that is silently fp32 would pass every bound, so there is a lower one too.
#[test]
fn every_precision_passes_and_rounds() {
    let place = Place::new();
    for attention in ["compute.attention=flash", "compute.attention=naive"] {
        let errors = ["fp32", "tf32", "fp16", "bf16"].map(|precision| {
            let setting = format!("compute.precision={precision}");
            let (code, json) = json(&place, &[&setting, attention]);
            assert_eq!((code, &json["precision"]), (0, &precision.into()), "{json:#}");
            gradient_error(&json)
        });
        let [fp32, tf32, fp16, bf16] = errors;
        assert!(fp32 < 1e-5, "{attention}: {errors:?}");
        assert!(tf32 > 1e-4 && fp16 > 1e-4, "{attention}: {errors:?}");
        assert!(bf16 > 1e-3, "bf16 keeps 3 bits less than the others, {attention}: {errors:?}");
    }
}

#[test]
fn what_is_out_of_bounds_fails_with_code_1() {
    let place = Place::new();
    // steps so large that the rounding of bf16 is another trajectory
    let wild = ["--set", "compute.precision=bf16", "--set", "optimizer.lr=3.0", "--steps", "6"];
    let said = place.run(&[&["verify", "tiny.toml"], &wild[..]].concat());
    assert_eq!(said.code, 1, "{}", said.stdout);
    assert!(said.stdout.ends_with("FAILED\n"), "{}", said.stdout);
    assert!(said.stdout.contains("first tensor off, in order of computation: "), "{}", said.stdout);
    assert!(said.stdout.contains(" FAIL\n"), "{}", said.stdout);
    assert!(said.stdout.contains("--set compute.precision=fp32 looks closer"), "{}", said.stdout);
    let arguments = [&["verify", "tiny.toml", "--format", "json"], &wild[..]].concat();
    let said = place.run(&arguments);
    let json: Value = serde_json::from_str(&said.stdout).expect("JSON on failure too");
    assert_eq!((said.code, &json["passed"]), (1, &false.into()));
    assert!(json["first_failure"].is_string());
}

#[test]
fn what_cannot_be_verified_is_refused_with_code_2() {
    let place = Place::new();
    for (arguments, reason) in [
        (&["--set", "compute.engine=dfdx"][..], "is the reference itself"),
        (&["--set", "compute.engine=dfdx", "--set", "compute.attention=flash"], "has no effect"),
        (&["--set", "model.n_layers=3"], "did you mean `n_layer`?"),
        (&["--steps", "0"], "0 is not in 1.."),
        (&["--set", "model.init_from=nowhere.safetensors"], "nowhere.safetensors"),
    ] {
        let said = place.run(&[&["verify", "tiny.toml"], arguments].concat());
        assert_eq!(said.code, 2, "{arguments:?}: {}", said.stderr);
        assert!(said.stderr.contains(reason), "{arguments:?}: {}", said.stderr);
        assert!(!said.stdout.contains("passed"), "{arguments:?}");
    }
    let said = place.run(&["verify", "none.toml"]);
    assert_eq!(said.code, 2, "{}", said.stderr);
    assert!(!place.path().join("runs").join("tiny").exists());
}

#[test]
fn what_is_cut_down_for_the_reference_is_said() {
    let place = Place::new();
    let many = ["batch.micro_batch=16", "batch.total_tokens=4480", "data.train=not-there.bin"];
    let settings: Vec<_> = many.iter().flat_map(|setting| ["--set", setting]).collect();
    let said = place.run(&[&["verify", "tiny.toml", "--steps", "1"], &settings[..]].concat());
    assert_eq!(said.code, 0, "{}{}", said.stdout, said.stderr);
    let mut lines = said.stdout.lines();
    assert!(lines.next().is_some_and(|line| line.ends_with("1 step on random tokens")), "{}", said.stdout);
    let cut = lines.next();
    assert_eq!(cut, Some("shrunk for the reference: micro_batch 16 -> 4, micro-steps 4 -> 2"));
    let (_, json) = json(&place, &many);
    assert_eq!((&json["declared"]["micro_batch"], &json["verified"]["micro_batch"]), (&16.into(), &4.into()));
    assert_eq!(json["rows"], "random tokens");
}

/// Trained weights are not small random numbers: attention is sharp, norms are off one.
#[test]
fn verification_starts_from_the_weights_that_the_recipe_names() {
    let place = Place::new();
    let run = place.train("runs", &["optimizer.lr=3e-3"]);
    let from = format!("model.init_from={}", run.join("checkpoints/step-00000030").display());
    let (code, trained) = json(&place, &[&from]);
    assert_eq!(code, 0, "{trained:#}");
    let (_, random) = json(&place, &[]);
    let first = |json: &Value| json["steps"][0]["reference_loss"].as_f64().expect("a loss");
    assert!(first(&random) > 4.5 && first(&trained) < 4.0, "{} {}", first(&random), first(&trained));
}

/// Muon's iteration enlarges what rounding does to a gradient.
#[test]
fn the_shipped_recipe_of_muon_passes_in_every_precision() {
    let place = Place::new();
    for precision in ["compute.precision=tf32", "compute.precision=bf16"] {
        let said = place.run(&["verify", "builtin:muon/lipsum", "--set", precision, "--steps", "2"]);
        assert_eq!(said.code, 0, "{precision}: {}{}", said.stdout, said.stderr);
    }
}
