//! Storage that fails a run: damaged checkpoints, torn logs, other versions, data that change. Whatever can be used is,
//! whatever cannot is named, and nothing that was there is lost.

use crate::support;

use std::fs;
use std::path::{Path, PathBuf};
use support::{Ended, Lab, ended, essence, everything, record, rows, tiny, without};

const KEEP: &[&str] = &["checkpoint.keep=0"];

type Damage = Box<dyn Fn(&mut Vec<u8>)>;

/// A run that was killed after 9 of 12 steps, with checkpoints at 4 and 8.
fn killed(lab: &Lab, runs: &str) -> PathBuf {
    let run = lab.crash(runs, KEEP, "csv.before_row:12");
    assert_eq!(rows(&run), 9);
    run
}

pub(crate) fn edit(path: &Path, change: impl FnOnce(&mut Vec<u8>)) {
    let mut bytes = fs::read(path).expect("read");
    change(&mut bytes);
    fs::write(path, bytes).expect("written");
}

fn resume_with(lab: &Lab, runs: &str, fault: &str) -> Ended {
    let mut command = lab.command(tiny(runs, KEEP));
    command.env("RUNNER_FAULT", fault);
    ended(command)
}

#[test]
fn every_kind_of_damage_to_a_checkpoint_is_named_and_the_one_before_is_used() {
    let lab = Lab::new();
    let whole = essence(&lab.train_in("whole", KEEP));
    let bit = |at: f64| {
        move |bytes: &mut Vec<u8>| {
            let byte = ((bytes.len() - 1) as f64 * at) as usize;
            bytes[byte] ^= 0x10;
        }
    };
    let damages: Vec<(&str, &str, Damage)> = vec![
        ("model.safetensors", "expected", Box::new(bit(0.5))),
        ("model.safetensors", "expected", Box::new(bit(0.0))),
        ("optimizer.safetensors", "expected", Box::new(bit(0.9))),
        ("config.json", "expected", Box::new(bit(0.3))),
        ("state.json", "state.json", Box::new(bit(0.4))),
        ("model.safetensors", "bytes", Box::new(|bytes| bytes.truncate(bytes.len() / 2))),
        ("optimizer.safetensors", "bytes", Box::new(|bytes| bytes.clear())),
        ("state.json", "state.json", Box::new(|bytes| bytes.truncate(40))),
        ("config.json", "bytes", Box::new(|bytes| bytes.push(b'\n'))),
    ];
    for (i, (file, says, damage)) in damages.iter().enumerate() {
        let runs = format!("runs-{i}");
        let run = killed(&lab, &runs);
        let damaged = run.join("checkpoints/step-00000008").join(file);
        edit(&damaged, damage);
        let bytes = fs::read(&damaged).expect("read");
        let resumed = lab.run(tiny(&runs, KEEP));
        let aside = "checkpoints/damaged-1-step-00000008";
        resumed.expect(0).says(&["step-00000008", file, says, "set aside", aside, "step 4 of 12"]);
        assert!(fs::read(run.join(aside).join(file)).expect("it is kept") == bytes);
        fs::remove_dir_all(run.join(aside)).expect("removed");
        assert!(essence(&run) == whole, "{file}, damage {i}");
    }
    // a file that is not there
    let run = killed(&lab, "missing");
    fs::remove_file(run.join("checkpoints/step-00000008/model.safetensors")).expect("removed");
    lab.run(tiny("missing", KEEP)).expect(0).says(&["model.safetensors", "set aside", "step 4 of 12"]);
}

#[test]
fn a_disk_that_does_not_give_a_checkpoint_back_is_damage_and_a_locked_door_is_not() {
    let lab = Lab::new();
    let whole = essence(&lab.train_in("whole", KEEP));
    for point in ["eio:state.read", "eio:checkpoint.read:2"] {
        let runs = point.replace([':', '.'], "-");
        let run = killed(&lab, &runs);
        let resumed = resume_with(&lab, &runs, point);
        resumed.expect(0).says(&["step-00000008", "nput/output error", "set aside", "step 4 of 12"]);
        assert!(without(essence(&run), "damaged-1-") == whole, "{point}");
    }
    let run = killed(&lab, "refused");
    let before = everything(&run);
    // any other reason, here a full disk, says nothing about the file
    resume_with(&lab, "refused", "error:checkpoint.read")
        .expect(1)
        .says(&["could not read", "step-00000008"]);
    let names = |files: &std::collections::BTreeMap<String, _>| {
        files.keys().cloned().collect::<std::collections::BTreeSet<String>>()
    };
    assert_eq!(names(&everything(&run)), names(&before), "nothing is set aside");
    lab.run(tiny("refused", KEEP)).expect(0).says(&["step 8 of 12"]);
    assert!(essence(&run) == whole);
}

#[test]
fn a_log_with_a_torn_or_foreign_end_is_cut_and_one_without_its_rows_is_refused() {
    let lab = Lab::new();
    let whole = essence(&lab.train_in("whole", KEEP));
    for (i, end) in [&b"9,2560,4.2,0.0"[..], b"\n", b"\0\0\0\0\n", b"9,2560,,,\n\xff\xfe\n", b"\"9,"]
        .into_iter()
        .enumerate()
    {
        let runs = format!("runs-{i}");
        let run = killed(&lab, &runs);
        edit(&run.join("train.csv"), |bytes| bytes.extend_from_slice(end));
        if !end.ends_with(b"\n") {
            edit(&run.join("val.csv"), |bytes| bytes.extend_from_slice(end));
        }
        lab.run(tiny(&runs, KEEP)).expect(0).says(&["step 8 of 12"]);
        assert!(essence(&run) == whole, "{:?}", String::from_utf8_lossy(end));
    }
    let run = killed(&lab, "short");
    edit(&run.join("train.csv"), |bytes| {
        let text = String::from_utf8(bytes.clone()).expect("text");
        *bytes = text.lines().take(4).map(|line| format!("{line}\n")).collect::<String>().into_bytes();
    });
    lab.run(tiny("short", KEEP)).expect(1).says(&["train.csv", "it has 3 rows for 8 steps", "--fresh"]);
    let run = killed(&lab, "broken");
    edit(&run.join("train.csv"), |bytes| {
        let text = String::from_utf8(bytes.clone()).expect("text");
        *bytes = text.replacen("\n3,", "\nthree,", 1).into_bytes();
    });
    let before = everything(&run);
    lab.run(tiny("broken", KEEP)).expect(1).says(&["train.csv", "line 5", "three"]);
    assert_eq!(everything(&run)["train.csv"], before["train.csv"], "what cannot be read is not thrown away");
}

#[test]
fn a_run_of_a_later_version_is_left_alone() {
    let lab = Lab::new();
    for file in ["run.json", "checkpoints/step-00000008/state.json"] {
        let runs = format!("runs-{}", file.len());
        let run = killed(&lab, &runs);
        edit(&run.join(file), |bytes| {
            let text = String::from_utf8(bytes.clone()).expect("text");
            *bytes = text.replacen("\"format_version\": 1", "\"format_version\": 2", 1).into_bytes();
        });
        let before = without_lock(&run);
        let refused = lab.run(tiny(&runs, KEEP));
        refused.expect(2).says(&[file, "format version 2", "reads up to 1", "newer build"]);
        assert!(without_lock(&run) == before, "{file}");
    }
}

fn without_lock(run: &Path) -> impl PartialEq {
    let mut files = everything(run);
    files.remove("lock");
    files
}

#[test]
fn data_that_change_are_found_before_and_while_they_are_used() {
    let lab = Lab::new();
    let run = killed(&lab, "runs");
    let id = run.file_name().and_then(|name| name.to_str()).expect("a name").to_owned();
    let before = everything(&run);
    let then = record(&run)["digests"]["train"].as_str().expect("a digest").to_owned();
    let kept = fs::read(lab.path("data/train.bin")).expect("read");
    // one token
    edit(&lab.path("data/train.bin"), |bytes| bytes[1024 + 2 * 77] ^= 1);
    let refused = lab.run(["--resume", &id]);
    refused.expect(2).says(&["train had digest", &then, "and has", "bring the old contents back"]);
    assert!(everything(&run) == before);
    fs::write(lab.path("data/train.bin"), kept).expect("written");
    lab.run(["--resume", &id]).expect(0);
}

#[cfg(target_os = "linux")]
#[test]
fn data_that_are_cut_short_under_a_run_end_it_with_a_message() {
    let lab = Lab::new();
    // before a checkpoint the size is looked at, which may come before the lost tokens are read
    let sets = ["schedule.max_steps=100000000", "checkpoint.every=0", "eval.every=0"];
    let live = lab.start(tiny("runs", &sets));
    let run = lab.only_run("runs");
    support::wait("steps", || rows(&run) > 5);
    // its length is part of the mapping, so what was cut off can no longer be read
    fs::OpenOptions::new()
        .write(true)
        .open(lab.path("data/train.bin"))
        .and_then(|f| f.set_len(0))
        .expect("cut");
    live.end().expect(1).says(&["error: a file of tokens or text", "cut short", "resumes"]);
    lab.shard("data/train.bin", &support::tokens(4000, 1));
    let id = run.file_name().and_then(|name| name.to_str()).expect("a name").to_owned();
    let mut live = lab.start(["--resume", &id]);
    let before = rows(&run);
    support::wait("more steps", || rows(&run) > before + 5);
    live.kill();
}

#[test]
fn sampling_from_a_run_without_a_checkpoint_is_a_mistake_and_from_a_damaged_one_a_failure() {
    let lab = Lab::new();
    let run = lab.crash("runs", &[], "csv.before_row:2");
    let path = run.display().to_string();
    lab.run(["sample", &path, "--prompt", "!"]).expect(2).says(&["has no checkpoint", "--resume", "--fresh"]);
    let run = killed(&lab, "damaged");
    for step in ["step-00000004", "step-00000008"] {
        fs::write(run.join("checkpoints").join(step).join("state.json"), "{").expect("written");
    }
    let path = run.display().to_string();
    lab.run(["sample", &path, "--prompt", "!"]).expect(1).says(&["none of its checkpoints is intact"]);
}

#[test]
fn a_model_is_taken_from_a_checkpoint_of_its_own_run_and_damage_to_newer_ones_is_said() {
    let lab = Lab::new();
    let run = killed(&lab, "runs");
    let path = run.display().to_string();
    let newest = run.join("checkpoints/step-00000008");
    let own = fs::read(newest.join("model.safetensors")).expect("weights");
    fs::write(newest.join("model.safetensors"), &own[1..]).expect("written");
    let said = lab.run(["sample", &path, "--prompt", "!", "--tokens", "2"]);
    said.expect(0).says(&["step-00000008", "model.safetensors"]);
    let states =
        [format!("{{run=\"{path}\"}}"), format!("{{run=\"{path}@latest\"}}"), format!("{path}@latest")];
    for from in states {
        let from = format!("model.init_from={from}");
        let said = lab.run(["-q", "tiny.toml", "--dry-run", "--set", &from]);
        said.expect(0).says(&["step-00000008 cannot be used", "model.safetensors"]);
    }

    let other = lab.crash("others", &[KEEP[0], "seed=7"], "csv.before_row:12");
    fs::remove_dir_all(&newest).expect("removed");
    fs::rename(other.join("checkpoints/step-00000008"), &newest).expect("moved");
    let [at, checkpoint] = [format!("{path}@8"), newest.display().to_string()];
    for named in [&path, &at, &checkpoint] {
        for args in [vec!["sample", named, "--prompt", "!"], vec!["eval", named, "--data", "data/val.bin"]] {
            lab.run(&args).expect(1).says(&["belongs to an experiment with hash", "directory of its own"]);
        }
    }
    let branch = format!("model.init_from={{run=\"{path}\",step=8}}");
    lab.run(["tiny.toml", "--set", &branch]).expect(1).says(&["belongs to an experiment with hash"]);
    // in a directory that is no run's it is a checkpoint as any other
    fs::rename(&newest, lab.path("elsewhere")).expect("moved");
    lab.run(["sample", "elsewhere", "--prompt", "!", "--tokens", "2"]).expect(0);
}

#[test]
fn a_checkpoint_that_is_named_gives_the_model_that_was_saved_or_none() {
    let lab = Lab::new();
    let run = lab.train_in("runs", &[KEEP, &["checkpoint.keep_best=true"]].concat());
    let best = record(&run)["best_checkpoint"]["step"].as_u64().expect("a best one");
    let path = run.display().to_string();
    let checkpoint = format!("{path}/checkpoints/step-{best:08}");
    let weights = format!("{checkpoint}/model.safetensors");
    let names = [format!("{path}@best"), format!("{path}@{best}"), checkpoint.clone(), weights.clone()];
    let commands: Vec<Vec<String>> = names
        .iter()
        .flat_map(|named| {
            let begin = format!("model.init_from={named}");
            [
                vec!["sample", named, "--prompt", "!", "--tokens", "2"],
                vec!["eval", named, "--data", "data/val.bin"],
                vec!["verify", "tiny.toml", "--steps", "1", "--set", &begin],
                vec!["tiny.toml", "--dry-run", "--set", &begin],
            ]
            .map(|words| words.into_iter().map(str::to_owned).collect())
        })
        .collect();
    let flip: fn(&mut Vec<u8>) = |bytes| {
        let at = bytes.len() - 200;
        bytes[at] ^= 1;
    };
    let damages: [(&str, Damage); 3] = [
        ("model.safetensors", Box::new(flip)),
        ("config.json", Box::new(|bytes| bytes.push(b'\n'))),
        ("state.json", Box::new(flip)),
    ];
    for (file, damage) in damages {
        let damaged = Path::new(&checkpoint).join(file);
        let own = fs::read(&damaged).expect("read");
        edit(&damaged, damage);
        for command in &commands {
            lab.run(command).expect(1).says(&[file, "is not what was saved", "RUN@latest"]);
        }
        fs::write(&damaged, own).expect("restored");
    }
    // a model does without the optimizer's states
    fs::remove_file(Path::new(&checkpoint).join("optimizer.safetensors")).expect("removed");
    for command in &commands {
        lab.run(command).expect(0);
    }
    fs::remove_file(Path::new(&checkpoint).join("state.json")).expect("removed");
    for command in &commands {
        lab.run(command).expect(1).says(&["state.json", "is not what was saved"]);
    }
    // in a directory that is no run's, what has no state is a model from elsewhere
    fs::rename(&checkpoint, lab.path("step-00000099")).expect("moved");
    lab.run(["sample", "step-00000099", "--prompt", "!", "--tokens", "2"]).expect(0);
}

#[test]
fn a_recipe_in_a_run_that_is_no_file_is_named() {
    let lab = Lab::new();
    let run = killed(&lab, "runs");
    fs::remove_file(run.join("recipe.toml")).expect("removed");
    std::os::unix::fs::symlink("/dev/zero", run.join("recipe.toml")).expect("a link");
    lab.run(tiny("runs", KEEP)).expect(1).says(&["recipe.toml", "not a regular file"]);
}

#[test]
fn checkpoints_that_become_a_link_are_not_written_and_nothing_behind_it_is_deleted() {
    let lab = Lab::new();
    let victim = killed(&lab, "victim").join("checkpoints");
    let (live, gate) = lab.held(lab.command(tiny("runs", &["checkpoint.keep=1"])), "csv.before_row:8");
    gate.reached();
    let run = lab.only_run("runs");
    fs::rename(run.join("checkpoints"), run.join("mine")).expect("moved");
    std::os::unix::fs::symlink(&victim, run.join("checkpoints")).expect("a link");
    let before = everything(&victim);
    gate.open();
    live.end().expect(1).says(&["checkpoints", "symbolic link"]);
    assert!(everything(&victim) == before);
}

#[test]
fn a_log_of_very_many_columns_and_a_recipe_of_many_patterns_keep_nobody_waiting() {
    let lab = Lab::new();
    let run = lab.train(&[]);
    let columns = 200_000;
    let text = format!("step,tokens,val_loss{}\n1{}\n", ",a".repeat(columns), ",1".repeat(columns + 2));
    fs::write(run.join("val.csv"), text).expect("written");
    let recipe = fs::read_to_string(run.join("recipe.toml")).expect("a recipe");
    let patterns: Vec<String> = (0..300).map(|i| format!("\"/**/x{i}*\"")).collect();
    let line = recipe.lines().find(|line| line.starts_with("train = ")).expect("a line");
    let edited = recipe.replace(line, &format!("train = [{}]", patterns.join(", ")));
    fs::write(run.join("recipe.toml"), edited).expect("written");
    for command in ["list", "compare"] {
        let said = lab.run([command].iter().chain((command == "compare").then_some(&"runs")));
        said.expect(0).says(&["val.csv", "recipe.toml", "was edited"]);
    }
}
