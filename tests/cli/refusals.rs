//! Bad input: exit code 2, a message with file, key, value and remedy, and no run directory.

use crate::support;

use std::fs;
use std::os::unix::fs::PermissionsExt;
use support::{Ended, Lab, ended, shard, tokens};

/// Runs `tiny.toml` with changes; it must be refused without a trace.
fn refused(lab: &Lab, sets: &[&str], parts: &[&str]) -> Ended {
    let ended = lab.run(support::tiny("runs", sets));
    check(lab, &ended, parts);
    ended
}

/// Runs a recipe of its own text below `tiny.toml`; it must be refused without a trace.
fn refused_text(lab: &Lab, text: &str, parts: &[&str]) {
    lab.write("bad.toml", text);
    check(lab, &lab.run(["bad.toml"]), parts);
}

fn check(lab: &Lab, ended: &Ended, parts: &[&str]) {
    ended.expect(2).says(parts);
    assert!(ended.stderr.lines().any(|line| line.starts_with("error: ")), "{}", ended.stderr);
    assert_eq!((ended.stdout.as_str(), lab.runs("runs")), ("", vec![]));
}

#[test]
fn recipes_that_cannot_be_read() {
    let lab = Lab::new();
    check(&lab, &lab.run(["none.toml"]), &["cannot read recipe `none.toml`", "help"]);
    check(&lab, &lab.run(["data/"]), &["cannot read recipe `data/`", "directory"]);
    refused_text(&lab, "[model\nn_layer = 2\n", &["bad.toml:1", "[model"]);
    refused_text(&lab, "extends = \"tiny.toml\"\nseed = 1 2\n", &["bad.toml:2", "seed = 1 2"]);
    refused_text(&lab, "extends = \"gone.toml\"\n", &["bad.toml:1:11", "gone.toml"]);
    lab.write("one.toml", "extends = \"two.toml\"\n");
    lab.write("two.toml", "extends = \"one.toml\"\n");
    check(&lab, &lab.run(["one.toml"]), &["two.toml:1:11", "circle", "one.toml", "remove one"]);
    refused_text(&lab, "extends = \"bad.toml\"\n", &["bad.toml:1:11", "circle"]);
}

#[test]
fn a_recipe_that_a_run_could_not_read_again_is_refused() {
    let lab = Lab::new();
    let names: Vec<String> = (0..1100).map(|i| format!("data/many/{i}.bin")).collect();
    for name in &names {
        lab.shard(name, &tokens(300, 1));
    }
    lab.write("bad.toml", format!("extends = \"tiny.toml\"\ndata.train = {names:?}\n"));
    // the paths in a run lead from its directory
    let deep = "deep/".repeat(100);
    let ended = lab.run(["bad.toml", "--runs-dir", &deep]);
    check(&lab, &ended, &[&deep, "its recipe would have", "may have 256", "by a pattern"]);
    assert!(!lab.path("deep").exists());
    lab.write("good.toml", "extends = \"tiny.toml\"\ndata.train = \"data/many/*.bin\"\n");
    lab.run(["good.toml", "--runs-dir", &deep]).expect(0);
}

#[test]
fn keys_and_values_that_are_wrong() {
    let lab = Lab::new();
    let base = "extends = \"tiny.toml\"\n";
    for (text, parts) in [
        ("[optimizer]\nlearning_rate = 1\n", &["bad.toml:3:1", "optimizer.learning_rate", "lr"][..]),
        ("[optimiser]\nlr = 1\n", &["bad.toml:2", "optimiser", "optimizer"]),
        ("optimizer.lr = \"fast\"\n", &["bad.toml:2:16", "optimizer.lr", "\"fast\"", "number"]),
        ("model.n_layer = 2.5\n", &["bad.toml:2:17", "model.n_layer", "2.5", "integer"]),
        ("optimizer.lr = -1.0\n", &["bad.toml:2:16", "optimizer.lr", "-1"]),
        ("compute.precision = \"fp8\"\n", &["bad.toml:2:21", "compute.precision", "fp8", "bf16"]),
        ("model.n_head = 3\n", &["bad.toml:2", "model.n_head", "3", "32"]),
        ("batch.total_tokens = 250\n", &["bad.toml:2:22", "batch.total_tokens", "250", "256"]),
        ("batch.micro_batch = 3\n", &["bad.toml:2:21", "micro_batch", "3", "total_tokens"]),
        ("compute.device = \"cuda\"\n", &["bad.toml:2:18", "compute.device = \"cuda\"", "libcuda.so.1"]),
        ("compute.device = \"cuda:1\"\n", &["bad.toml:2:18", "compute.device = \"cuda:1\"", "libcuda.so.1"]),
        ("batch.world_size = 3\n", &["bad.toml:2:20", "world_size", "3", "total_tokens = 384"]),
        (
            "batch.world_size = 2\ncompute.engine = \"dfdx\"\n",
            &["bad.toml:2:20", "batch.world_size", "dfdx", "one rank"],
        ),
    ] {
        refused_text(&lab, &format!("{base}{text}"), parts);
    }
    refused(&lab, &["compute.device=cuda"], &["--set compute.device=cuda", "libcuda.so.1"]);
    let mut command = lab.command(["tiny.toml"]);
    command.env("RUNNER_OPTIMIZER__LR", "slow");
    check(&lab, &ended(command), &["RUNNER_OPTIMIZER__LR", "optimizer.lr", "slow"]);
    // several mistakes are told at once
    let both = "seed = -1\n[optimizer]\nlr = 0\n";
    refused_text(
        &lab,
        both,
        &["bad.toml:1", "seed", "bad.toml:3", "optimizer.lr", "data.train", "schedule.max_steps"],
    );
}

#[test]
fn data_that_cannot_be_used() {
    let lab = Lab::new();
    for (name, bytes, parts) in [
        ("empty.bin", vec![], &["is empty", "at least one row"][..]),
        ("empty.txt", vec![], &["is empty", "at least one row"]),
        (
            "big.bin",
            shard(&[1, 2, 255, 256, 7].repeat(20)),
            &["token 256", "index 3", "256", "model.vocab_size"],
        ),
        (
            "cut.bin",
            shard(&tokens(100, 1))[..1124].to_vec(),
            &["declares 100 tokens", "100 bytes", "copy it again"],
        ),
        (
            "header.bin",
            shard(&tokens(100, 1))[..700].to_vec(),
            &["inside its header", "700 bytes", "copy it again"],
        ),
        ("odd.bin", vec![1; 333], &["333 bytes", "odd"]),
        ("short.bin", shard(&tokens(32, 1)), &["32 tokens", "block_size 32", "33", "31 or less"]),
        ("short.txt", b"!".to_vec(), &["1 token, but", "block_size 32", "longer data"]),
        ("latin.txt", vec![0xff; 100], &["not UTF-8", "byte 0"]),
        ("data.json", b"{}".to_vec(), &["neither a known magic number", ".txt"]),
    ] {
        let path = lab.write(&format!("data/{name}"), bytes);
        for key in ["data.train", "data.val"] {
            let ended = refused(&lab, &[&format!("{key}=data/{name}")], parts);
            ended.says(&[&format!("{key}: `{}`", path.display()), &format!("--set {key}=data/{name}")]);
        }
    }
    let text = fs::read_to_string(lab.path("tiny.toml")).expect("the recipe");
    for (value, part) in [
        (
            "\"data/none.bin\"",
            "data/none.bin` does not exist: check the path, which is relative to the file that names it\n",
        ),
        ("\"data/none-*.bin\"", "none-*.bin` matches no file"),
        ("\"data\"", "data` is a directory"),
        ("\"builtin:latin\"", "builtin:lipsum"),
    ] {
        let text = text.replace("\"data/train.bin\"", value);
        refused_text(&lab, &text, &[part, "data.train", "bad.toml:9:9"]);
    }
}

#[test]
#[cfg(unix)]
fn files_that_the_system_does_not_let_read() {
    use std::os::unix::fs::symlink;
    let lab = Lab::new();
    fs::create_dir(lab.path("data/dir.bin")).expect("a directory");
    refused(&lab, &["data.train=data/dir.bin"], &["data.train", "dir.bin` is a directory", "name its files"]);
    // a link to itself cannot be opened by anyone
    symlink("loop.bin", lab.path("data/loop.bin")).expect("a link");
    refused(&lab, &["data.train=data/loop.bin"], &["data.train", "could not read", "data/loop.bin", "check"]);
    let secret = lab.shard("data/secret.bin", &tokens(4000, 1));
    fs::set_permissions(&secret, fs::Permissions::from_mode(0o000)).expect("permissions");
    // there are users whom no permission stops
    if fs::read(&secret).is_err() {
        refused(
            &lab,
            &["data.train=data/secret.bin"],
            &["data.train", "could not read", "secret.bin", "check"],
        );
    }
    let status = std::process::Command::new("mkfifo").arg(lab.path("data/pipe.bin")).status();
    if status.is_ok_and(|status| status.success()) {
        refused(
            &lab,
            &["data.train=data/pipe.bin"],
            &["data.train", "pipe.bin` is not a regular file", "copy"],
        );
    }
}

#[test]
fn a_runs_directory_that_cannot_be_written() {
    let lab = Lab::new();
    for below in ["tiny.toml", "tiny.toml/runs", "data/train.bin/deeper/runs"] {
        let ended = lab.run(support::tiny(below, &[]));
        check(&lab, &ended, &["cannot write runs to", below, "name another directory with --runs-dir"]);
    }
}

#[test]
fn models_that_do_not_fit_in_memory() {
    let lab = Lab::new();
    let huge = ["model.n_layer=100", "model.n_embd=20000", "model.n_head=10"];
    refused(
        &lab,
        &huge,
        &[
            "a micro_batch of 4 needs",
            "GiB",
            "are free",
            "not even a micro_batch of 1 fits",
            "tiny.toml:13:15",
        ],
    );
    let rows = 1 << 20;
    let (batch, total) = (format!("batch.micro_batch={rows}"), format!("batch.total_tokens={}", rows * 1024));
    let wide =
        ["data.val=[]", "model.block_size=1024", "model.n_layer=4", "model.n_embd=256", &batch, &total];
    let ended =
        refused(&lab, &wide, &["a micro_batch of 1048576 needs", "the largest micro_batch that fits is "]);
    let fits = ended.stderr.split("that fits is ").nth(1).and_then(|rest| rest.split_whitespace().next());
    let fits: usize = fits.and_then(|n| n.parse().ok()).unwrap_or_else(|| panic!("{}", ended.stderr));
    assert!(rows % fits == 0 && fits < rows, "{fits}");
}

#[test]
fn prompts_outside_the_vocabulary() {
    let lab = Lab::new();
    let sets = ["sample.every=5", "sample.prompt=\"Lorem ipsum\""];
    refused(&lab, &sets, &["sample.prompt", "Lorem ipsum", "256", "sample.every = 0"]);
    refused(
        &lab,
        &["sample.every=5"],
        &["the prompt \"Hello, I'm a language model,\"", "tiny.toml", "sample.every = 0"],
    );
}

#[test]
fn weights_that_are_not_there_or_do_not_fit() {
    let lab = Lab::new();
    let run = lab.train_in("donor", &["schedule.max_steps=3"]);
    let checkpoint = run.join("checkpoints/step-00000003").display().to_string();
    fs::create_dir(lab.path("nothing")).expect("a directory");
    lab.write("junk.safetensors", "no tensors");
    lab.write("empty.safetensors", "");
    for (path, parts) in [
        ("none.safetensors", &["none.safetensors"][..]),
        ("nothing", &["nothing", "model.safetensors"]),
        ("junk.safetensors", &["junk.safetensors"]),
        ("empty.safetensors", &["empty.safetensors"]),
    ] {
        let ended = refused(&lab, &[&format!("model.init_from={path}")], parts);
        ended.says(&["model.init_from"]);
    }
    let from = format!("model.init_from={checkpoint}");
    let file = format!("{from}/model.safetensors");
    for (from, change, parts) in [
        (&from, "model.n_embd=64", &["`model.n_embd` is 64", "config.json` says 32"][..]),
        (&from, "model.n_layer=3", &["`model.n_layer` is 3", "config.json` says 2"]),
        (&file, "model.n_embd=64", &["`model.n_embd` is 64", "config.json` says 32"]),
        (&file, "model.n_layer=3", &["`model.n_layer` is 3", "config.json` says 2"]),
        (&from, "model.vocab_size=300", &["`model.vocab_size` is 300", "config.json` says 256"]),
    ] {
        refused(&lab, &[from, change], parts).says(&["model.init_from", &checkpoint]);
    }
    // what fits is taken
    lab.train(&[&from, "schedule.max_steps=3"]);
}

/// An archive of runs is read, and nothing is written there.
#[test]
fn a_finished_run_is_found_again_in_a_directory_that_cannot_be_written() {
    let lab = Lab::new();
    let run = lab.train(&[]);
    let mode = |mode| fs::set_permissions(lab.path("runs"), fs::Permissions::from_mode(mode)).expect("owned");
    mode(0o555);
    // root writes wherever it likes
    let train = |sets: &[&str]| {
        let args = || support::tiny("runs", sets);
        support::as_nobody(&lab, "true", args()).unwrap_or_else(|| lab.run(args()))
    };
    let again = train(&[]);
    assert_eq!(lab.run_of(again.expect(0)), run);
    again.says(&["finished"]);
    // another seed of it is refused before anything is read
    let other = train(&["seed=3", "data.train=data/train*.bin"]);
    other.expect(2).says(&["cannot write runs to `runs`"]);
    assert_eq!(other.stdout, "");
    mode(0o755);
}
