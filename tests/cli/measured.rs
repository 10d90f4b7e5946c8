//! What evaluations of a run measure besides `val_loss`: named sets of validation data, and tasks.

use crate::support;

use serde_json::{Value, json};
use std::fs;
use std::path::{Path, PathBuf};
use support::{Lab, column, essence, record, rows, tiny, val_csv, without};

const SETS: [&str; 4] = [
    "data.tokenizer=bytes",
    "data.train=a.txt",
    "data.val={ web = \"v.txt\", books = \"w.txt\" }",
    "data.val_main=web",
];
const TASKS: [&str; 5] = [
    "data.tokenizer=bytes",
    "data.train=a.txt",
    "data.val=v.txt",
    "eval.hellaswag=hellaswag.jsonl",
    "eval.tasks=[\"choices.jsonl\", \"last-words.jsonl\"]",
];
/// Their columns.
const MEASURED: [&str; 6] = [
    "hellaswag_acc",
    "hellaswag_acc_norm",
    "choices_acc",
    "choices_acc_norm",
    "last_words_acc",
    "last_words_perplexity",
];

fn lab() -> Lab {
    let lab = Lab::new();
    lab.write("a.txt", "so she sang, so he sang; so they sang of it all\n".repeat(60));
    lab.write("v.txt", "so they sang of it all, so he sang\n".repeat(40));
    lab.write("w.txt", "of all of it he sang; and so it was, they said\n".repeat(20));
    let ending = |i: usize, j: usize| ["sang", "he", "it all", "so they sang"][(i + j) % 4];
    let hellaswag = (0..13).map(|i| {
        let endings = format!("{:?}", [ending(i, 0), ending(i, 1), ending(i, 2), ending(i, 3)]);
        format!(
            "{{\"ctx\": \"so she{}\", \"endings\": {endings}, \"label\": {}}}\n",
            " sang".repeat(i % 4),
            i % 4
        )
    });
    lab.write("hellaswag.jsonl", hellaswag.collect::<String>());
    let choices = "{\"context\": \"so\", \"endings\": [\"it\", \"he\", \"she\"], \"label\": 1}\n\
                   {\"context\": \"they\", \"endings\": [\"sang\", \"said\"], \"label\": 0}\n";
    lab.write("choices.jsonl", choices);
    lab.write("last-words.jsonl", "{\"text\": \"so she sang and he sang\"}\n".repeat(3));
    lab
}

fn header(run: &Path) -> String {
    fs::read_to_string(run.join("val.csv")).expect("a log").lines().next().expect("a header").to_owned()
}

/// The metrics of `runner eval` of a run.
fn evaluated(lab: &Lab, run: &Path, args: &[&str]) -> Value {
    let run = run.to_str().expect("a path of this test");
    let common = ["eval", run, "--threads", "1", "--device", "cpu", "--format", "json"];
    let found = lab.run(common.iter().chain(args));
    let mut found: Value = serde_json::from_str(&found.expect(0).stdout).expect("JSON");
    found[0].take()
}

fn last(run: &Path, name: &str) -> f64 {
    val_csv(run).cells(name).last().expect("a row").parse().expect("a number")
}

#[test]
fn each_named_set_has_a_column_and_one_decides() {
    let lab = lab();
    let run = lab.train(&SETS);
    assert_eq!(header(&run), "step,tokens,val_loss,val_loss_books,val_loss_web");
    assert_eq!(val_csv(&run).numbers("val_loss"), val_csv(&run).numbers("val_loss_web"));
    // each set as if it were alone
    for (set, file) in [("books", "data.val=w.txt"), ("web", "data.val=v.txt")] {
        let alone = lab.train_in("alone", &[&SETS[..2], &[file]].concat());
        let (own, named) = (val_csv(&alone).numbers("val_loss"), format!("val_loss_{set}"));
        assert_eq!(val_csv(&run).numbers(&named), own, "{set}");
        assert_eq!(column(&alone, "loss"), column(&run, "loss"), "{set}");
    }
    let other = lab.train(&[&SETS[..3], &["data.val_main=books"]].concat());
    assert_eq!(val_csv(&other).numbers("val_loss"), val_csv(&run).numbers("val_loss_books"));
    assert_ne!(other, run);
    // afterwards too
    let metrics = &evaluated(&lab, &run, &[])["metrics"];
    for name in ["val_loss", "val_loss_books"] {
        let (found, logged) = (metrics[name].as_f64().expect("a loss"), last(&run, name));
        assert!((found - logged).abs() < 1e-5, "{name}: {found} is not {logged}");
    }
    // more than the smaller set has, and not more than the main one
    evaluated(&lab, &run, &["--tokens", "1376"]);
    lab.run(["compare", "runs", "--metrics", "val_loss_books"]).expect(0);
}

#[test]
fn the_best_checkpoint_is_that_of_the_main_set() {
    let lab = lab();
    let more = ["checkpoint.keep_best=true", "checkpoint.keep=1", "eval.every=1", "optimizer.lr=0.05"];
    let run = lab.train(&[&SETS[..], &more].concat());
    let losses = val_csv(&run).numbers("val_loss_web");
    let lowest = losses.iter().copied().reduce(f64::min).expect("evaluations");
    let best = record(&run)["best_checkpoint"]["val_loss"].as_f64().expect("a loss");
    assert_eq!(best as f32, lowest as f32);
}

#[test]
fn tasks_are_scored_as_runner_eval_scores_them() {
    let lab = lab();
    let run = lab.train(&TASKS);
    assert_eq!(header(&run), format!("step,tokens,val_loss,{}", MEASURED.join(",")));
    let files = ["--hellaswag", "hellaswag.jsonl", "--tasks", "choices.jsonl", "--tasks", "last-words.jsonl"];
    let found = evaluated(&lab, &run, &files);
    for name in MEASURED {
        let (after, logged) = (found["metrics"][name].as_f64().expect("a score"), last(&run, name));
        assert!((after - logged).abs() <= 1e-4 * after.abs(), "{name}: {after} is not {logged}");
    }
    // what is measured changes nothing else
    let plain = lab.train_in("plain", &TASKS[..3]);
    let models =
        |run: &Path| without(essence(run), ".csv").into_iter().filter(|(name, _)| name.ends_with("tensors"));
    assert!(models(&plain).eq(models(&run)));
    assert_eq!(column(&plain, "loss"), column(&run, "loss"));
    assert_eq!(val_csv(&plain).numbers("val_loss"), val_csv(&run).numbers("val_loss"));
}

#[test]
fn ranks_and_micro_batches_share_the_examples() {
    let lab = lab();
    let alone = lab.train(&[&TASKS[..], &["batch.micro_batch=4"]].concat());
    for (case, more) in [
        &["batch.world_size=2", "batch.micro_batch=1"][..],
        &["batch.world_size=4", "batch.micro_batch=1", "distributed.shard_optimizer=true"],
        &["batch.micro_batch=1"],
    ]
    .iter()
    .enumerate()
    {
        let run = lab.train_in(&format!("runs{case}"), &[&TASKS[..], more].concat());
        for name in MEASURED.iter().chain(&["val_loss"]) {
            for (one, other) in val_csv(&alone).numbers(name).iter().zip(val_csv(&run).numbers(name)) {
                assert!((one - other).abs() <= 1e-3 * one.abs(), "{more:?}, {name}: {one} is not {other}");
            }
        }
    }
}

#[test]
fn a_resumed_run_measures_what_the_undisturbed_one_does() {
    let whole = lab();
    let whole = essence(&whole.train(&[&TASKS[..], &["eval.every=3"]].concat()));
    let lab = lab();
    let sets = [&TASKS[..], &["eval.every=3"]].concat();
    let run = lab.crash("runs", &sets, "csv.before_row:14");
    assert!(rows(&run) < 12);
    lab.run(tiny("runs", &sets)).expect(0).says(&["of 12"]);
    assert!(essence(&run) == whole);
}

#[test]
fn a_resumed_run_may_measure_more_and_less() {
    let lab = lab();
    // with a checkpoint, and before the first one
    for (runs, fault) in [("some", "csv.before_row:12"), ("none", "csv.before_row:4")] {
        let run = lab.crash(runs, &TASKS[..3], fault);
        assert_eq!(header(&run), "step,tokens,val_loss");
        // it dies again before it has saved anything
        let again = lab.crash(runs, &TASKS[..4], "csv.before_row:1");
        assert_eq!(again, run);
        lab.run(tiny(runs, &TASKS[..4])).expect(0);
        assert_eq!(header(&run), "step,tokens,val_loss,hellaswag_acc,hellaswag_acc_norm");
        let text = fs::read_to_string(run.join("val.csv")).expect("a log");
        let first = text.lines().nth(1).expect("a row");
        assert_eq!(first.ends_with(",,"), runs == "some", "{text}");
        assert!((0.0..=1.0).contains(&last(&run, "hellaswag_acc")));
    }
    let run = lab.crash("less", &TASKS, "csv.before_row:12");
    lab.run([tiny("less", &TASKS[..4]), vec!["--dry-run".to_owned()]].concat()).expect(0);
    lab.run(tiny("less", &TASKS[..4])).expect(0);
    assert!(header(&run).ends_with(&MEASURED.join(",")));
    let text = fs::read_to_string(run.join("val.csv")).expect("a log");
    assert!(text.lines().last().expect("a row").ends_with(",,,,"), "{text}");
    let run = lab.crash("every", &TASKS, "csv.before_row:12");
    lab.run([tiny("every", &TASKS), vec!["--set".to_owned(), "eval.every=0".to_owned()]].concat()).expect(0);
    assert!(header(&run).ends_with(&MEASURED.join(",")));
}

#[test]
fn what_was_measured_at_the_step_of_a_checkpoint_stays_where_less_is_measured_now() {
    let lab = lab();
    let sets = [&TASKS[..], &["eval.every=4"]].concat();
    let log = |run: &Path| fs::read_to_string(run.join("val.csv")).expect("a log");
    for (runs, less) in [("never", &["eval.every=0"][..]), ("other", &["eval.every=5"]), ("tasks", &[])] {
        // after the evaluation of the step whose checkpoint is the newest
        let run = lab.crash(runs, &sets, "csv.before_row:13");
        let before = log(&run);
        assert!(
            before.lines().last().is_some_and(|row| row.starts_with("8,") && !row.contains(",,")),
            "{before}"
        );
        let sets = [if less.is_empty() { &TASKS[..4] } else { &TASKS[..] }, &["eval.every=4"], less].concat();
        // nor does a kill take it, before the evaluation is made again
        lab.crash(runs, &sets, "csv.before_row:1");
        lab.run(tiny(runs, &sets)).expect(0);
        assert!(log(&run).starts_with(&before), "{before}{}", log(&run));
    }
}

#[test]
fn a_task_keeps_its_examples() {
    let lab = lab();
    let run = lab.crash("runs", &TASKS, "csv.before_row:12");
    let before = fs::read(run.join("val.csv")).expect("a log");
    let examples = fs::read_to_string(lab.path("hellaswag.jsonl")).expect("a file");
    lab.write("hellaswag.jsonl", examples.replace("\"label\": 2", "\"label\": 3"));
    for more in [&[][..], &["--dry-run"]] {
        let arguments = tiny("runs", &TASKS).into_iter().chain(more.iter().map(|arg| (*arg).to_owned()));
        lab.run(arguments).expect(2).says(&["the task `hellaswag`", "--fresh"]);
    }
    assert_eq!(fs::read(run.join("val.csv")).expect("a log"), before);
    lab.write("hellaswag.jsonl", &examples);
    lab.run(tiny("runs", &TASKS)).expect(0);
    // and so they are when it has finished
    lab.write("hellaswag.jsonl", examples.replace("\"label\": 2", "\"label\": 3"));
    lab.run(tiny("runs", &TASKS)).expect(2).says(&["the task `hellaswag`", "--fresh"]);
}

/// A session that ends before its first evaluation has scored nothing.
#[test]
fn a_task_that_was_never_scored_may_be_corrected() {
    let lab = lab();
    let run = lab.crash("runs", &TASKS[..3], "csv.before_row:9");
    let id = run.file_name().expect("a name").to_string_lossy().into_owned();
    let resume = |fault: &str, more: &[&str]| {
        let sets =
            ["eval.every=300", "checkpoint.every=1"].iter().chain(more).flat_map(|set| ["--set", *set]);
        let mut command = lab.command(["--resume", &id].into_iter().chain(sets));
        command.env("RUNNER_FAULT", fault);
        support::ended(command)
    };
    let tasks = ["eval.tasks=[\"choices.jsonl\"]"];
    assert_eq!(resume("csv.before_row:4", &tasks).code, None);
    let examples = fs::read_to_string(lab.path("choices.jsonl")).expect("a file");
    lab.write("choices.jsonl", examples.replace("\"label\": 1", "\"label\": 2"));
    resume("", &tasks).expect(0);
    assert!(last(&run, "choices_acc").is_finite());
    // now it was
    lab.write("choices.jsonl", &examples);
    lab.run(tiny("runs", &[&TASKS[..3], &tasks].concat())).expect(2).says(&["the task `choices`"]);
}

#[test]
fn a_call_that_is_refused_leaves_the_recipe_on_record() {
    let lab = lab();
    let run = lab.crash("runs", &TASKS, "csv.before_row:12");
    let examples = fs::read_to_string(lab.path("choices.jsonl")).expect("a file");
    lab.write("choices.jsonl", examples.replace("\"label\": 1", "\"label\": 2"));
    lab.run(tiny("runs", &[&TASKS[..], &["checkpoint.keep=1"]].concat()))
        .expect(2)
        .says(&["the task `choices`"]);
    lab.write("choices.jsonl", &examples);
    let recipe = fs::read_to_string(run.join("recipe.toml")).expect("a recipe");
    let edited = recipe.replace("keep = 1\n", "keep = 7\n");
    assert_ne!(edited, recipe);
    fs::write(run.join("recipe.toml"), edited).expect("written");
    let id = run.file_name().expect("a name").to_string_lossy().into_owned();
    assert_ne!(lab.run(["--resume", &id]).says(&["recipe.toml"]).code, Some(0));
    lab.run(["list"]).expect(0).says(&["recipe.toml", "was edited"]);
}

#[test]
fn a_finished_run_says_on_what_it_was_not_scored() {
    let lab = lab();
    let run = lab.train(&TASKS[..4]);
    let again = lab.run(tiny("runs", &TASKS[..4]));
    assert!(!again.expect(0).stderr.contains("not scored"), "{}", again.stderr);
    let more = lab.run(tiny("runs", &TASKS));
    more.expect(0).says(&[
        "already finished",
        "was not scored on choices, last_words",
        "--save --tasks FILE",
    ]);
    assert_eq!(lab.run_of(&more), run);
    // fewer are no reason for a word
    let fewer = lab.run(tiny("runs", &TASKS[..3]));
    assert!(!fewer.expect(0).stderr.contains("not scored"), "{}", fewer.stderr);
}

#[test]
fn a_task_that_is_not_there_is_an_error_unless_it_may_be_missing() {
    let lab = lab();
    let gone = ["eval.hellaswag=gone/hellaswag_val.jsonl"];
    let sets = [&TASKS[..3], &gone].concat();
    let refused = lab.run(tiny("runs", &sets));
    refused.expect(2).says(&["eval.hellaswag", "gone/hellaswag_val.jsonl", "eval.missing"]);
    let sets = [&sets[..], &["eval.missing=skip"]].concat();
    let whole = lab.run(tiny("whole", &sets));
    whole.expect(0).says(&["missing-task", "trains without it"]);
    assert_eq!(header(&lab.run_of(&whole)), "step,tokens,val_loss");
    // it is there when the run goes on
    let run = lab.crash("runs", &sets, "csv.before_row:12");
    fs::create_dir_all(lab.path("gone")).expect("mkdir");
    fs::copy(lab.path("hellaswag.jsonl"), lab.path("gone/hellaswag_val.jsonl")).expect("copied");
    lab.run(tiny("runs", &sets)).expect(0);
    assert!((0.0..=1.0).contains(&last(&run, "hellaswag_acc")));
}

#[test]
fn patterns_name_tasks_and_letters_come_from_all_sets() {
    let lab = lab();
    lab.write("tasks/one.jsonl", fs::read(lab.path("choices.jsonl")).expect("a file"));
    lab.write("tasks/two.jsonl", fs::read(lab.path("last-words.jsonl")).expect("a file"));
    let run = lab.train(&[&TASKS[..3], &["eval.tasks=tasks/*.jsonl"]].concat());
    assert!(header(&run).ends_with(",one_acc,one_acc_norm,two_acc,two_perplexity"));
    lab.run(tiny("runs", &[&TASKS[..3], &["eval.tasks=tasks/*.json"]].concat()))
        .expect(2)
        .says(&["tasks/*.json"]);
    // a letter that is in a named set only
    lab.write("w.txt", "zzz of all of it he sang\n".repeat(30));
    let mut arguments = tiny("letters", &[&["data.tokenizer=char"], &SETS[1..]].concat());
    arguments.extend(["--unset".to_owned(), "model.vocab_size".to_owned()]);
    lab.run(arguments).expect(0);
}

#[test]
fn mistakes_are_named_with_their_keys() {
    let lab = lab();
    lab.write("page.jsonl", "<!DOCTYPE html><html>not here</html>\n");
    lab.write("best_x.jsonl", fs::read(lab.path("choices.jsonl")).expect("a file"));
    lab.write("other/choices.jsonl", fs::read(lab.path("choices.jsonl")).expect("a file"));
    lab.write("long.jsonl", "{\"context\": \"so\", \"endings\": [\"it\", \"he\"], \"label\": 2}\n");
    let (sets, tasks) = (&SETS[..2], &TASKS[..3]);
    for (more, words) in [
        (
            [sets, &["data.val={ web = \"v.txt\", books = \"w.txt\" }"]].concat(),
            &["data.val_main", "books", "web"][..],
        ),
        ([&SETS[..3], &["data.val_main=poems"]].concat(), &["data.val_main", "poems", "\"books\", \"web\""]),
        ([tasks, &["data.val_main=web"]].concat(), &["data.val_main", "no set of that name"]),
        ([sets, &["data.val={ \"a b\" = \"v.txt\" }"]].concat(), &["data.val", "a b"]),
        ([sets, &["data.val={ a = 3 }"]].concat(), &["data.val", "names no files"]),
        ([sets, &["data.val={ a = \"none.txt\" }"]].concat(), &["data.val", "none.txt"]),
        (
            [tasks, &["eval.hellaswag=last-words.jsonl"]].concat(),
            &["eval.hellaswag", "last words", "eval.tasks"],
        ),
        ([tasks, &["eval.tasks=page.jsonl"]].concat(), &["eval.tasks", "page.jsonl"]),
        ([tasks, &["eval.tasks=long.jsonl"]].concat(), &["eval.tasks", "long.jsonl", "line 1"]),
        (
            [tasks, &["eval.tasks=[\"choices.jsonl\", \"other/choices.jsonl\"]"]].concat(),
            &["eval.tasks", "second task called `choices`"],
        ),
        ([tasks, &["eval.tasks=best_x.jsonl"]].concat(), &["eval.tasks", "best_x.jsonl", "another name"]),
        (
            [tasks, &["eval.tokens=64", "eval.batches=2"]].concat(),
            &["eval.tokens", "eval.batches", "keep one"],
        ),
        (vec!["data.val=[]", "eval.tasks=choices.jsonl"], &["eval.tasks", "data.val"]),
    ] {
        let ended = lab.run(tiny("refused", &more));
        ended.expect(2).says(words);
    }
    // patterns that would look at the same names without end
    (0..200).for_each(|i| drop(lab.write(&format!("many/{i:03}.jsonl"), "{}")));
    let patterns = vec!["\"many/*\""; 20_000].join(", ");
    lab.write("many.toml", format!("extends = [\"tiny.toml\"]\neval.every = 4\neval.tasks = [{patterns}]"));
    let args = ["many.toml", "--runs-dir", "refused"];
    lab.run(args).expect(2).says(&["eval.tasks", "many/*", "too many names"]);
    // and files that are none of them
    let more = [tasks, &["eval.tasks=many/*"]].concat();
    lab.run(tiny("refused", &more)).expect(2).says(&["eval.tasks", "many/099.jsonl"]);
    let more = [tasks, &["eval.tasks=[\"many[1]/*\"]"]].concat();
    drop(lab.write("many[1]/none.jsonl", "{}"));
    lab.run(tiny("refused", &more)).expect(2).says(&["eval.tasks", "many[1]/none.jsonl"]);
    let more = [tasks, &["eval.tasks=[\"many/[\"]"]].concat();
    lab.run(tiny("refused", &more)).expect(2).says(&["eval.tasks", "many/["]);
    // everything that is wrong at once
    let both = [tasks, &["eval.hellaswag=none.jsonl", "eval.tasks=page.jsonl"]].concat();
    lab.run(tiny("refused", &both)).expect(2).says(&["none.jsonl", "page.jsonl"]);
}

#[test]
fn tokens_of_an_evaluation_do_not_depend_on_the_batch() {
    let lab = lab();
    // the recipe's eval.batches give way to the stronger layer
    let tokens = [&TASKS[..3], &["eval.tokens=100"]].concat();
    let run = lab.train(&tokens);
    // rows of 32 tokens
    assert_eq!(record(&run)["plan"]["eval_rows"], 4);
    let larger = lab.train_in("larger", &[&tokens[..], &["batch.total_tokens=512"]].concat());
    assert_eq!(record(&larger)["plan"]["eval_rows"], 4);
    let untrained = |run: &Path| val_csv(run).numbers("val_loss")[0];
    assert_eq!(untrained(&larger), untrained(&run));
    // four rows are half a batch
    let batches = lab.train_in("batches", &[&TASKS[..3], &["batch.total_tokens=128"]].concat());
    assert_eq!(untrained(&batches), untrained(&run));
    // losses over more tokens are no better or worse: a run keeps to what it has begun with
    let run = lab.crash("runs", &[&TASKS[..3], &["seed=3"]].concat(), "csv.before_row:12");
    let run = run.to_str().expect("a path of this test");
    for set in ["eval.tokens=100", "eval.batches=3"] {
        let key = set.split('=').next().expect("a key");
        lab.run(["--resume", run, "--set", set]).expect(2).says(&["cannot change", key]);
    }
}

#[test]
fn losses_of_short_files_under_rows_of_other_lengths_are_of_other_tokens() {
    let lab = lab();
    (0..80).for_each(|i| {
        drop(lab.write(&format!("short/{i:02}.txt"), format!("it was number {i:02} that was sung")))
    });
    let set = |val: &str| format!("data.val={{ main = [\"v.txt\"], more = [\"{val}\"] }}");
    let train = |runs: &str, sets: &[&str]| {
        ["model.block_size=8", "model.block_size=16"].map(|length| {
            let common = ["data.tokenizer=bytes", "data.train=a.txt", "eval.tokens=320", length];
            lab.train_in(runs, &[&common, sets].concat())
        })
    };
    let by_row = |runs: &[PathBuf; 2]| runs.each_ref().map(|run| record(run)["by_row"].clone());
    let compared = |runs: &str, metric: &str| {
        let said = lab.run(["compare", runs, "--metrics", metric, "--by", metric]).expect(0).stdout.clone();
        let of_tokens = ["evaluated tokens", "tokens of a row"];
        of_tokens.iter().any(|of| said.contains(&format!("{metric} was measured on different data ({of}")))
    };
    // one file has all its tokens in rows, but for the last ones
    assert_eq!(by_row(&train("long", &["data.val=v.txt"])), [const { Value::Null }; 2]);
    assert!(!compared("long", "val_loss"));
    let short = train("short", &["data.val=short/*.txt"]);
    assert_eq!(by_row(&short), [json!(["val_loss"]), json!(["val_loss"])]);
    assert!(compared("short", "val_loss") && compared("short", "best_val_loss"));
    // and what is measured later goes with a run's own rows
    for run in short.map(|run| run.display().to_string()) {
        lab.run(["eval", &run, "--save"]).expect(0);
        let alone = lab.run(["compare", &run, "--metrics", "val_loss"]);
        assert!(!alone.expect(0).stdout.contains("different data"), "{}", alone.stdout);
    }
    assert!(compared("short", "val_loss"));
    // records of earlier versions say nothing of it
    let seeds = ["seed=1", "seed=2"].map(|seed| {
        let data = ["data.tokenizer=bytes", "data.train=short/*.txt", "data.val=short/*.txt"];
        lab.train_in("earlier", &[&data[..], &["model.block_size=16", seed]].concat())
    });
    let mut earlier = record(&seeds[0]);
    for key in ["by_row", "train_files"] {
        assert!(earlier.as_object_mut().expect("a record").remove(key).is_some(), "{key}");
    }
    fs::write(seeds[0].join("run.json"), earlier.to_string()).expect("written");
    assert!(!compared("earlier", "val_loss") && !compared("earlier", "loss"));
    // as the rows that are trained on are
    let trained = train("trained", &["data.train=short/*.txt", "data.val=v.txt"]);
    assert_eq!(by_row(&trained), [json!(["loss"]), json!(["loss"])]);
    assert!(compared("trained", "loss") && !compared("trained", "val_loss"));
    // set by set
    let sets = train("sets", &[&set("short/*.txt"), "data.val_main=main"]);
    assert_eq!(by_row(&sets), [json!(["val_loss_more"]), json!(["val_loss_more"])]);
    assert!(compared("sets", "val_loss_more") && !compared("sets", "val_loss"));
}
