//! What another user has put where a name leads: beside a run, beside weights, in the place of the directory of runs.

use crate::support;

use serde_json::json;
use std::fs;
use std::os::unix::fs::{lchown, symlink};
use std::path::Path;
use support::{Lab, tiny};

/// The number of a user who is nobody here.
const BOB: u32 = 12345;

/// Whether something could be given to another user, which only root can.
fn given(path: &Path) -> bool {
    lchown(path, Some(BOB), None).is_ok()
}

fn copy(from: &Path, to: &Path) {
    fs::create_dir(to).expect("a directory");
    for entry in fs::read_dir(from).expect("a directory") {
        let entry = entry.expect("an entry");
        let (from, to) = (entry.path(), to.join(entry.file_name()));
        if from.is_dir() { copy(&from, &to) } else { fs::copy(from, to).map(drop).expect("copied") }
    }
}

#[test]
fn a_link_of_another_user_is_no_directory_of_runs_that_nobody_named() {
    let lab = Lab::new();
    let run = lab.train_in("closed", &["schedule.max_steps=4"]);
    symlink("closed", lab.path("runs")).expect("a link");
    lab.run(["list"]).expect(0);
    if !given(&lab.path("runs")) {
        return;
    }
    for args in [
        &["list", "--status", "finished", "--remove", "--yes"][..],
        &["compare", "runs"],
        &["tiny.toml", "--fresh"],
        &["sample", "tiny"],
    ] {
        lab.run(args).expect(2).says(&["`runs` is a link of user 12345", "--runs-dir", "./runs"]);
    }
    assert!(run.join("run.json").exists());
    lab.run(["list", "--runs-dir", "./runs"]).expect(0);
}

#[test]
fn a_directory_of_runs_of_another_user_that_nobody_named_is_told_of() {
    let lab = Lab::new();
    fs::create_dir(lab.path("runs")).expect("a directory");
    let call = |runs: &str, more: &[&str]| {
        let args = tiny(runs, &["schedule.max_steps=4"]);
        lab.run(args.iter().map(String::as_str).chain(more.iter().copied())).expect(0).stderr.clone()
    };
    let told = format!("warning: runs belongs to another user ({BOB})");
    assert!(!call("runs", &["--dry-run"]).contains("another user"));
    if given(&lab.path("runs")) {
        assert!(call("runs", &["--dry-run"]).contains(&told) && call("runs", &[]).contains(&told));
        // who names it means it
        assert!(!call("./runs", &[]).contains(&told));
    }
}

/// A run of theirs that is called like the directory of runs, or that lies in it, hides no run.
#[test]
fn a_directory_of_runs_stays_what_it_is() {
    let lab = Lab::new();
    let run = lab.train(&["schedule.max_steps=4"]);
    let other = lab.train_in("others", &["seed=9", "schedule.max_steps=4"]);
    let id = run.file_name().and_then(|id| id.to_str()).expect("an id").to_owned();
    let shown = || {
        let said = lab.run(["compare", "runs", "--format", "csv"]).expect(0).stdout.clone();
        assert!(said.contains(&id), "{said}");
    };
    copy(&other, &lab.path("runs/runs"));
    shown();
    fs::remove_dir_all(lab.path("runs/runs")).expect("removed");
    let planted = ["recipe.toml", "run.json"].map(|name| {
        fs::copy(other.join(name), lab.path("runs").join(name)).expect("copied");
        lab.path("runs").join(name)
    });
    if planted.iter().all(|path| given(path)) {
        shown();
    }
}

/// A file can be called like a change of a key, or like the pattern that a recipe has.
#[test]
fn names_that_are_settings_or_patterns_stay_that() {
    let lab = Lab::new();
    let text = fs::read_to_string(lab.path("tiny.toml")).expect("a recipe");
    lab.write("seed=7", text);
    let call = ["tiny.toml", "--runs-dir", "runs", "schedule.max_steps=4", "seed=7"];
    lab.run(call).expect(0);
    let recipe = fs::read_to_string(lab.only_run("runs").join("recipe.toml")).expect("a recipe");
    assert!(recipe.contains("seed = 7"), "{recipe}");
    // one's own file is what it is called
    let other = lab.train_in("others", &["seed=9", "schedule.max_steps=4"]);
    copy(&other, &lab.path("runs/tiny-*"));
    let compared = || lab.run(["compare", "tiny-*", "--format", "csv"]).expect(0).stdout.clone();
    assert_eq!(compared().lines().count(), 2, "{}", compared());
    if given(&lab.path("runs/tiny-*")) {
        assert_eq!(compared().lines().count(), 3, "{}", compared());
    }
    lab.write("shared/a.txt", "all the words that are mine ".repeat(200));
    lab.write("shared/*.txt", "theirs ".repeat(200));
    let trained = || {
        let sets = ["data.train=shared/*.txt", "data.val=shared/a.txt", "data.tokenizer=bytes"];
        let args = ["plan", "tiny.toml", "--format", "json"].into_iter().chain(sets);
        lab.run(args).expect(0).stdout.clone()
    };
    let before = trained();
    if given(&lab.path("shared/*.txt")) {
        assert_ne!(trained(), before, "both are trained on");
    }
}

#[test]
fn what_another_user_puts_beside_a_run_is_not_taken_for_its_checkpoint_or_for_a_run_of_that_name() {
    let lab = Lab::new();
    let run = lab.train(&["checkpoint.every=4", "checkpoint.keep_best=true"]);
    let other = lab.train_in("others", &["seed=9", "schedule.max_steps=4"]);
    let id = run.file_name().and_then(|id| id.to_str()).expect("an id").to_owned();
    let measured = |name: &str| {
        let args = ["eval", name, "--runs-dir", "runs", "--data", "data/val.bin", "--format", "json"];
        lab.run(args).expect(0).stdout.clone()
    };
    let [best, latest] = ["best", "latest"].map(|word| format!("{id}@{word}"));
    let before = [&best, &latest, "tiny"].map(&measured);
    let planted = [best.as_str(), &latest, "tiny"].map(|name| lab.path("runs").join(name));
    planted.iter().for_each(|path| copy(&other, path));
    if !planted.iter().all(|path| given(path)) {
        return;
    }
    assert_eq!([&best, &latest].map(|name| measured(name)), [before[0].as_str(), &before[1]]);
    let from = format!("model.init_from=runs/{best}");
    lab.run(tiny("runs", &["name=next", &from]).into_iter().chain(["--dry-run".to_owned()])).expect(0);
    assert_eq!(measured(&format!("runs/{latest}")), measured(&format!("runs/{id}")));
    for args in [&["eval", "tiny", "--data", "data/val.bin"][..], &["compare", "tiny"], &["sample", "tiny"]] {
        lab.run(args.iter().chain(&["--runs-dir", "runs"])).expect(2).says(&["is user 12345's", &id]);
    }
    // weights in the current directory that are called like a run, its beginning or its checkpoint
    fs::remove_dir_all(lab.path("runs/tiny")).expect("removed");
    let weights =
        fs::read_dir(other.join("checkpoints")).expect("checkpoints").next().expect("one").expect("entry");
    for name in [&id, &best, "tiny"] {
        let name = lab.path(name);
        copy(&weights.path(), &name);
        assert!(given(&name));
        let word = name.file_name().and_then(|name| name.to_str()).expect("a name");
        for args in [&["eval", word, "--data", "data/val.bin"][..], &["sample", word]] {
            let said = [&*format!("`{word}` is user 12345's"), &*format!("runs/{id}")].map(str::to_owned);
            lab.run(args).expect(2).says(&[&*said[0], &*said[1]]);
        }
        lab.run(["sample", &format!("./{word}"), "--tokens", "1"]).expect(0);
        fs::remove_dir_all(name).expect("removed");
    }
    // nor a run in which training is to begin
    copy(&other, &lab.path(&id));
    assert!(given(&lab.path(&id)));
    for from in [
        format!("\"{id}@latest\""),
        format!("\"{id}/checkpoints/step-00000004\""),
        format!("{{run=\"{id}\"}}"),
    ] {
        let said = lab
            .run(tiny("runs", &["name=next", "schedule.max_steps=20", &format!("model.init_from={from}")]));
        match from.contains('/') {
            true => drop(said.expect(0)),
            false => drop(said.expect(2).says(&["is user 12345's", &format!("runs/{id}"), "ln -s"])),
        }
    }
    // under a name of one's own it is what is meant
    symlink(&id, lab.path("theirs")).expect("a link");
    let sets = |from: &str| tiny("runs", &["name=next", "schedule.max_steps=20", "seed=2", from]);
    lab.run(sets("model.init_from={run=\"theirs\"}")).expect(0);
    fs::remove_dir_all(lab.path(&id)).expect("removed");
    // weights are no run, and are called what they like to be
    copy(&weights.path(), &lab.path("tiny"));
    assert!(given(&lab.path("tiny")));
    lab.run(sets("model.init_from=\"tiny\"")).expect(0);
    fs::remove_dir_all(lab.path("tiny")).expect("removed");
    // nor a link to some, though a slash behind its name leads through it
    symlink(weights.path(), lab.path(&id)).expect("a link");
    assert!(given(&lab.path(&id)));
    for word in [id.clone(), format!("{id}/")] {
        lab.run(["sample", &word]).expect(2).says(&["is user 12345's", &format!("runs/{id}")]);
    }
    fs::remove_file(lab.path(&id)).expect("removed");
    // what is neither weights nor a run is in the way of no name
    lab.write("tiny", "nothing of the kind");
    assert!(given(&lab.path("tiny")));
    for args in [&["eval", "tiny", "--data", "data/val.bin"][..], &["compare", "tiny"]] {
        lab.run(args).expect(0);
    }
    fs::remove_file(lab.path("tiny")).expect("removed");
    // a directory of runs, one of them under the id of the run that is meant
    fs::create_dir(lab.path("tiny")).expect("a directory");
    copy(&other, &lab.path("tiny").join(&id));
    assert!(given(&lab.path("tiny")));
    for command in ["compare", "list", "watch"] {
        lab.run([command, "tiny"]).expect(2).says(&["`tiny` is user 12345's", &format!("runs/{id}")]);
    }
    fs::remove_dir_all(lab.path("tiny")).expect("removed");
    copy(&other, &lab.path("runs/tiny"));
    // by its path it is what it is
    lab.run(["compare", "runs/tiny"]).expect(0);
}

#[test]
fn what_another_user_puts_beside_weights_does_not_say_what_they_are() {
    let lab = Lab::new();
    let golden = |name: &str| {
        fs::read(Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden/weights").join(name))
            .expect("a file")
    };
    lab.write("model/pytorch_model.bin", golden("pytorch_model.bin"));
    let config = json!({"n_layer": 2, "n_head": 2, "n_embd": 8, "n_positions": 12, "vocab_size": 40});
    lab.write("model/config.json", config.to_string());
    lab.shard("rows.bin", &[7; 49]);
    let eval = |weights: &str| lab.run(["eval", weights, "--data", "rows.bin"]);
    let recipe = "[model]\ninit_from = \"model\"\n[data]\ntrain = \"rows.bin\"\n[batch]\ntotal_tokens = 48\n\
                  [schedule]\nmax_steps = 1\n";
    lab.write("bare.toml", recipe);
    eval("model").expect(0);
    if !given(&lab.path("model/config.json")) {
        return;
    }
    for ended in [eval("model"), eval("model/pytorch_model.bin"), lab.run(["bare.toml"])] {
        ended.expect(2).says(&["config.json", "belongs to user 12345", "directory of your own"]);
    }
    lchown(lab.path("model/config.json"), Some(0), None).expect("taken back");
    let class = r#"{"tokenizer_class": "GPT2Tokenizer"}"#;
    let theirs = [("meta.pkl", "x"), ("tokenizer.json", "{}"), ("tokenizer_config.json", class)];
    let theirs = theirs.into_iter().chain(["vocab.json", "merges.txt", "vocab.txt"].map(|name| (name, "{}")));
    for (name, text) in theirs.chain([("model.safetensors", "x"), ("state.json", "{}")]) {
        let path = lab.write(&format!("model/{name}"), text);
        assert!(given(&path));
        eval("model").expect(2).says(&[name, "belongs to user 12345"]);
        fs::remove_file(path).expect("removed");
    }
    // shards beside an index, and an index beside a config
    let shard = lab.path("model/shard.safetensors");
    fs::write(&shard, "x").expect("a file");
    let index = lab.write(
        "model/model.safetensors.index.json",
        json!({"weight_map": {"a": "shard.safetensors"}}).to_string(),
    );
    fs::rename(lab.path("model/pytorch_model.bin"), lab.path("bin")).expect("moved");
    for (theirs, said) in [(&shard, "shard.safetensors"), (&index, "model.safetensors.index.json")] {
        assert!(given(theirs));
        eval("model").expect(2).says(&[said, "belongs to user 12345"]);
        lchown(theirs, Some(0), None).expect("taken back");
    }
    fs::remove_file(shard).and_then(|()| fs::remove_file(index)).expect("removed");
    fs::rename(lab.path("bin"), lab.path("model/pytorch_model.bin")).expect("moved");
    // and those of one user are theirs
    for name in ["", "config.json", "pytorch_model.bin"] {
        assert!(given(&lab.path("model").join(name)));
    }
    eval("model").expect(0);
    lab.run(["bare.toml"]).expect(0);
    // in their directory they may put what they like, whatever others add to it
    lchown(lab.path("model/config.json"), Some(0), None).expect("given");
    eval("model").expect(0);
    lab.run(["bare.toml"]).expect(0);
}

/// As where a file of weights lies in a directory that others may write into, or beside what another program has left.
#[test]
fn a_state_beside_weights_that_are_no_checkpoint_says_nothing_of_them() {
    let lab = Lab::new();
    let golden = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden/weights/llmc.bin");
    lab.write("model.bin", fs::read(golden).expect("a file"));
    lab.shard("rows.bin", &[7; 49]);
    let state = lab.write("state.json", r#"{"_data_files": [], "_fingerprint": "x"}"#);
    lab.run(["eval", "model.bin", "--data", "rows.bin"]).expect(0);
    if given(&state) {
        lab.run(["eval", "model.bin", "--data", "rows.bin"]).expect(0);
    }
}

#[test]
fn what_another_user_puts_two_directories_above_a_checkpoint_is_not_its_run() {
    let lab = Lab::new();
    let run = lab.train(&["schedule.max_steps=4"]);
    fs::create_dir(lab.path("kept")).expect("a directory");
    copy(&run.join("checkpoints"), &lab.path("kept/checkpoints"));
    let checkpoint = "kept/checkpoints/step-00000004";
    let sample = || lab.run(["sample", checkpoint, "--prompt", "a", "--tokens", "2"]);
    sample().expect(0);
    for name in ["recipe.toml", "run.json"] {
        let theirs = lab.write(&format!("kept/{name}"), "nonsense");
        if given(&theirs) {
            sample().expect(0);
        }
        fs::remove_file(theirs).expect("removed");
    }
}

/// Of all that a name could be, what is there as it is written comes first.
#[test]
fn a_directory_of_ones_own_that_holds_the_sign_stays_what_it_is() {
    let lab = Lab::new();
    let run = lab.train(&["schedule.max_steps=4"]);
    let path = format!("{}@latest", run.display());
    copy(&run, Path::new(&path));
    let said = lab.run(["compare", &path]).expect(0).stdout.clone();
    assert!(said.contains("@latest"), "{said}");
    lab.run(tiny("runs", &["schedule.max_steps=4"])).expect(0);
}

#[test]
fn data_of_another_user_where_a_carried_recipe_looks_for_them_are_told_of() {
    let lab = Lab::new();
    fs::create_dir(lab.path("datasets")).expect("a directory");
    let text = "to be or not to be, that is the question\n".repeat(200);
    fs::write(lab.path("datasets/tinyshakespeare.txt"), text).expect("a text");
    let call = |more: &[&str]| {
        let sets = ["schedule.max_steps=2", "schedule.warmup_steps=1", "eval.batches=1", "model.n_layer=1"];
        let args = ["builtin:shakespeare-char", "--runs-dir", "own"].into_iter().chain(sets);
        let ended = lab
            .run(args.chain(["batch.total_tokens=256", "batch.micro_batch=1"]).chain(more.iter().copied()));
        ended.expect(0).stderr.clone()
    };
    let said = |user: u32| format!("belongs to another user ({user})");
    assert!(!call(&[]).contains("another user"));
    if !given(&lab.path("datasets")) {
        return;
    }
    let told = call(&["seed=2"]);
    assert!(told.contains(&format!("warning: datasets {}", said(BOB))), "{told}");
    // what somebody has named is meant
    let named = call(&["seed=3", "data.train=datasets/tinyshakespeare.txt"]);
    assert!(!named.contains("another user"), "{named}");
    // what `runner init` has written is not
    lab.run(["init", "shakespeare-char"]).expect(0);
    let copied = lab.run(["shakespeare-char.toml", "--dry-run", "--runs-dir", "own", "model.n_layer=1"]);
    copied.expect(0).says(&[&format!("warning: datasets {}", said(BOB))]);
    lchown(lab.path("datasets"), Some(0), None).expect("taken back");
    assert!(given(&lab.path("datasets/tinyshakespeare.txt")));
    let told = call(&["seed=4"]);
    assert!(told.contains(&format!("warning: datasets/tinyshakespeare.txt {}", said(BOB))), "{told}");
    // what a pattern matches
    let shards = lab.path("datasets/fineweb-edu");
    fs::create_dir(&shards).expect("a directory");
    for (shard, own) in [("x_train_0.bin", "train"), ("x_train_1.bin", "train"), ("x_val_0.bin", "val")] {
        fs::copy(lab.path(format!("data/{own}.bin")), shards.join(shard)).expect("copied");
    }
    assert!(given(&shards.join("x_train_1.bin")));
    let small = ["n_layer=1", "n_head=1", "n_embd=8", "block_size=32"].map(|set| format!("model.{set}"));
    let sets = ["schedule.max_steps=1", "schedule.warmup_steps=0", "batch.total_tokens=64", "eval.batches=1"];
    let sets = small.iter().map(String::as_str).chain(sets).chain(["batch.micro_batch=1"]);
    let told = lab.run(["builtin:gpt3-small", "--runs-dir", "own"].into_iter().chain(sets));
    let warning = format!("warning: datasets/fineweb-edu/x_train_1.bin {}", said(BOB));
    told.expect(0).says(&[&warning]);
}
