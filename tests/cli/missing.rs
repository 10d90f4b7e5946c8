//! Data that are not there: all of them are named at once, with where they were looked for and how to get them; and
//! paths below the home directory.

use crate::support;

use std::fs;
use std::path::Path;
use support::{Ended, Lab, ended, tiny, tokens};

fn refused(lab: &Lab, sets: &[&str]) -> Ended {
    let ended = lab.run(tiny("runs", sets));
    ended.expect(2);
    assert_eq!((ended.stdout.as_str(), lab.runs("runs")), ("", vec![]));
    ended
}

#[test]
fn everything_that_is_missing_is_named_at_once() {
    let lab = Lab::new();
    let sets = [
        "data.train=[\"none.bin\", \"data/train.bin\", \"no-*.bin\", \"builtin:latin\"]",
        "data.val=gone.txt",
        "model.init_from=weights",
    ];
    let missing = refused(&lab, &sets);
    for part in [
        "data.train: `",
        "none.bin` does not exist: check the path, which is relative to the current directory",
        "no-*.bin` matches no file",
        "data.train: `builtin:latin` is not built in",
        "gone.txt` does not exist",
        "model.init_from: ",
    ] {
        missing.says(&[part]);
    }
    assert_eq!(missing.stderr.matches("error: ").count(), 5, "{}", missing.stderr);
    // two sets that are there and damaged are two problems too
    lab.write("odd.bin", [1; 3]);
    refused(&lab, &["data.train=odd.bin", "data.val=odd.bin"]).says(&["data.train: `", "data.val: `"]);
    // and so are those of two recipes
    lab.write("other.toml", "extends = \"tiny.toml\"\nname = \"other\"\ndata.val = \"far.bin\"\n");
    let both = lab.run(["tiny.toml", "other.toml", "data.train=near.bin"]);
    both.expect(2).says(&["near.bin` does not exist", "far.bin` does not exist"]);
}

#[test]
fn a_name_that_no_file_can_have_is_not_compared_with_those_that_are_there() {
    let lab = Lab::new();
    for i in 0..200 {
        lab.write(&format!("many/{}{i}", "b".repeat(240)), "");
    }
    let name = "a".repeat(100_000);
    for pattern in [format!("many/{name}*"), format!("many/{name}")] {
        lab.write("long.toml", format!("extends = \"tiny.toml\"\ndata.train = \"{pattern}\"\n"));
        // which would take minutes
        lab.run(["long.toml", "--dry-run"]).expect(2).says(&["error: data.train: "]);
    }
}

#[test]
fn a_pattern_enters_directories_once_however_often_it_says_so() {
    let lab = Lab::new();
    (0..50).for_each(|i| fs::create_dir(lab.path(i.to_string())).expect("a directory"));
    lab.write("round.toml", format!("extends = \"tiny.toml\"\ndata.train = \"{}x\"\n", "**/".repeat(60_000)));
    lab.run(["round.toml", "--dry-run"]).expect(2).says(&["error: data.train: "]);
}

#[test]
fn words_that_other_programs_take_for_weights_are_answered() {
    let lab = Lab::new();
    for (word, part) in [
        (
            "gpt2-xl",
            "download `config.json` and `model.safetensors` of `gpt2-xl` into a directory and name that",
        ),
        ("scratch", "leave the key out, and training begins from random weights"),
        ("resume", "a run that was interrupted goes on by itself"),
        ("mine", "there is no such file or directory"),
    ] {
        let ended = refused(&lab, &[&format!("model.init_from={word}")]);
        ended.says(&["model.init_from: the weights `", part]);
        assert!(!ended.stderr.contains("os error"), "{}", ended.stderr);
    }
}

#[test]
fn the_directory_is_named_with_what_it_holds_instead() {
    let lab = Lab::new();
    let at = |name: &str| lab.dir().canonicalize().expect("a directory").join(name).display().to_string();
    for name in
        ["web/edu_train_000001.bin", "web/edu_train_000002.bin", "web/edu_val_000000.bin", "other/x.bin"]
    {
        lab.shard(name, &tokens(400, 1));
    }
    fs::create_dir(lab.path("void")).expect("a directory");
    for (set, part) in [
        (
            "data.train=web/train-*.bin",
            format!(
                "the directory `{}` has similar names: `edu_train_000001.bin`, `edu_train_000002.bin`",
                at("web")
            ),
        ),
        ("data.val=web/edu_vall_000000.bin", "similar names: `edu_val_000000.bin`, `edu_".to_owned()),
        ("data.train=other/train-*.bin", format!("`{}` has no similar name, but `x.bin`", at("other"))),
        ("data.train=void/train-*.bin", format!("the directory `{}` holds no data", at("void"))),
        ("data.train=nowhere/train-*.bin", format!("there is no directory `{}`", at("nowhere"))),
        ("data.train=data/train.npy", format!("`{}` has similar names: `train.bin`", at("data"))),
    ] {
        refused(&lab, &[set]).says(&[&part]);
    }
}

#[test]
fn a_run_that_was_moved_away_from_its_data_says_how_it_finds_them() {
    let lab = Lab::new();
    let run = lab.train(&[]);
    fs::create_dir_all(lab.path("far/away")).expect("a directory");
    fs::rename(&run, lab.path("far/away/run")).expect("moved");
    let what = ["data.train: `", "if this run was moved without its data", "--set data.train="];
    lab.run(["--resume", "far/away/run"]).expect(2).says(&what);
    let recipe = lab.path("far/away/run/recipe.toml");
    let text = fs::read_to_string(&recipe).expect("a recipe");
    lab.run(["eval", "far/away/run"]).expect(2).says(&[
        "data.val: `",
        "if this run was moved",
        "recipe.toml:",
    ]);
    let more = ["--set", "data.train=data/train.bin", "--set", "data.val=data/val.bin"];
    lab.run(["--resume", "far/away/run"].iter().chain(&more)).expect(0).says(&["already finished"]);
    fs::write(&recipe, text.replace("../../data", "../../../data")).expect("corrected");
    lab.run(["eval", "far/away/run"]).expect(0);
    lab.run(["--resume", "far/away/run"]).expect(0).says(&["already finished"]);
}

#[test]
fn for_shipped_recipes_the_command_that_gets_the_data_is_named() {
    let lab = Lab::new();
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    // a copy of the repository without data
    for part in ["recipes", "recipes/base", "recipes/data", "datasets"] {
        for entry in fs::read_dir(root.join(part)).expect("a directory").filter_map(Result::ok) {
            let name = format!("{part}/{}", entry.file_name().to_string_lossy());
            if name.ends_with(".toml") || name.ends_with("README.md") {
                for copy in [name.clone(), format!("a b/{name}")] {
                    lab.write(&copy, fs::read(entry.path()).expect("read"));
                }
            }
        }
    }
    let readme = fs::read_to_string(root.join("datasets/README.md")).expect("read");
    for (recipe, name, out, heading) in [
        ("gpt2-124m.toml", "fineweb-edu-10b", "datasets/fineweb-edu", "FineWeb-Edu"),
        ("gpt3-small.toml", "fineweb-edu-10b", "datasets/fineweb-edu", "FineWeb-Edu"),
        ("tinyshakespeare.toml", "tinyshakespeare", "datasets", "Tiny Shakespeare"),
    ] {
        for dir in ["", "a b/"] {
            let out = if dir.is_empty() { String::new() } else { format!(" --out '{dir}{out}'") };
            let ended = lab.run([
                &format!("{dir}recipes/{recipe}"),
                "compute.device=cpu",
                "model.n_layer=1",
                "batch.micro_batch=1",
            ]);
            ended.expect(2).says(&[
                "data.train: ",
                &format!("`runner data fetch {name}{out}` gets them: "),
                &format!("\"{heading}\" in {dir}datasets/README.md says more"),
            ]);
        }
        assert!(readme.contains(&format!("\n## {heading}\n")), "{heading}");
    }
    // a text of another name is none of them
    let other = lab.run(["tiny.toml", "data.train=datasets/tinyshakespeare-mine.txt"]);
    assert!(!other.expect(2).stderr.contains("runner data fetch"), "{}", other.stderr);
}

#[test]
fn a_tilde_is_the_home_directory() {
    let lab = Lab::new();
    let home = lab.path("home");
    for name in ["train.bin", "val.bin"] {
        lab.write(&format!("home/sets/{name}"), fs::read(lab.path("data").join(name)).expect("read"));
    }
    let text = fs::read_to_string(lab.path("tiny.toml")).expect("read");
    lab.write("home/base.toml", text.replace("\"data/", "\"~/sets/"));
    lab.write("mine.toml", "extends = \"~/base.toml\"\nname = \"tiny\"\n");
    let start = |words: &[&str], home: Option<&Path>| {
        let mut command = lab.command(words);
        match home {
            Some(home) => command.env("HOME", home),
            None => command.env_remove("HOME"),
        };
        ended(command)
    };
    let plain = lab.train_in("plain", &["schedule.max_steps=4"]);
    let tilde = start(&["mine.toml", "schedule.max_steps=4"], Some(&home));
    let run = lab.run_of(tilde.expect(0));
    assert_eq!(run.file_name(), plain.file_name(), "the same experiment");
    // the run does not depend on whose home it was
    let recipe = fs::read_to_string(run.join("recipe.toml")).expect("read");
    assert!(recipe.contains("\"../../home/sets/train.bin\"") && !recipe.contains('~'), "{recipe}");
    start(&["--resume", run.to_str().expect("UTF-8")], None).expect(0).says(&["already finished"]);
    // on the command line, as a glob, and for weights
    let words = ["tiny.toml", "schedule.max_steps=4", "data.train=~/sets/tr*.bin", "--runs-dir", "globs"];
    let globbed = lab.run_of(start(&words, Some(&home)).expect(0));
    assert_eq!(globbed.file_name(), plain.file_name());
    start(&["tiny.toml", "model.init_from=~/none"], Some(&home)).expect(2).says(&["home/none"]);
    for (words, home, parts) in [
        (
            &["mine.toml"][..],
            None,
            &["`extends` begins with `~`, but HOME names no directory", "mine.toml:1:11"][..],
        ),
        (
            &["tiny.toml", "data.train=~/x.bin"],
            None,
            &["`data.train` begins with `~`, but HOME", " | data.train=~/x.bin"],
        ),
        (
            &["tiny.toml", "data.val=~me/x.bin"],
            Some(&*home),
            &["`data.val` begins with `~` and a name", "./~"],
        ),
        (
            &["tiny.toml", "model.init_from=~me"],
            Some(&*home),
            &["`model.init_from` begins with `~` and a name"],
        ),
    ] {
        start(words, home).expect(2).says(parts);
    }
}
