//! Words of the command line: changes without `--set`, and what people write for a recipe or a command that is none.

use crate::support;

use std::fs;
use support::{Lab, ended, record};

/// What a refusal says, with exit code 2 and nothing made.
fn refused(lab: &Lab, words: &[&str]) -> String {
    let ended = lab.run(words);
    ended.expect(2);
    assert_eq!((ended.stdout.as_str(), lab.runs("runs")), ("", vec![]), "{words:?}");
    ended.stderr
}

/// What `explain` says of a key under these words.
fn explained(lab: &Lab, words: &[&str]) -> String {
    let ended = lab.run([&["explain"], words].concat());
    ended.expect(0);
    ended.stdout
}

#[test]
fn a_change_needs_no_flag_and_the_last_one_wins() {
    let lab = Lab::new();
    for (words, lr) in [
        (&["tiny.toml", "optimizer.lr=3e-4"][..], "0.0003"),
        (&["optimizer.lr=3e-4", "tiny.toml"], "0.0003"),
        (&["tiny.toml", "optimizer.lr=3e-4", "--set", "optimizer.lr=4e-4"], "0.0004"),
        (&["tiny.toml", "--set", "optimizer.lr=4e-4", "optimizer.lr=3e-4"], "0.0003"),
        (&["--set=optimizer.lr=4e-4", "tiny.toml", "optimizer.lr=3e-4", "--set=optimizer.lr=5e-4"], "0.0005"),
        (&["tiny.toml", "--", "optimizer.lr=3e-4"], "0.0003"),
        (&["tiny.toml", "optimizer.lr = 3e-4"], "0.0003"),
    ] {
        let text = explained(&lab, &[&["--format", "json"], words].concat());
        let found: serde_json::Value = serde_json::from_str(&text).unwrap_or_default();
        let shown = found["optimizer.lr"]["value"].to_string();
        assert_eq!(shown, lr, "{words:?}");
    }
    // an `explain` of one key, with the changes anywhere
    for words in [
        ["tiny.toml", "optimizer.lr", "optimizer.lr=7e-4"],
        ["tiny.toml", "optimizer.lr=7e-4", "optimizer.lr"],
    ] {
        assert!(explained(&lab, &words).contains("0.0007  <- in force"), "{words:?}");
    }
}

#[test]
fn every_command_about_recipes_takes_them() {
    let lab = Lab::new();
    let set = lab.train_in("set", &["schedule.max_steps=3", "optimizer.lr=2e-2"]);
    let ended = lab.run(["tiny.toml", "schedule.max_steps=3", "optimizer.lr=2e-2", "--runs-dir", "bare"]);
    let bare = lab.run_of(ended.expect(0));
    assert_eq!(bare.file_name(), set.file_name(), "the same run");
    for command in ["plan", "explain", "verify", "bench"] {
        let ended = lab.run([command, "tiny.toml", "model.n_layer=0"]);
        ended.expect(2).says(&[" | model.n_layer=0\n", "out of range"]);
    }
    // continuing a run takes them too, and no recipe
    let crashed = lab.crash("again", &[], "csv.before_row:7");
    let run = crashed.display().to_string();
    let ended = lab.run(["--resume", &run, "compute.threads=2"]);
    ended.expect(0).says(&["with 2 threads"]);
    assert_eq!(record(&crashed)["sessions"][1]["overrides"][0], "compute.threads=2");
    lab.run(["--resume", &run, "tiny.toml"]).expect(2).says(&["takes no other", "tiny.toml"]);
}

#[test]
fn a_wrong_change_is_shown_as_it_was_written() {
    let lab = Lab::new();
    let said = refused(&lab, &["tiny.toml", "optimizer.lr=fast", "model.n_layr=3"]);
    assert!(said.contains(" | optimizer.lr=fast\n |              ^^^^ expected a number"), "{said}");
    assert!(said.contains(" | model.n_layr=3\n | ^^^^^^^^^^^^ did you mean `n_layer`?"), "{said}");
    // a name of nanoGPT's, of something that is stated otherwise here
    for set in ["optimizer.min_lr=6e-5", "schedule.min_lr=6e-5"] {
        lab.run(["plan", "tiny.toml", set]).expect(2).says(&[
            "min_lr_ratio`?",
            "`schedule.min_lr_ratio`: the final learning rate as a fraction of the peak",
        ]);
    }
    assert!(!said.contains("--set"), "{said}");
}

#[test]
fn a_file_with_an_equals_sign_is_a_recipe() {
    let lab = Lab::new();
    let recipe = fs::read_to_string(lab.path("tiny.toml"))
        .expect("read")
        .replace("name = \"tiny\"\n", "name = \"a\"\n");
    // one that is called like a change of a key is named by a path
    for (file, word) in [("seed=7", "./seed=7"), ("mine=7", "mine=7")] {
        lab.write(file, &recipe);
        let ended = lab.run(["explain", word, "seed"]);
        assert!(ended.expect(0).stdout.contains("1337"), "{}", ended.stdout);
    }
    // one that is missing is still called a recipe where it looks like one
    for word in ["sweep/lr=3e-4", "sweep=3.toml"] {
        let said = refused(&lab, &["tiny.toml", word]);
        assert!(said.contains(&format!("cannot read recipe `{word}`: no such file")), "{said}");
    }
    // a key of that name is a key
    assert!(refused(&lab, &["tiny.toml", "data.train=none.toml"]).contains("data.train"));
}

#[test]
fn several_values_are_a_sweep() {
    let lab = Lab::new();
    for words in [
        &["tiny.toml", "optimizer.lr=3e-4,6e-4"][..],
        &["tiny.toml", "--set", "optimizer.lr=3e-4,6e-4"],
        &["tiny.toml", "optimizer.lr=3e-4, 6e-4"],
    ] {
        let said = refused(&lab, words);
        for part in [
            "`optimizer.lr` takes one value, not 2",
            "^^^^^^^^",
            "for lr in 3e-4 6e-4; do runner RECIPE optimizer.lr=$lr; done",
            "recipes/sweeps/README.md",
        ] {
            assert!(said.contains(part), "{words:?}: no `{part}` in\n{said}");
        }
    }
    for word in
        ["seed=1,2,3", "compute.precision=fp32,bf16", "batch.micro_batch=2,4", "data.shuffle=true,false"]
    {
        let said = refused(&lab, &["tiny.toml", word]);
        assert!(said.contains("takes one value, not"), "{said}");
    }
    // what is no list of values has its own message
    for word in ["optimizer.lr=3e-4,fast", "optimizer.betas=0.9,0.95", "optimizer.lr=,"] {
        assert!(!refused(&lab, &["tiny.toml", word]).contains("takes one value"), "{word}");
    }
    // and a comma in a text is a comma
    assert!(
        explained(&lab, &["tiny.toml", "sample.every=1", "sample.prompt=a, b", "sample"])
            .contains("\"a, b\"")
    );
}

#[test]
fn what_was_meant_as_a_command_is_told() {
    let lab = Lab::new();
    for (words, part) in [
        (
            &["train", "tiny.toml"][..],
            "there is no command `train`, training needs none: write `runner tiny.toml`",
        ),
        (&["train"], "write `runner RECIPE`"),
        (&["pln", "tiny.toml"], "there is no command `pln`: did you mean `runner plan tiny.toml`?"),
        (&["Compare", "x"], "did you mean `runner compare x`?"),
        (&["evaluate", "x"], "cannot read recipe `evaluate`: no such file, and no command has that name"),
        (&["seed=3"], "no recipe is named"),
        (&["plan", "seed=3"], "no recipe is named: write `runner plan RECIPE`"),
        (
            &["plan", "tiny.toml", "other.toml"],
            "`runner plan` takes one recipe, not 2: `tiny.toml`, `other.toml`",
        ),
    ] {
        let said = refused(&lab, words);
        assert!(said.contains(part), "{words:?}: {said}");
    }
    // a recipe of that name is a recipe
    lab.write("train", fs::read(lab.path("tiny.toml")).expect("read"));
    lab.run(["train", "--runs-dir", "named"]).expect(0);
}

#[test]
fn a_recipe_is_found_by_its_stem() {
    let lab = Lab::new();
    lab.write("recipes/quickstart.toml", "");
    // rather than a command of nearly the same name
    lab.write("plans.toml", "");
    for (word, meant) in [
        ("plans", "plans.toml"),
        ("tiny", "tiny.toml"),
        ("quickstart", "recipes/quickstart.toml"),
        ("quickstart.toml", "recipes/quickstart.toml"),
        ("quikstart", "recipes/quickstart.toml"),
        ("tinny.toml", "tiny.toml"),
        ("recipes/quickstart", "quickstart.toml"),
    ] {
        let said = refused(&lab, &[word]);
        let part = format!("did you mean `{meant}`?");
        assert!(said.contains(&format!("cannot read recipe `{word}`")) && said.contains(&part), "{said}");
        lab.run(["plan", word]).expect(2).says(&[&part]);
    }
}

#[test]
fn a_run_is_no_recipe() {
    let lab = Lab::new();
    let run = lab.train_in("kept", &["schedule.max_steps=4"]);
    let id = run.file_name().and_then(|name| name.to_str()).expect("an id");
    let path = format!("kept/{id}");
    for words in [&[path.as_str()][..], &["tiny.toml", &path], &[id, "--runs-dir", "kept"]] {
        let ended = lab.run(words);
        let resume = format!("`runner --resume {path}` continues it");
        ended.expect(2).says(&[
            "is a run, not a recipe",
            &resume,
            "runner compare",
            "runner sample",
            "recipe.toml",
        ]);
    }
    lab.run(["plan", &path]).expect(2).says(&[&format!("write `runner plan {path}/recipe.toml`")]);
}

#[test]
fn an_option_called_like_a_key_is_answered_with_how_keys_are_set() {
    let lab = Lab::new();
    lab.run(["tiny.toml", "--lr", "1e-3"])
        .expect(2)
        .says(&["unexpected argument '--lr'", "keys of a recipe are set behind it: 'optimizer.lr=VALUE'"]);
    lab.run(["plan", "tiny.toml", "--max-steps=3"]).expect(2).says(&["'schedule.max_steps=VALUE'"]);
    let other = lab.run(["tiny.toml", "--nonsense"]);
    assert!(!other.expect(2).stderr.contains("keys of a recipe"), "{}", other.stderr);
}

#[test]
fn a_tilde_behind_an_equals_sign_is_the_home_directory() {
    let lab = Lab::new();
    fs::create_dir(lab.path("home")).expect("a directory");
    let mut command = lab.command(["tiny.toml", "--runs-dir=~/runs"]);
    command.env("HOME", lab.path("home"));
    let run = ended(command).expect(0).stdout.trim().to_owned();
    assert!(run.starts_with(&lab.path("home/runs").display().to_string()), "{run}");
    assert!(!lab.path("~").exists());
}

#[test]
fn a_negative_number_is_the_value_of_its_option() {
    let lab = Lab::new();
    let cases = [
        (&["sample", "x", "--temperature", "-1"][..], "--temperature -1 is not a number from 0 up"),
        (&["sample", "x", "--seed", "-1"], "invalid value '-1' for '--seed <SEED>'"),
        (&["bench", "builtin:quickstart", "--steps", "-5"], "-5 is not in 1..=1000000"),
    ];
    for (args, said) in cases {
        lab.run(args).expect(2).says(&[said]);
    }
}

#[test]
fn a_variable_with_one_underscore_is_not_ignored() {
    let lab = Lab::new();
    let under = |name: &str| {
        let mut command = lab.command(["plan", "tiny.toml"]);
        command.env(name, "3");
        support::ended(command)
    };
    under("RUNNER_MODEL_N_LAYER").expect(2).says(&["RUNNER_MODEL_N_LAYER", "write RUNNER_MODEL__N_LAYER"]);
    under("RUNNER_OPTIMIZER_LR").expect(2).says(&["write RUNNER_OPTIMIZER__LR"]);
    // a variable of another program
    under("RUNNER_TEMP").expect(0);
}

#[test]
fn what_people_write_beside_the_point_is_answered_with_what_was_meant() {
    let lab = Lab::new();
    lab.write("story.txt", "It was a dark and stormy night.\n".repeat(300));
    let said = refused(&lab, &["tiny.toml", "optimizer.lr", "=", "3e-4"]);
    assert!(said.contains("write it without spaces, `optimizer.lr=3e-4`"), "{said}");
    let said = refused(&lab, &["compare"]);
    assert!(said.contains("no runs are named") && !said.contains("Usage"), "{said}");
    // a text has an error in every line
    let said = refused(&lab, &["story.txt"]);
    assert!(said.matches("\nerror:").count() < 12 && !said.contains("more problems"), "{said}");
    // the dimensions would come from weights that are not there
    lab.write(
        "from.toml",
        "[data]\ntrain = \"data/train.bin\"\n[schedule]\nmax_steps = 3\n[batch]\ntotal_tokens = 512\n",
    );
    let said = refused(&lab, &["from.toml", "model.init_from=nothere"]);
    assert!(said.contains("`nothere` does not exist, so the dimensions are the defaults"), "{said}");
    let said = refused(&lab, &["tiny.toml", "data.train=nothere.bin"]);
    assert!(said.contains("which is relative to the current directory"), "{said}");
}

#[test]
fn a_run_that_is_finished_is_not_said_to_have_a_branch_and_a_run_is_not_taken_for_weights() {
    let lab = Lab::new();
    let run = lab.train(&[]);
    let id = run.file_name().expect("a name").to_str().expect("UTF-8").to_owned();
    let refused = lab.run(["--resume", &id, "optimizer.lr=2e-2"]);
    refused.expect(2).says(&["a resumed run cannot change optimizer.lr"]);
    assert!(!refused.stderr.contains("init_from"), "{}", refused.stderr);
    // with more steps there is one
    let refused = lab.run(["--resume", &id, "schedule.max_steps=24"]);
    refused.expect(2).says(&["--set schedule.max_steps=24", "model.init_from={run="]);
    let from = format!("model.init_from=runs/{id}");
    lab.run(["tiny.toml", &from, "seed=2"]).expect(2).says(&["is a run", "for its weights, name one of its"]);
    // the last part of a key is what the list shows
    lab.train(&["optimizer.lr=2e-2"]);
    let listed = lab.run(["list", "--sort", "lr", "--format", "csv"]);
    listed.expect(0);
    let rows: Vec<&str> = listed.stdout.lines().skip(1).collect();
    assert!(rows.len() == 2 && rows[0].contains("0.01") && rows[1].contains("0.02"), "{}", listed.stdout);
}
