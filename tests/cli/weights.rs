//! Beginning from weights of other trainers: what PyTorch computes with the files in `golden/weights`, the program
//! computes, and a recipe need not repeat what a file says of itself.

use crate::support;

use serde_json::{Value, json};
use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use support::{Lab, column};

/// The largest relative difference of a loss.
const LOSS: f64 = 1e-5;

fn golden(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden/weights").join(name)
}

fn expected() -> Value {
    serde_json::from_slice(&fs::read(golden("expected.json")).expect("a file")).expect("JSON")
}

/// A recipe without dimensions, whose one batch is the rows that PyTorch was given.
const BARE: &str = "\
[model]
init_from = \"WEIGHTS\"
[data]
train = \"data/rows.bin\"
shuffle = false
[batch]
total_tokens = 48
micro_batch = 4
[schedule]
max_steps = 1
";

/// The files in a directory each, as their trainers leave them, and the rows.
fn lab() -> Lab {
    let lab = Lab::new();
    let tokens = expected()["tokens"].as_array().expect("tokens").clone();
    let tokens: Vec<u16> = tokens.iter().map(|token| token.as_u64().expect("a token") as u16).collect();
    lab.shard("data/rows.bin", &tokens);
    for (file, name) in [
        ("nanogpt.pt", "nanogpt/ckpt.pt"),
        ("no_bias.pt", "no_bias/ckpt.pt"),
        ("pytorch_model.bin", "hugging/pytorch_model.bin"),
        ("llmc.bin", "llmc/gpt2_2.bin"),
        ("llmc_bf16.bin", "llmc/gpt2_2_bf16.bin"),
    ] {
        lab.write(name, fs::read(golden(file)).expect("a file"));
    }
    let config = r#"{"model_type": "gpt2", "n_layer": 2, "n_head": 2, "n_embd": 8, "n_positions": 12, "vocab_size": 40}"#;
    lab.write("hugging/config.json", config);
    lab
}

/// Writes a recipe that begins from some weights.
fn recipe(lab: &Lab, weights: &str) {
    lab.write("bare.toml", BARE.replace("WEIGHTS", weights));
}

/// Trains it with changes, spelled `key=value`.
fn run(lab: &Lab, sets: &[&str]) -> support::Ended {
    let sets = sets.iter().flat_map(|set| ["--set", *set]);
    lab.run(["bare.toml"].into_iter().chain(sets))
}

#[test]
fn every_file_gives_the_loss_that_pytorch_computes() {
    let lab = lab();
    for (file, weights) in [
        ("nanogpt.pt", "nanogpt"),
        ("nanogpt.pt", "nanogpt/ckpt.pt"),
        ("no_bias.pt", "no_bias"),
        ("pytorch_model.bin", "hugging"),
        ("pytorch_model.bin", "hugging/pytorch_model.bin"),
        ("llmc.bin", "llmc/gpt2_2.bin"),
        ("llmc_bf16.bin", "llmc/gpt2_2_bf16.bin"),
    ] {
        recipe(&lab, weights);
        let ended = run(&lab, &[]);
        ended.expect(0);
        let (loss, right) =
            (column(&lab.run_of(&ended), "loss")[0], expected()["loss"][file].as_f64().expect("a loss"));
        assert!((loss - right).abs() < LOSS * right, "{weights}: {loss} is not {right}");
        let says = ended.stderr.contains("no biases");
        assert_eq!(says, file == "no_bias.pt", "{}", ended.stderr);
        let sampled = lab.run(["sample", weights, "--prompt", "!", "--tokens", "5", "--temperature", "0"]);
        assert!(sampled.expect(0).stdout.starts_with('!'), "{}", sampled.stdout);
    }
    // one experiment for each of the five files, wherever it lies
    assert_eq!(lab.runs("runs").len(), 5);
}

/// A file may have any name, and the configuration beside it says what no tensor's shape shows.
#[test]
fn the_configuration_beside_weights_counts_whatever_they_are_called() {
    let lab = lab();
    fs::remove_file(lab.path("hugging/config.json")).expect("removed");
    let fits = json!({"model_type": "gpt2", "n_layer": 2, "n_head": 2, "n_embd": 8, "n_positions": 12,
        "vocab_size": 40});
    let other = [
        ("activation_function", json!("relu")),
        ("layer_norm_epsilon", json!(1e-3)),
        ("n_head", json!(4)),
        ("n_inner", json!(16)),
        ("model_type", json!("gptj")),
    ];
    for (dir, file) in [
        ("hugging", "pytorch_model.bin"),
        ("renamed", "foo.bin"),
        ("nanogpt", "ckpt.pt"),
        ("llmc", "gpt2_2.bin"),
        ("llmc", "gpt2_2_bf16.bin"),
    ] {
        if dir == "renamed" {
            lab.write("renamed/foo.bin", fs::read(golden("pytorch_model.bin")).expect("a file"));
        }
        let named = format!("{dir}/{file}");
        for (key, value) in &other {
            let mut config = fits.clone();
            config[*key] = value.clone();
            lab.write(&format!("{dir}/config.json"), config.to_string());
            recipe(&lab, &named);
            let dims = ["model.n_layer=2", "model.n_head=2", "model.n_embd=8", "model.block_size=12"];
            let vocab = if dir == "nanogpt" { "model.vocab_size=48" } else { "model.vocab_size=40" };
            run(&lab, &[&dims[..], &[vocab]].concat()).expect(2).says(&[*key]);
            // what uses a model as it is takes a file's own number of heads
            let is_stated = *key == "n_head" && (dir == "hugging" || dir == "renamed");
            if !is_stated {
                lab.run(["sample", &named, "--prompt", "!"]).expect(2).says(&[*key]);
                lab.run(["eval", &named, "--data", "data/rows.bin"]).expect(2).says(&[*key]);
            }
        }
        lab.write(&format!("{dir}/config.json"), "{");
        lab.run(["sample", &named, "--prompt", "!"]).expect(2).says(&["config.json"]);
        fs::remove_file(lab.path(format!("{dir}/config.json"))).expect("removed");
    }
}

#[test]
fn explain_says_which_file_states_the_dimensions() {
    let lab = lab();
    for (weights, file, vocab) in [
        ("nanogpt", "nanogpt/ckpt.pt", "48"),
        ("hugging", "hugging/config.json", "40"),
        ("llmc/gpt2_2.bin", "llmc/gpt2_2.bin", "40"),
    ] {
        recipe(&lab, weights);
        let text = lab.run(["explain", "bare.toml", "model"]).expect(0).stdout.clone();
        for (key, value) in
            [("n_layer", "2"), ("n_head", "2"), ("n_embd", "8"), ("block_size", "12"), ("vocab_size", vocab)]
        {
            let line = text.lines().find(|line| line.starts_with(&format!("model.{key} "))).expect("a line");
            let words: Vec<&str> = line.split_whitespace().collect();
            assert_eq!(words, [&format!("model.{key}"), value, file, "(model.init_from)"]);
        }
        let json =
            lab.run(["explain", "bare.toml", "model.n_layer", "--format", "json"]).expect(0).stdout.clone();
        let json: Value = serde_json::from_str(&json).expect("JSON");
        assert_eq!(json["layers"][1]["origin"], serde_json::json!({ "kind": "init_from", "path": file }));
    }
}

#[test]
fn a_key_that_contradicts_the_file_is_refused_and_a_shorter_context_is_not() {
    let lab = lab();
    recipe(&lab, "nanogpt");
    for (set, parts) in [
        ("model.n_layer=3", &["`model.n_layer` is 3", "nanogpt/ckpt.pt` says 2", "leave n_layer out"][..]),
        ("model.n_head=4", &["`model.n_head` is 4", "says 2"]),
        ("model.n_embd=16", &["`model.n_embd` is 16", "says 8"]),
        ("model.block_size=24", &["`model.block_size` is 24", "says 12", "12 or less"]),
        ("model.vocab_size=50", &["`model.vocab_size` is 50", "says 48"]),
        ("model.vocab_size=40", &["`model.vocab_size` is 40", "vocab_multiple = 16 leaves them out"]),
    ] {
        run(&lab, &[set]).expect(2).says(parts).says(&["bare.toml:2"]);
    }
    let cropped = run(&lab, &["model.block_size=6"]);
    cropped.expect(0).says(&["`wpe.weight` has 12 positions, the first 6 are used"]);
    let dropped = run(&lab, &["model.vocab_size=40", "model.vocab_multiple=16"]);
    dropped.expect(0).says(&["8 of the 48 rows of `wte.weight` lie beyond model.vocab_size = 40"]);
    // fewer classes to tell apart: another loss than that of all 48
    let all = expected()["loss"]["nanogpt.pt"].as_f64().expect("a loss");
    assert!(column(&lab.run_of(&dropped), "loss")[0] < all);
}

#[test]
fn weights_that_do_not_fit_are_told_in_a_few_lines_with_the_cause() {
    let lab = lab();
    recipe(&lab, "hugging");
    lab.shard("data/low.bin", &[7; 49]);
    let dims = ["model.n_head=2", "model.n_embd=8", "model.block_size=12", "data.train=data/low.bin"];
    let unfit = |more: &[&str], parts: &[&str]| {
        let ended = run(&lab, &[&dims[..], more].concat());
        ended.expect(2).says(parts);
        assert!(ended.stderr.lines().count() < 16, "{}", ended.stderr);
    };
    // a configuration that says something else than the tensors
    for (n_layer, vocab_size, parts) in [
        (9, 40, &["set model.n_layer = 2", "and 80 more like that"][..]),
        (2, 39, &["[39, 8]", "[40, 8]", "set model.vocab_multiple = 8"]),
        (2, 64, &["set model.vocab_size = 40"]),
    ] {
        let config = json!({"model_type": "gpt2", "n_layer": n_layer, "vocab_size": vocab_size});
        lab.write("hugging/config.json", config.to_string());
        unfit(&[], parts);
    }
    // where there is none, the tensors are known before
    fs::remove_file(lab.path("hugging/config.json")).expect("removed");
    unfit(&["model.n_layer=9"], &["`model.n_layer` is 9, but `hugging/pytorch_model.bin` says 2"]);
    unfit(&["model.vocab_size=39"], &["`model.vocab_size` is 39", "says 40", "vocab_multiple = 8"]);
    unfit(&["model.vocab_size=64"], &["`model.vocab_size` is 64", "leave vocab_size out, or write 40"]);
    lab.write("hugging/config.json", r#"{"model_type": "llama", "hidden_size": 8}"#);
    unfit(&["model.n_layer=2", "model.vocab_size=40"], &["`model_type` should be \"gpt2\" but is \"llama\""]);
}

#[test]
fn a_broken_file_is_refused_without_a_panic() {
    let lab = lab();
    let whole = fs::read(golden("no_bias.pt")).expect("a file");
    recipe(&lab, "broken.pt");
    let dims =
        ["model.n_layer=2", "model.n_head=2", "model.n_embd=8", "model.block_size=12", "model.vocab_size=40"];
    for bytes in [&whole[..whole.len() / 2], &whole[..30], &whole[..whole.len() - 30]] {
        lab.write("broken.pt", bytes);
        run(&lab, &dims).expect(2).says(&["broken.pt", "archive"]);
    }
    lab.write("broken.pt", b"\x80\x02\x8a\x0al\xfc\x9cF\xf9 j\xa8P\x19.");
    run(&lab, &dims).expect(2).says(&["broken.pt", "before version 1.6"]);
    let model = fs::read(golden("llmc.bin")).expect("a file");
    lab.write("broken.pt", &model[..model.len() - 1]);
    run(&lab, &dims).expect(2).says(&["its header describes 9984 bytes, the file has 9983"]);
    lab.write("broken.pt", fs::read(lab.path("data/rows.bin")).expect("a file"));
    run(&lab, &dims).expect(2).says(&["tokens in llm.c's format"]);
}

/// A recipe that leaves its dimensions to weights shows why they cannot be read, and not what the defaults lead to.
#[test]
fn a_recipe_says_why_its_weights_cannot_be_read() {
    let lab = lab();
    let safetensors = |header: &str| [&(header.len() as u64).to_le_bytes()[..], header.as_bytes()].concat();
    let mut archive = zip::ZipWriter::new(std::io::Cursor::new(Vec::new()));
    let stored = zip::write::SimpleFileOptions::default().compression_method(zip::CompressionMethod::Stored);
    archive.start_file("a/data.pkl", stored).expect("memory");
    archive.write_all(b"\x80\x02cos\nsystem\nX\x04\0\0\0true\x85R.").expect("memory");
    let fits = r#"{"model_type": "gpt2", "n_layer": 2, "n_head": 2, "n_embd": 8, "n_positions": 12, "vocab_size": 40}"#;
    for (file, bytes, reason) in [
        ("cut.safetensors", safetensors("{\"a\": 1}")[..12].to_vec(), "its header is cut off"),
        (
            "type.safetensors",
            safetensors(r#"{"a": {"dtype": "X9", "shape": [], "data_offsets": [0, 0]}}"#),
            "unknown variant `X9`",
        ),
        (
            "long.safetensors",
            [safetensors("{}"), vec![0]].concat(),
            "its header describes 10 bytes, the file has 11",
        ),
        ("noise.safetensors", vec![0xff; 64], "it is no safetensors file, and none of PyTorch's"),
        ("calls.pt", archive.finish().expect("memory").into_inner(), "names `os.system`"),
        ("old.pt", b"\x80\x02\x8a\x0al\xfc\x9cF\xf9 j\xa8P\x19.".to_vec(), "before version 1.6"),
    ] {
        let named = format!("bad/{file}");
        lab.write(&named, bytes);
        recipe(&lab, &named);
        for config in [None, Some(fits)] {
            match config {
                Some(config) => drop(lab.write("bad/config.json", config)),
                None => drop(fs::remove_file(lab.path("bad/config.json"))),
            }
            for command in [&["bare.toml"][..], &["plan", "bare.toml"]] {
                let ended = lab.run(command);
                ended.expect(2).says(&["bare.toml:2", &format!("`{named}` cannot be read: "), reason]);
                assert!(!ended.stderr.contains("states no dimensions"), "{}", ended.stderr);
            }
            let eval = lab.run(["eval", &named, "--data", "data/rows.bin"]);
            assert!(eval.code.is_some_and(|code| code == 1 || code == 2), "{}", eval.stderr);
            eval.says(&[&named, reason]);
        }
        fs::remove_file(lab.path("bad/config.json")).expect("removed");
    }
    for (config, reason) in [("{", "config.json is malformed"), (r#"{"model_type": "bert"}"#, "is \"bert\"")]
    {
        lab.write("hugging/config.json", config);
        recipe(&lab, "hugging");
        lab.run(["plan", "bare.toml"]).expect(2).says(&["hugging/config.json` cannot be read", reason]);
    }
}

#[test]
fn a_file_of_weights_that_cannot_be_read_is_named_with_what_is_wrong() {
    let lab = Lab::new();
    // an archive of PyTorch and llm.c's header, both cut off, and tokens
    fs::write(lab.path("cut.pt"), b"PK\x03\x04 and no more").expect("written");
    let header =
        |magic: i32| -> Vec<u8> { [magic, 3, 64, 65].into_iter().flat_map(i32::to_le_bytes).collect() };
    fs::write(lab.path("cut.bin"), header(20240326)).expect("written");
    fs::write(lab.path("tokens.bin"), header(20240520)).expect("written");
    lab.write("notes.txt", "no weights");
    lab.run(["sample", "notes.txt", "--prompt", "!"]).expect(2).says(&["`notes.txt` is not a run"]);
    for name in ["cut.pt", "cut.bin", "tokens.bin"] {
        for args in [vec!["sample", name, "--prompt", "!"], vec!["eval", name, "--data", "data/val.bin"]] {
            lab.run(&args).expect(1).says(&[&format!("`{name}` is malformed: ")]);
        }
    }
}

/// 48 ids are not GPT-2's, so what they stand for must be said.
#[test]
fn weights_of_which_nothing_says_what_their_tokens_are_have_no_bits_per_byte() {
    let lab = lab();
    let eval = |more: &[&str]| {
        let args = ["eval", "nanogpt/ckpt.pt", "--data", "data/rows.bin"].into_iter();
        lab.run(args.chain(more.iter().copied()))
    };
    let nothing = "nothing says what the tokens of `nanogpt/ckpt.pt` stand for, and it has 48 where GPT-2's";
    assert!(eval(&[]).expect(0).stdout.contains(nothing));
    let document = eval(&["--format", "json"]);
    document.expect(0).says(&[nothing]);
    let found: Value = serde_json::from_str(&document.stdout).expect("JSON");
    assert!(found[0]["metrics"]["val_loss"].is_number() && found[0]["metrics"]["bits_per_byte"].is_null());
    lab.run(["sample", "nanogpt/ckpt.pt", "--prompt", "!"]).expect(0).says(&[
        "warning: ",
        nothing,
        "meta.pkl",
    ]);
}

/// With another number of heads all tensors fit, and the model computes something else.
#[test]
fn weights_that_do_not_say_how_many_heads_they_have_need_the_recipe_to() {
    let lab = lab();
    fs::remove_file(lab.path("hugging/config.json")).expect("removed");
    recipe(&lab, "hugging/pytorch_model.bin");
    let dims = ["model.n_layer=2", "model.n_embd=8", "model.block_size=12", "model.vocab_size=40"];
    for dims in [&dims[..], &[]] {
        let refused = run(&lab, dims);
        refused.expect(2).says(&[
            "hugging/pytorch_model.bin",
            "how many heads",
            "bare.toml",
            "set model.n_head",
        ]);
    }
    assert_eq!(lab.runs("runs").len(), 0);
    let right = expected()["loss"]["pytorch_model.bin"].as_f64().expect("a loss");
    // the tensors show the other dimensions
    for dims in [&dims[..], &[]] {
        let ended = run(&lab, &[dims, &["model.n_head=2"]].concat());
        let loss = column(&lab.run_of(ended.expect(0)), "loss")[0];
        assert!((loss - right).abs() < LOSS * right, "{loss} is not {right}");
    }
    assert_eq!(lab.runs("runs").len(), 1);
    let text =
        lab.run(["explain", "bare.toml", "model.n_embd", "--set", "model.n_head=2"]).expect(0).stdout.clone();
    assert!(text.contains("hugging/pytorch_model.bin"), "{text}");
    run(&lab, &["model.n_head=2", "model.n_layer=3"])
        .expect(2)
        .says(&["model.n_layer` is 3", "hugging/pytorch_model.bin` says 2"]);
}

#[test]
fn weights_that_are_not_finite_begin_no_training() {
    let lab = Lab::new();
    let run = lab.train(&[]);
    let checkpoint =
        fs::read_dir(run.join("checkpoints")).expect("checkpoints").next().expect("one").expect("entry");
    fs::create_dir(lab.path("plain")).expect("a directory");
    fs::copy(checkpoint.path().join("config.json"), lab.path("plain/config.json")).expect("copied");
    let mut weights = fs::read(checkpoint.path().join("model.safetensors")).expect("weights");
    let last = weights.len() - 4;
    weights[last..].copy_from_slice(&f32::NAN.to_le_bytes());
    lab.write("plain/model.safetensors", weights);
    let ended = lab.run(support::tiny("others", &["model.init_from=plain"]));
    ended.expect(2).says(&["model.init_from", "plain", "is not finite: the weights are damaged"]);
    assert!(
        !ended.stderr.contains("learning rate") && !ended.stderr.contains("optimizer.lr"),
        "{}",
        ended.stderr
    );
}
