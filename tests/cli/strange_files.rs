//! Files of runs and weights that are no files, lead elsewhere, or state what cannot be: nothing waits, nothing else is
//! written to, and the message names the file.

use crate::support;

use runner::run::checkpoint::{CheckpointState, FileDigest};
use serde_json::{Value, json};
use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use support::{Ended, Lab, checkpoints, record, results, tiny, wait};

/// Runs a command that must not wait.
pub(crate) fn run<S: AsRef<std::ffi::OsStr>>(lab: &Lab, args: impl IntoIterator<Item = S>) -> Ended {
    let mut live = lab.start(args);
    wait("the end of a command that has nothing to wait for", || live.is_over());
    live.end()
}

pub(crate) fn pipe(path: &Path) {
    let made = std::process::Command::new("mkfifo").arg(path).status();
    assert!(made.expect("mkfifo is there").success());
}

/// Puts something that is no regular file in the place of one.
fn replace(path: &Path, by: &str) {
    fs::remove_file(path).expect("a file was there");
    match by {
        "a directory" => fs::create_dir(path).expect("a directory"),
        "zeros" => symlink("/dev/zero", path).expect("a link"),
        _ => pipe(path),
    }
}

/// A run that was killed after 9 of 12 steps, behind its second checkpoint.
fn killed(lab: &Lab, runs: &str) -> PathBuf {
    let run = lab.crash(runs, &[], "csv.before_row:12");
    assert_eq!(checkpoints(&run), ["step-00000004", "step-00000008"]);
    run
}

#[test]
fn a_file_of_a_checkpoint_that_is_none_is_damage_and_the_one_before_is_used() {
    let lab = Lab::new();
    let whole = results(&lab.train_in("whole", &[]));
    for (i, (file, by)) in [
        ("state.json", "a directory"),
        ("state.json", "a pipe"),
        ("state.json", "zeros"),
        ("model.safetensors", "a directory"),
        ("optimizer.safetensors", "a pipe"),
        ("model.safetensors", "zeros"),
    ]
    .into_iter()
    .enumerate()
    {
        let runs = format!("runs{i}");
        let path = killed(&lab, &runs);
        replace(&path.join("checkpoints/step-00000008").join(file), by);
        let ended = run(&lab, tiny(&runs, &[]));
        ended.expect(0).says(&[&format!("step-00000008/{file}"), "damaged-1-step-00000008"]);
        // what lies there now is nothing to compare
        fs::remove_dir_all(path.join("checkpoints/damaged-1-step-00000008")).expect("it was set aside");
        assert!(results(&path) == whole, "{file}: {by}");
    }
}

#[test]
fn a_run_does_not_go_on_with_logs_or_a_lock_that_are_no_files() {
    let lab = Lab::new();
    let (no_file, link) = ("it is not a regular file", "it is a symbolic link: remove the link");
    for (i, (file, by, reason)) in [
        ("train.csv", "a pipe", no_file),
        ("val.csv", "zeros", link),
        ("lock", "a pipe", no_file),
        ("run.json", "a pipe", no_file),
    ]
    .into_iter()
    .enumerate()
    {
        let runs = format!("runs{i}");
        let path = killed(&lab, &runs);
        replace(&path.join(file), by);
        let ended = run(&lab, tiny(&runs, &[]));
        ended.expect(1).says(&[&format!("/{file}`"), reason]);
        run(&lab, ["plan", "tiny.toml", "--runs-dir", &runs]);
    }
}

#[test]
fn the_lock_is_not_taken_through_a_link() {
    let lab = Lab::new();
    let path = killed(&lab, "runs");
    let precious = lab.write("precious", "mine");
    fs::remove_file(path.join("lock")).expect("removed");
    symlink(&precious, path.join("lock")).expect("a link");
    run(&lab, tiny("runs", &[])).expect(1).says(&["/lock`", "it is a symbolic link: remove the link"]);
    assert_eq!(fs::read_to_string(&precious).expect("a file"), "mine");
    fs::remove_file(path.join("lock")).expect("removed");
    run(&lab, tiny("runs", &[])).expect(0);
}

#[test]
fn a_run_does_not_begin_behind_a_link_and_goes_on_behind_one() {
    let lab = Lab::new();
    let path = killed(&lab, "runs");
    let id = path.file_name().expect("a name").to_owned();
    let mine = ["train.csv", "samples.txt", "checkpoints/mine"];
    for name in mine {
        lab.write(&format!("mine/{name}"), "mine");
    }
    fs::create_dir(lab.path("linked")).expect("a directory");
    symlink(lab.path("mine"), lab.path("linked").join(&id)).expect("a link");
    for more in [None, Some("--fresh")] {
        let args = tiny("linked", &[]).into_iter().chain(more.map(str::to_owned));
        run(&lab, args).expect(1).says(&["linked/tiny-", "it is a symbolic link: remove the link"]);
        for name in mine {
            assert_eq!(fs::read_to_string(lab.path("mine").join(name)).expect(name), "mine");
        }
        assert_eq!(fs::read_dir(lab.path("mine")).expect("a directory").count(), mine.len());
    }
    // that of a run which was moved
    fs::remove_file(lab.path("linked").join(&id)).expect("removed");
    symlink(&path, lab.path("linked").join(&id)).expect("a link");
    run(&lab, tiny("linked", &[])).expect(0);
    assert_eq!(record(&path)["status"], "finished");
}

#[test]
fn pages_are_not_written_through_links() {
    let lab = Lab::new();
    let precious = lab.write("precious", "mine");
    fs::create_dir(lab.path("man1")).expect("a directory");
    symlink(&precious, lab.path("man1/runner.1")).expect("a link");
    run(&lab, ["man", "man1"]).expect(1).says(&["man1/runner.1`", "it is a symbolic link: remove the link"]);
    assert_eq!(fs::read_to_string(&precious).expect("a file"), "mine");
    fs::remove_file(lab.path("man1/runner.1")).expect("removed");
    pipe(&lab.path("man1/runner.1"));
    run(&lab, ["man", "man1"]).expect(1).says(&["man1/runner.1`", "it is not a regular file"]);
    fs::remove_file(lab.path("man1/runner.1")).expect("removed");
    // longer than a page
    lab.write("man1/runner.1", "x".repeat(1 << 20));
    run(&lab, ["man", "man1"]).expect(0);
    assert!(fs::metadata(lab.path("man1/runner.1")).expect("a page").len() < 1 << 20);
}

#[test]
fn logs_and_checkpoints_are_not_written_through_links() {
    let lab = Lab::new();
    let path = killed(&lab, "runs");
    let before = fs::read(path.join("train.csv")).expect("a log");
    fs::rename(path.join("train.csv"), lab.path("mine.csv")).expect("moved");
    symlink(lab.path("mine.csv"), path.join("train.csv")).expect("a link");
    run(&lab, tiny("runs", &[])).expect(1).says(&["/train.csv`", "it is a symbolic link: remove the link"]);
    assert!(fs::read(lab.path("mine.csv")).expect("a file") == before);
    fs::remove_file(path.join("train.csv")).expect("removed");
    fs::rename(lab.path("mine.csv"), path.join("train.csv")).expect("back");
    // older checkpoints would be removed, and those of another run may lie there
    fs::rename(path.join("checkpoints"), lab.path("others")).expect("moved");
    symlink(lab.path("others"), path.join("checkpoints")).expect("a link");
    for more in [None, Some("--fresh")] {
        let args = tiny("runs", &[]).into_iter().chain(more.map(str::to_owned));
        run(&lab, args).expect(1).says(&["/checkpoints`", "it is a symbolic link: remove the link"]);
    }
    assert_eq!(fs::read_dir(lab.path("others")).expect("a directory").count(), 2);
    fs::remove_file(path.join("checkpoints")).expect("removed");
    fs::rename(lab.path("others"), path.join("checkpoints")).expect("back");
    run(&lab, tiny("runs", &[])).expect(0);
}

#[test]
fn a_run_shows_no_file_that_its_names_are_linked_to() {
    let lab = Lab::new();
    let path = killed(&lab, "runs");
    // files of who looks at the run, which its owner may not read
    let secret = lab.write("mine.toml", "name = \"a-secret\"\n");
    let rows = lab.write("mine.csv", "step,tokens,loss,a_secret\n0,64,41.3759,42.5\n");
    for (name, target) in
        [("recipe.toml", &secret), ("train.csv", &rows), ("val.csv", &rows), ("run.json", &secret)]
    {
        fs::rename(path.join(name), lab.path("kept")).expect("moved");
        symlink(target, path.join(name)).expect("a link");
        for args in [&["compare", "runs"][..], &["list"], &["export", "runs", "--tensorboard", "tb"]] {
            let ended = run(&lab, args.iter().copied());
            let told = format!("{}{}", ended.stdout, ended.stderr);
            assert!(told.contains("symbolic link") || args[0] == "list", "{name}: {told}");
            assert!(!told.contains("secret") && !told.contains("41.3759"), "{name}: {told}");
        }
        let id = path.file_name().and_then(|id| id.to_str()).expect("an id");
        let readers = [&["--resume", id][..], &["eval", id], &["sample", id, "--tokens", "2"]];
        for args in readers.iter().filter(|_| name == "recipe.toml") {
            let ended = run(&lab, args.iter().copied());
            let told = format!("{}{}", ended.stdout, ended.stderr);
            assert!(!told.contains("secret"), "{args:?}: {told}");
        }
        for events in fs::read_dir(lab.path("tb").join(path.file_name().expect("an id"))).expect("exported") {
            let events = fs::read(events.expect("an entry").path()).expect("an event file");
            assert!(!events.windows(6).any(|part| part == b"secret"), "{name}");
        }
        fs::remove_file(path.join(name)).expect("removed");
        fs::rename(lab.path("kept"), path.join(name)).expect("back");
        fs::remove_dir_all(lab.path("tb")).expect("removed");
    }
}

#[test]
fn a_directory_that_holds_another_run_is_neither_finished_nor_started_over() {
    let lab = Lab::new();
    let first = lab.train(&[]);
    let id = |ended: &Ended| ended.stdout.trim().rsplit('/').next().expect("a path").to_owned();
    let other = id(&run(&lab, tiny("runs", &["seed=2"]).into_iter().chain(["--dry-run".to_owned()])));
    let copied = lab.path("others").join(&other);
    fs::create_dir(lab.path("others")).expect("a directory");
    symlink(&first, &copied).expect("a link");
    let before = fs::read(first.join("run.json")).expect("a record");
    for more in [&[][..], &["--fresh"], &["--dry-run"], &["--fresh", "--dry-run"]] {
        let args = tiny("others", &["seed=2"]).into_iter().chain(more.iter().map(|one| (*one).to_owned()));
        run(&lab, args).expect(2).says(&["holds the run `tiny-", "which was copied or linked there"]);
        assert!(fs::read(first.join("run.json")).expect("a record") == before, "{more:?}");
    }
    // a link of another user is followed by no training
    let own = lab.path("others").join(first.file_name().expect("an id"));
    symlink(&first, &own).expect("a link");
    if std::os::unix::fs::lchown(&own, Some(12345), None).is_ok() {
        for more in [&["--fresh"][..], &["--fresh", "--dry-run"]] {
            let args = tiny("others", &[]).into_iter().chain(more.iter().map(|one| (*one).to_owned()));
            run(&lab, args).expect(1).says(&["is a link of another user"]);
            assert!(fs::read(first.join("run.json")).expect("a record") == before, "{more:?}");
        }
    }
}

#[test]
fn a_recipe_of_a_run_that_only_claims_to_be_large_is_written_again() {
    let lab = Lab::new();
    let path = killed(&lab, "runs");
    let recipe = path.join("recipe.toml");
    let own = fs::read(&recipe).expect("a recipe");
    let file = fs::OpenOptions::new().write(true).open(&recipe).expect("open");
    file.set_len(3 << 30).expect("sparse");
    run(&lab, tiny("runs", &[])).expect(0).says(&["recipe.toml"]);
    assert!(fs::read(&recipe).expect("a recipe") == own);
}

/// To find out that terabytes of a hole are no model would take hours.
#[test]
fn weights_that_no_memory_holds_are_not_read() {
    const MANY: u64 = 1 << 43;
    let lab = Lab::new();
    let path = lab.train(&["schedule.max_steps=3", "schedule.warmup_steps=0"]);
    let newest = path.join("checkpoints/step-00000003");
    let mut state = CheckpointState::read(&newest).expect("a state");
    let file = fs::OpenOptions::new().write(true).open(newest.join("model.safetensors")).expect("open");
    if file.set_len(MANY).is_err() {
        return;
    }
    let name = path.to_str().expect("UTF-8");
    let from = format!("model.init_from={{run=\"{name}\",optimizer=false}}");
    let refused = |what: &str| {
        for args in [vec!["sample".to_owned(), name.to_owned()], tiny("others", &[&from])] {
            let ended = run(&lab, args);
            assert_ne!(ended.code, Some(0));
            ended.says(&["model.safetensors", what]);
        }
    };
    refused("8796093022208 bytes");
    state.files.get_mut("model.safetensors").expect("a model").bytes = MANY;
    fs::write(newest.join("state.json"), state.to_json()).expect("written");
    refused("more than twice the memory of this machine");
    fs::create_dir(lab.path("plain")).expect("a directory");
    for name in ["config.json", "model.safetensors"] {
        fs::rename(newest.join(name), lab.path("plain").join(name)).expect("moved");
    }
    let ended = run(&lab, tiny("others", &["model.init_from=plain"]));
    ended.expect(2).says(&["model.safetensors", "more than twice the memory of this machine"]);
}

#[test]
fn a_state_that_names_files_elsewhere_is_damage() {
    let lab = Lab::new();
    let path = killed(&lab, "runs");
    let newest = path.join("checkpoints/step-00000008");
    let mut state = CheckpointState::read(&newest).expect("a state");
    let secret = lab.write("secret", "mine");
    let digest = state.files.values().next().expect("a file").clone();
    state.files.insert(secret.display().to_string(), digest);
    fs::write(newest.join("state.json"), state.to_json()).expect("written");
    run(&lab, tiny("runs", &[])).expect(0).says(&["secret` is no file beside it", "damaged-1-step-00000008"]);
}

#[test]
fn a_lock_of_a_preparation_is_not_taken_through_a_link() {
    let lab = Lab::new();
    lab.write("a.txt", "some text");
    let precious = lab.write("precious", "mine");
    fs::create_dir_all(lab.path("out/.prepare")).expect("a directory");
    symlink(&precious, lab.path("out/.prepare/lock")).expect("a link");
    let ended = run(&lab, ["data", "prepare", "a.txt", "--out", "out"]);
    assert_ne!(ended.code, Some(0));
    ended.says(&["lock`", "it is a symbolic link: remove the link"]);
    assert_eq!(fs::read_to_string(&precious).expect("a file"), "mine");
}

#[test]
fn a_preparation_or_a_download_does_not_work_behind_a_link() {
    let lab = Lab::new();
    lab.write("a.txt", "some text");
    let names = [".tmp-mine", "run-000000", "state.json", "x.part"];
    for name in names {
        lab.write(&format!("mine/{name}"), "mine");
    }
    for (work, args) in [
        (".prepare", &["prepare", "a.txt", "--shuffle-seed", "1"][..]),
        (".fetch", &["fetch", "tinyshakespeare", "--retries", "0", "--from", "http://127.0.0.1:1/x"]),
    ] {
        fs::create_dir_all(lab.path("out")).expect("a directory");
        symlink(lab.path("mine"), lab.path("out").join(work)).expect("a link");
        let ended = run(&lab, [&["data"], args, &["--out", "out"]].concat());
        ended.expect(1).says(&[&format!("out/{work}`"), "it is a symbolic link: remove the link"]);
        for name in names {
            assert_eq!(fs::read_to_string(lab.path("mine").join(name)).expect(name), "mine");
        }
        assert_eq!(fs::read_dir(lab.path("mine")).expect("a directory").count(), names.len(), "{work}");
    }
}

#[test]
fn files_of_tasks_that_are_none_are_refused() {
    let lab = Lab::new();
    let path = lab.train(&["schedule.max_steps=3", "schedule.warmup_steps=0"]);
    pipe(&lab.path("pipe.jsonl"));
    symlink("/dev/zero", lab.path("zeros.jsonl")).expect("a link");
    let sparse = fs::File::create(lab.path("sparse.jsonl")).expect("a file");
    sparse.set_len(1 << 40).expect("sparse");
    for (name, what) in [
        ("pipe.jsonl", "it is not a regular file"),
        ("zeros.jsonl", "it is not a regular file"),
        ("sparse.jsonl", "it is larger than 2048 MiB"),
    ] {
        let path = path.to_str().expect("UTF-8");
        run(&lab, ["eval", path, "--tasks", name]).expect(2).says(&[name, what]);
    }
}

#[test]
fn a_model_in_several_files_of_pytorch_is_named() {
    let lab = Lab::new();
    lab.write("w/pytorch_model.bin.index.json", json!({ "weight_map": { "a": "b" } }).to_string());
    let refused = run(&lab, tiny("runs", &["model.init_from=w"]));
    refused.expect(2).says(&["pytorch_model.bin.index.json", "save_pretrained", "safe_serialization=True"]);
}

#[test]
fn weights_that_are_no_files_are_refused() {
    let lab = Lab::new();
    let make = |name: &str| {
        let dir = lab.path(name);
        fs::create_dir_all(&dir).expect("a directory");
        dir
    };
    let dir = make("w");
    pipe(&dir.join("pipe.safetensors"));
    pipe(&dir.join("pipe.pt"));
    symlink("/dev/zero", dir.join("zeros.safetensors")).expect("a link");
    pipe(&make("model").join("model.safetensors"));
    let index = make("index");
    pipe(&index.join("model.safetensors.index.json"));
    let config = make("config");
    pipe(&config.join("config.json"));
    fs::write(config.join("model.safetensors"), "").expect("a file");
    for name in ["w/pipe.safetensors", "w/pipe.pt", "w/zeros.safetensors", "model", "index", "config"] {
        let refused = run(&lab, tiny("runs", &[&format!("model.init_from={name}")]));
        refused.expect(2).says(&["model.init_from"]);
        assert_eq!(lab.runs("runs"), [""; 0], "{name}");
        let sampled = run(&lab, ["sample", name, "--prompt", "a"]);
        sampled.expect(2);
        if name == "config" {
            sampled.says(&["config/config.json`", "it is not a regular file"]);
        }
    }
    lab.write("outside.safetensors", "no one is to look at this");
    let map = |name: &str| json!({ "weight_map": { "wte.weight": name } }).to_string();
    for name in ["../outside.safetensors", "/etc/passwd", "a/../../outside.safetensors", ".."] {
        lab.write("elsewhere/model.safetensors.index.json", map(name));
        let refused = run(&lab, tiny("runs", &["model.init_from=elsewhere"]));
        refused.expect(2).says(&["model.safetensors.index.json", name, "no file beside it"]);
    }
}

#[test]
fn a_configuration_that_no_model_has_is_refused_before_memory_is_taken() {
    let lab = Lab::new();
    let model =
        lab.train(&["schedule.max_steps=3", "schedule.warmup_steps=0"]).join("checkpoints/step-00000003");
    let path = model.join("config.json");
    let config: Value = serde_json::from_slice(&fs::read(&path).expect("a file")).expect("JSON");
    for (key, value) in [("n_layer", 1_000_000_000u64), ("n_embd", 1 << 40), ("n_positions", 1 << 31)] {
        let mut changed = config.clone();
        changed[key] = value.into();
        let changed = changed.to_string();
        fs::write(&path, &changed).expect("written");
        // somebody who makes such a checkpoint states its digest, too
        let mut state = CheckpointState::read(&model).expect("a state");
        let blake3 = blake3::hash(changed.as_bytes()).to_hex().to_string();
        let digest = FileDigest { bytes: changed.len() as u64, blake3 };
        state.files.insert("config.json".to_owned(), digest);
        fs::write(model.join("state.json"), state.to_json()).expect("written");
        for is_checkpoint in [true, false] {
            let named = if is_checkpoint { model.clone() } else { lab.path("copy") };
            if !is_checkpoint {
                fs::create_dir_all(&named).expect("a directory");
                for file in ["config.json", "model.safetensors"] {
                    fs::copy(model.join(file), named.join(file)).expect("a copy");
                }
            }
            let ended = lab.run(["sample", named.to_str().expect("UTF-8"), "--prompt", "a"]);
            ended.expect(if is_checkpoint { 1 } else { 2 });
            ended.says(&["config.json` is malformed", key, &value.to_string(), "are possible"]);
        }
    }
}

#[test]
fn a_launcher_that_states_more_ranks_than_a_run_can_have_is_refused() {
    let lab = Lab::new();
    for size in ["65537", "99999999999", "18446744073709551615"] {
        let mut command = lab.command(tiny("runs", &[]));
        let rendezvous = [("MASTER_ADDR", "127.0.0.1"), ("MASTER_PORT", "29999"), ("RANK", "0")];
        command.envs(rendezvous).env("WORLD_SIZE", size);
        support::ended(command).expect(2).says(&["WORLD_SIZE", size, "65536"]);
    }
}

#[test]
fn a_checkpoint_from_beyond_the_end_of_a_run_is_not_gone_on_from() {
    let lab = Lab::new();
    let path = killed(&lab, "runs");
    let newest = path.join("checkpoints/step-00000008");
    let mut state = CheckpointState::read(&newest).expect("a state");
    state.step = 13;
    fs::write(newest.join("state.json"), state.to_json()).expect("written");
    fs::rename(&newest, path.join("checkpoints/step-00000013")).expect("renamed");
    let before = fs::read(path.join("train.csv")).expect("a log");
    for more in [&[][..], &["--dry-run".to_owned()]] {
        let args: Vec<String> = tiny("runs", &[]).into_iter().chain(more.iter().cloned()).collect();
        run(&lab, args).expect(1).says(&["step-00000013", "it is of step 13", "this run has 12", "--fresh"]);
    }
    assert!(fs::read(path.join("train.csv")).expect("a log") == before);
}

#[test]
fn a_record_that_a_power_cut_left_empty_is_made_again() {
    for left in [&b""[..], &[0; 64]] {
        let lab = Lab::new();
        let whole = results(&lab.train_in("whole", &[]));
        let path = killed(&lab, "runs");
        fs::write(path.join("run.json"), left).expect("written");
        run(&lab, tiny("runs", &[])).expect(0);
        assert_eq!(record(&path)["status"], "finished");
        assert!(results(&path) == whole);
    }
}

#[test]
fn a_limit_on_the_size_of_files_is_an_error_that_names_the_file() {
    let lab = Lab::new();
    let mut command = lab.launcher("sh");
    // in units of 512 bytes: less than a checkpoint of the model takes
    command.args(["-c", "ulimit -f 64; exec \"$RUNNER\" \"$@\"", "limited"]).args(tiny("runs", &[]));
    let ended = support::ended(command);
    ended.expect(1).says(&["could not write", "checkpoints/", "File too large"]);
    run(&lab, tiny("runs", &[])).expect(0);
}

#[test]
fn data_that_cannot_be_mapped_say_which_limit_is_met() {
    let lab = Lab::new();
    let tokens = 1_500_000_000u64;
    let path = lab.shard("data/large.bin", &[]);
    let mut bytes = fs::read(&path).expect("a header");
    bytes[8..12].copy_from_slice(&(tokens as i32).to_le_bytes());
    fs::write(&path, bytes).expect("written");
    // of zeros that take no room on the disk
    let file = fs::OpenOptions::new().write(true).open(&path).expect("opened");
    file.set_len(1024 + 2 * tokens).expect("sparse");
    let mut command = lab.launcher("sh");
    command.args(["-c", "ulimit -v 2500000; exec \"$RUNNER\" \"$@\"", "limited"]);
    command.args(tiny("runs", &["data.train=data/large.bin"])).env("RAYON_NUM_THREADS", "2");
    support::ended(command).expect(2).says(&["data.train", "large.bin", "vm.max_map_count", "ulimit -v"]);
}

#[test]
fn what_a_run_has_not_written_outlives_it() {
    let lab = Lab::new();
    let path = killed(&lab, "runs");
    fs::write(path.join("notes.txt"), "mine").expect("a file");
    fs::create_dir(path.join("figures")).expect("a directory");
    let mut args = tiny("runs", &[]);
    args.push("--fresh".into());
    run(&lab, args).expect(0);
    assert_eq!(fs::read_to_string(path.join("notes.txt")).expect("kept"), "mine");
    assert!(path.join("figures").is_dir());
    assert_eq!(record(&path)["sessions"].as_array().map(Vec::len), Some(1), "begun again");
}

/// What is left out in silence is missing from the data.
#[test]
fn what_has_the_name_of_a_text_and_cannot_be_read_is_not_left_out_of_a_directory() {
    let lab = Lab::new();
    let prepare = || run(&lab, ["data", "prepare", "texts", "--tokenizer", "bytes", "--out", "out"]);
    lab.write("texts/a.txt", "so he sang, and so she sang\n".repeat(100));
    pipe(&lab.path("texts/b.txt"));
    prepare().expect(2).says(&["texts/b.txt` is not a regular file"]);
    fs::remove_file(lab.path("texts/b.txt")).expect("removed");
    // a link that leads in a circle may stand for a directory of texts, and one to nothing for nothing
    symlink("round", lab.path("texts/round")).expect("a link");
    prepare().expect(2).says(&["texts/round"]);
    fs::remove_file(lab.path("texts/round")).expect("removed");
    symlink("nothing", lab.path("texts/dangling")).expect("a link");
    prepare().expect(0);
}

#[test]
fn samples_that_no_run_has_written_stay() {
    let lab = Lab::new();
    let dry = run(&lab, tiny("runs", &[]).into_iter().chain(["--dry-run".to_owned()]));
    let path = lab.run_of(dry.expect(0));
    fs::create_dir_all(&path).expect("a directory");
    fs::write(path.join("samples.txt"), "precious\n").expect("written");
    run(&lab, tiny("runs", &[])).expect(1).says(&["samples.txt", "it does not begin with a sample"]);
    assert_eq!(fs::read_to_string(path.join("samples.txt")).expect("there"), "precious\n");
    fs::write(path.join("samples.txt"), "=== step 0 ===\ntorn").expect("written");
    run(&lab, tiny("runs", &[])).expect(0);
}

#[test]
fn an_evaluation_does_not_wait_for_ever_for_a_lock_that_nobody_needs() {
    let lab = Lab::new();
    let path = lab.train(&[]);
    let file = fs::File::create(path.join("eval.csv")).expect("a file");
    file.lock().expect("locked");
    let ended = run(&lab, ["eval".into(), path.display().to_string(), "--save".into()]);
    ended.expect(1).says(&["eval.csv", "another process has kept it for ten seconds"]);
    assert!(ended.stdout.contains("val"), "what was measured is shown: {}", ended.stdout);
}
