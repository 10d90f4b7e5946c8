//! Using what a run has learned: `model.init_from` and `runner sample`.

use crate::support;

use std::path::PathBuf;
use support::{Lab, column, val_csv};

/// Data of exactly one step, in file order: the loss of step k says how good the weights after k steps are.
const REPEATING: [&str; 5] = [
    "data.train=data/once.bin",
    "data.shuffle=false",
    "checkpoint.keep=0",
    "eval.every=4",
    "schedule.warmup_steps=2",
];

fn trained(lab: &Lab) -> PathBuf {
    lab.shard("data/once.bin", &support::tokens(8 * 32 + 1, 5));
    lab.train_in("donor", &REPEATING)
}

#[test]
fn training_starts_from_the_weights_of_a_checkpoint() {
    let lab = Lab::new();
    let donor = trained(&lab);
    let (losses, val) = (column(&donor, "loss"), val_csv(&donor).numbers("val_loss"));
    for (step, at) in [(4, 1), (8, 2)] {
        let checkpoint = format!("donor/{}/checkpoints/step-{step:08}", lab.runs("donor")[0]);
        for path in [checkpoint.clone(), format!("{checkpoint}/model.safetensors")] {
            let from = format!("model.init_from={path}");
            let run = lab.train(&[&REPEATING[..], &[&from, "schedule.max_steps=3"]].concat());
            assert_eq!(column(&run, "loss")[0], losses[step], "from {path}");
            assert_eq!(val_csv(&run).numbers("val_loss")[0], val[at], "from {path}");
        }
    }
    // other weights are another experiment, the same ones under another path are not
    let runs = lab.runs("runs");
    assert_eq!(runs.len(), 2, "{runs:?}");
    // padded or not, it is the same model
    let from = format!("model.init_from=donor/{}/checkpoints/step-00000008", lab.runs("donor")[0]);
    let padded =
        lab.train(&[&REPEATING[..], &[&from, "schedule.max_steps=3", "model.vocab_multiple=384"]].concat());
    assert!((column(&padded, "loss")[0] - losses[8]).abs() < 1e-6 * losses[8]);
}

#[test]
fn the_same_seed_says_the_same_of_a_run_and_of_its_newest_checkpoint() {
    let lab = Lab::new();
    let donor = trained(&lab);
    let id = &lab.runs("donor")[0];
    let (path, newest) = (format!("donor/{id}"), format!("donor/{id}/checkpoints/step-00000012"));
    let say = |model: &str, more: &[&str]| {
        let args = ["sample", model, "--prompt", "!", "--tokens", "24", "--threads", "1"];
        let ended = lab.run(args.iter().chain(more));
        assert_eq!(ended.expect(0).stderr, "");
        assert!(ended.stdout.starts_with("!") && ended.stdout.ends_with('\n'), "{:?}", ended.stdout);
        assert!(ended.stdout.len() > 10, "{:?}", ended.stdout);
        ended.stdout
    };
    let first = say(&path, &[]);
    for model in [&path, &newest, &donor.display().to_string()] {
        assert_eq!(say(model, &[]), first, "{model}");
    }
    assert_eq!(say(&id[..8], &["--runs-dir", "donor"]), first);
    assert_eq!(say(&path, &["--threads", "2"][..0]), first);
    assert_ne!(say(&path, &["--seed", "7"]), first);
    assert_ne!(
        say(&format!("donor/{id}/checkpoints/step-00000004"), &["--temperature", "0"]),
        say(&newest, &["--temperature", "0"])
    );
    let greedy = say(&path, &["--temperature", "0"]);
    for same in
        [&["--temperature", "0", "--seed", "5"][..], &["--top-k", "1"], &["--top-k", "1", "--seed", "9"]]
    {
        assert_eq!(say(&path, same), greedy, "{same:?}");
    }
    assert_eq!(say(&path, &["--top-k", "0", "--temperature", "1e-6"]), greedy);
}

#[test]
fn a_run_a_checkpoint_and_hugging_face_weights_are_opened_alike() {
    let lab = Lab::new();
    trained(&lab);
    let id = &lab.runs("donor")[0];
    let checkpoint = format!("donor/{id}/checkpoints/step-00000012");
    // what came from elsewhere has no state.json
    for name in ["config.json", "model.safetensors"] {
        lab.write(
            &format!("elsewhere/{name}"),
            std::fs::read(lab.path(format!("{checkpoint}/{name}"))).expect("a file"),
        );
    }
    let say = |model: &str, more: &[&str]| {
        let args = ["sample", model, "--prompt", "!", "--tokens", "400", "--threads", "1"];
        lab.run(args.iter().chain(more)).expect(0).stdout.clone()
    };
    let first = say(&format!("donor/{id}"), &[]);
    for model in [&checkpoint, "elsewhere", "elsewhere/model.safetensors"] {
        assert_eq!(say(model, &[]), first, "{model}");
        assert_eq!(say(model, &["--device", "cpu", "--precision", "fp32"]), first, "{model}");
    }
    // emulated by rounding: among 400 draws, a rounded logit changes one
    let rounded = say(&checkpoint, &["--precision", "bf16"]);
    assert!(rounded.starts_with('!') && rounded.len() > 100, "{rounded:?}");
    assert_ne!(rounded, first);
    lab.write(
        "alone/weights.safetensors",
        std::fs::read(lab.path("elsewhere/model.safetensors")).expect("a file"),
    );
    let alone = lab.run(["sample", "alone/weights.safetensors"]);
    alone.expect(2).says(&["`alone/weights.safetensors`", "config.json"]);
    // weights that do not fit their configuration
    let config = std::fs::read_to_string(lab.path("elsewhere/config.json")).expect("a file");
    lab.write("elsewhere/config.json", config.replace("\"n_layer\": 2", "\"n_layer\": 3"));
    let unfit = lab.run(["sample", "elsewhere", "--prompt", "!"]);
    unfit.expect(2).says(&["the weights `elsewhere` cannot be used", "h.2."]);
    assert!(!unfit.stderr.contains("init_from"), "{}", unfit.stderr);
    for text in ["{", "{}", "{\"n_layer\": \"two\"}"] {
        lab.write("elsewhere/config.json", text);
        lab.run(["sample", "elsewhere"]).expect(2).says(&["elsewhere/config.json"]);
    }
    // one number of a norm that every logit goes through
    lab.write("elsewhere/config.json", config);
    let mut weights = std::fs::read(lab.path("elsewhere/model.safetensors")).expect("a file");
    let header = 8 + u64::from_le_bytes(weights[..8].try_into().expect("eight bytes")) as usize;
    let described: serde_json::Value = serde_json::from_slice(&weights[8..header]).expect("a header");
    let norm = described.as_object().expect("tensors").iter().find(|(name, _)| name.ends_with("ln_f.weight"));
    let at = header + norm.expect("a norm").1["data_offsets"][0].as_u64().expect("a place") as usize;
    weights[at..at + 4].copy_from_slice(&f32::NAN.to_le_bytes());
    lab.write("elsewhere/model.safetensors", weights);
    for temperature in ["0", "0.8"] {
        let args = ["sample", "elsewhere", "--prompt", "!", "--temperature", temperature];
        lab.run(args).expect(1).says(&["the model's logits are not finite"]);
    }
}

#[test]
fn what_cannot_be_sampled_is_refused() {
    let lab = Lab::new();
    let donor = trained(&lab).display().to_string();
    for (args, parts) in [
        (&["nothing"][..], &["`nothing`", "--runs-dir"][..]),
        (&["data"], &["`data`"]),
        (&[&donor, "--temperature=-1"], &["--temperature -1"]),
        (&[&donor, "--temperature", "nan"], &["--temperature NaN"]),
        (&[&donor, "--temperature", "hot"], &["--temperature", "hot"]),
        (&[&donor, "--tokens", "-3"], &["-3"]),
        (&[&donor, "--top-k", "some"], &["--top-k", "some"]),
        (&[&donor, "--prompt", "Lorem ipsum"], &["Lorem ipsum", "256"]),
        (&[&donor, "--threads", "100000000"], &["--threads", "100000000"]),
        (&[&donor, "--device", "cuda", "--prompt", "!"], &["device \"cuda\": ", "CUDA", "runner doctor"]),
        (&[&donor, "--device", "cuda:3", "--prompt", "!"], &["device \"cuda:3\": ", "CUDA"]),
        (&[&donor, "--device", "gpu"], &["--device", "`gpu`", "cuda:N"]),
        (&[&donor, "--precision", "fp8"], &["--precision", "fp8", "bf16"]),
    ] {
        let ended = lab.run([&["sample"], args].concat());
        ended.expect(2).says(parts);
        assert_eq!(ended.stdout, "", "{args:?}");
    }
    let empty = lab.crash("young", &[], "csv.before_row:2");
    let ended = lab.run(["sample", &empty.display().to_string()]);
    ended.expect(2).says(&["no checkpoint"]);
    let nothing = lab.run(["sample", &donor, "--tokens", "0", "--prompt", "!"]);
    assert_eq!(nothing.expect(0).stdout, "!\n");
}

#[test]
fn without_a_prompt_a_run_begins_as_its_own_samples_do() {
    let lab = Lab::new();
    lab.shard("data/once.bin", &support::tokens(8 * 32 + 1, 5));
    // the vocabulary of the small model has no letters beyond ASCII's
    let run = lab.train_in(
        "donor",
        &[&REPEATING[..], &["sample.prompt=!#", "sample.every=12", "sample.tokens=2"]].concat(),
    );
    let say = |model: &std::path::Path, more: &[&str]| {
        let model = model.to_str().expect("UTF-8");
        let args = ["sample", model, "--tokens", "8", "--threads", "1"];
        let ended = lab.run(args.iter().chain(more));
        let is_alone = model.ends_with("alone");
        assert_eq!(ended.expect(0).stderr.is_empty(), !is_alone, "{}", ended.stderr);
        ended.stdout
    };
    let asked = say(&run, &["--prompt", "!#"]);
    assert!(asked.starts_with("!#"), "{asked:?}");
    assert_eq!(say(&run, &[]), asked);
    assert_eq!(say(&run.join("checkpoints/step-00000012"), &[]), asked);
    // weights alone have no prompt, and this vocabulary has no token with which documents begin
    let alone = lab.path("alone");
    std::fs::create_dir(&alone).expect("a directory");
    for name in ["config.json", "model.safetensors"] {
        std::fs::copy(run.join("checkpoints/step-00000012").join(name), alone.join(name)).expect("a copy");
    }
    assert!(!say(&alone, &[]).is_empty());
    // where the recipe cannot be read, its prompt is missed
    std::fs::write(run.join("recipe.toml"), "no recipe").expect("written");
    let run = run.display().to_string();
    lab.run(["sample", &run, "--tokens", "2"]).expect(0).says(&["warning: ", "recipe.toml", "--prompt"]);
}
