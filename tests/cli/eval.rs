//! `runner eval`: losses and scores of runs, checkpoints and weights from elsewhere.

use crate::support;

use serde_json::Value;
use std::fs;
use std::path::{Path, PathBuf};
use support::{Ended, Lab, checkpoints, essence, tiny, val_csv};

/// A run of bytes on a text, of which the last part is validated on.
const BYTES: [&str; 5] =
    ["data.train=a.txt", "data.val=v.txt", "data.tokenizer=bytes", "checkpoint.keep=0", "eval.batches=2"];
const HELLASWAG: &str = concat!(
    r#"{"ctx": "the king", "ctx_a": "the king", "ctx_b": "", "activity_label": "Play", "#,
    r#""endings": ["speaks", "sings", "sleeps", "stands"], "label": "2"}"#,
    "\n",
    r#"{"ctx": "a hand", "ctx_a": "a", "ctx_b": "hand", "activity_label": "Play", "#,
    r#""endings": ["moves", "rests", "waves", "is"], "label": 0}"#,
    "\n",
);
const CHOICES: &str = "{\"context\": \"so\", \"endings\": [\"it\", \"he\", \"she\"], \"label\": 1}\n\
     {\"context\": \"this is a context of more than thirty-two bytes\", \"endings\": [\"a\", \"b\"], \"label\": 0}\n";
const LAMBADA: &str = "{\"text\": \"she sang and she sang\"}\n";

fn bytes_run(lab: &Lab) -> PathBuf {
    lab.write("a.txt", "so she sang, so he sang; so they sang of it all\n".repeat(60));
    lab.write("v.txt", "so they sang of it all, so he sang\n".repeat(40));
    lab.write("hellaswag.jsonl", HELLASWAG);
    lab.write("choices.jsonl", CHOICES);
    lab.write("lambada.jsonl", LAMBADA);
    lab.train(&BYTES)
}

fn eval<'a>(lab: &Lab, args: impl IntoIterator<Item = &'a str>) -> Ended {
    lab.run(["eval", "--threads", "1", "--device", "cpu"].into_iter().chain(args))
}

fn json(ended: &Ended) -> Value {
    serde_json::from_str(&ended.expect(0).stdout).expect("JSON")
}

fn shown(path: &Path) -> &str {
    path.to_str().expect("a path of this test")
}

#[test]
fn a_run_is_evaluated_as_it_validated_itself() {
    let lab = Lab::new();
    let run = bytes_run(&lab);
    let logged = *val_csv(&run).numbers("val_loss").last().expect("a row");
    let newest = run.join("checkpoints/step-00000012");
    let found = json(&eval(&lab, [shown(&run), shown(&newest), "--format", "json"]));
    let metrics = &found[0]["metrics"];
    let loss = metrics["val_loss"].as_f64().expect("a loss");
    assert!((loss - logged).abs() < 1e-5, "{loss} is not {logged}");
    assert!((metrics["perplexity"].as_f64().expect("a number") - loss.exp()).abs() < 1e-9 * loss.exp());
    // a token is a byte
    let bits = metrics["bits_per_byte"].as_f64().expect("a number");
    assert!((bits - loss / std::f64::consts::LN_2).abs() < 1e-9);
    assert_eq!(found[0]["step"], 12);
    assert_eq!(found[0]["data"]["tokens"], 512);
    assert_eq!(found[0], found[1], "the newest checkpoint of the run");
    // any weights, on any data
    let elsewhere = lab.path("hf");
    fs::create_dir(&elsewhere).expect("mkdir");
    for name in ["config.json", "model.safetensors", "tokenizer.json"] {
        fs::copy(newest.join(name), elsewhere.join(name)).expect("copied");
    }
    let args =
        [shown(&elsewhere), "--data", "v.txt", "--tokens", "512", "--micro-batch", "3", "--format", "json"];
    let other = json(&eval(&lab, args));
    let same = other[0]["metrics"]["val_loss"].as_f64().expect("a loss");
    assert!((same - loss).abs() < 1e-6 * loss, "{same} is not {loss}");
    assert_eq!((&other[0]["step"], &other[0]["model"]), (&Value::Null, &Value::from(shown(&elsewhere))));
    // a part of a row counts as far as it was asked for
    let few = json(&eval(&lab, [shown(&run), "--tokens", "40", "--format", "json"]));
    assert_eq!(few[0]["data"]["tokens"], 40);
    let rounded = json(&eval(&lab, [shown(&run), "--precision", "bf16", "--format", "json"]));
    let rounded = rounded[0]["metrics"]["val_loss"].as_f64().expect("a loss");
    assert!(rounded != loss && (rounded - loss).abs() < 0.05 * loss);
}

#[test]
fn tasks_have_scores_errors_and_definitions() {
    let lab = Lab::new();
    let run = bytes_run(&lab);
    let files = [
        "--hellaswag",
        "hellaswag.jsonl",
        "--lambada",
        "lambada.jsonl",
        "--tasks",
        "choices.jsonl",
        "--lm-eval",
    ];
    let args = [&[shown(&run)], &files[..], &["--format", "json"]].concat();
    let found = &json(&eval(&lab, args))[0];
    let names: Vec<&String> = found["metrics"].as_object().expect("metrics").keys().collect();
    assert_eq!(
        names,
        [
            "val_loss",
            "perplexity",
            "bits_per_byte",
            "hellaswag_acc",
            "hellaswag_acc_norm",
            "hellaswag_lm_eval_acc",
            "hellaswag_lm_eval_acc_norm",
            "lambada_acc",
            "lambada_perplexity",
            "choices_acc",
            "choices_acc_norm",
            "choices_lm_eval_acc",
            "choices_lm_eval_acc_norm"
        ]
    );
    let accuracy = found["metrics"]["hellaswag_acc"].as_f64().expect("a number");
    let error = found["stderr"]["hellaswag_acc"].as_f64().expect("a number");
    assert!((error - (accuracy * (1.0 - accuracy)).sqrt()).abs() < 1e-12, "of two examples");
    assert!(found["stderr"].get("lambada_acc").is_none(), "one example has no deviation");
    assert!(found["definitions"]["hellaswag_acc_norm"].to_string().contains("per token"));
    assert!(found["definitions"]["hellaswag_lm_eval_acc_norm"].to_string().contains("per character"));
    assert_eq!(found["tasks"][3]["cut_contexts"], 1);
    let table = eval(&lab, [&[shown(&run)], &files[..]].concat());
    table.expect(0);
    for part in ["hellaswag acc norm", "llm.c, build-nanogpt", "lm-evaluation-harness", " ± ", "2 examples"]
    {
        assert!(table.stdout.contains(part), "`{part}` is missing:\n{}", table.stdout);
    }
    let cut =
        "choices: 1 of 2 examples are longer than the model's context of 32 tokens and lost the beginning";
    assert!(table.stdout.contains(cut), "{}", table.stdout);
    // each definition has an encoding of its own
    assert!(table.stdout.contains(&cut.replace("choices:", "choices_lm_eval:")), "{}", table.stdout);
}

#[test]
fn results_are_appended_to_the_run_and_compared() {
    let lab = Lab::new();
    let run = bytes_run(&lab);
    let before = essence(&run);
    let all = ["--all-checkpoints", "--save", "--hellaswag", "hellaswag.jsonl", "--format", "csv"];
    let curve = eval(&lab, [&[shown(&run)], &all[..]].concat());
    let lines: Vec<&str> = curve.expect(0).stdout.lines().collect();
    assert_eq!(lines.len(), 1 + checkpoints(&run).len(), "{}", curve.stdout);
    assert!(
        lines[0]
            .starts_with("model,step,val_loss,perplexity,bits_per_byte,hellaswag_acc,hellaswag_acc_stderr,")
    );
    let steps: Vec<&str> = lines[1..].iter().map(|line| line.split(',').nth(1).expect("a step")).collect();
    assert_eq!(steps, ["4", "8", "12"]);
    // what an evaluation that was killed has left goes with the next one
    let left = [".tmp-eval.csv-1-0", ".tmp-eval.csv-old-1-0"].map(|name| run.join(name));
    let other = run.join(".tmp-val.csv-1-0");
    left.iter().chain([&other]).for_each(|path| fs::write(path, "half").expect("written"));
    eval(&lab, [shown(&run), "--save", "--tasks", "choices.jsonl"]).expect(0);
    assert!(!left.iter().any(|path| path.exists()) && other.exists());
    fs::remove_file(other).expect("removed");
    let text = fs::read_to_string(run.join("eval.csv")).expect("a file");
    assert_eq!(text.lines().count(), 5, "{text}");
    assert!(
        text.starts_with("step,tokens,evaluated,precision,data,data_tokens,measured,val_loss,"),
        "{text}"
    );
    let mut after = essence(&run);
    assert!(after.remove("eval.csv").is_some());
    assert!(after == before, "what the run has written is as it was");
    // a model does without the optimizer's state
    std::fs::remove_file(run.join("checkpoints/step-00000004/optimizer.safetensors")).expect("removed");
    let again = eval(&lab, [shown(&run), "--all-checkpoints", "--format", "csv"]);
    assert_eq!(again.expect(0).stdout.lines().count(), lines.len(), "{}", again.stderr);
    let compared = lab.run([
        "compare",
        shown(&run),
        "--metrics",
        "val_loss,hellaswag_acc_norm,choices_acc",
        "--format",
        "csv",
    ]);
    let row = compared.expect(0).stdout.lines().nth(1).expect("a row").to_owned();
    let last = lines[3].split(',').nth(7).expect("acc_norm");
    assert!(row.split(',').any(|cell| cell == last), "{row} has no {last}");
    // the run goes on with a file in it that is not its own
    let id = run.file_name().expect("a name").to_str().expect("text");
    lab.run(["--resume", &format!("runs/{id}")]).expect(0);
}

#[test]
fn the_file_says_what_was_measured_and_a_comparison_heeds_it() {
    let lab = Lab::new();
    let first = bytes_run(&lab);
    let second = lab.train(&[&BYTES[..], &["optimizer.lr=0.002"]].concat());
    lab.write("w.txt", "of all of it he sang; and so it was, they said\n".repeat(20));
    // a copy elsewhere is the same data
    fs::copy(lab.path("v.txt"), lab.path("copy.txt")).expect("copied");
    let compared = |on: [&str; 2]| {
        for (run, data) in [&first, &second].into_iter().zip(on) {
            eval(&lab, [shown(run), "--save", "--data", data, "--tasks", "choices.jsonl"]).expect(0);
        }
        let ended = lab.run(["compare", "runs", "--metrics", "perplexity,choices_acc", "--by", "perplexity"]);
        ended.expect(0).stdout.clone()
    };
    let said = compared(["v.txt", "copy.txt"]);
    assert!(!said.contains("different data") && !said.contains("without a digest"), "{said}");
    let text = fs::read_to_string(first.join("eval.csv")).expect("a file");
    let row = text.lines().nth(1).expect("a row");
    assert!(
        row.contains(",val_loss=") && row.contains(":1376;bits_per_byte=") && row.contains(":whole;choices="),
        "{row}"
    );
    let said = compared(["v.txt", "w.txt"]);
    assert!(said.contains("perplexity was measured on different data (data"), "{said}");
    assert!(!said.contains("choices_acc was"), "{said}");
}

#[test]
fn losses_on_other_tokens_of_short_files_are_no_comparison() {
    let lab = Lab::new();
    let long = bytes_run(&lab);
    let short = lab.train(&[&BYTES[..], &["model.block_size=8"]].concat());
    let line = |i: usize| format!("{i:02}: so they sang of it all, so he sang of all she was\n");
    for i in 0..20 {
        lab.write(&format!("short/{i:02}.txt"), line(i));
    }
    lab.write("one.txt", (0..20).map(line).collect::<String>());
    // rows of 32 leave a third of each short file out, rows of 8 next to nothing
    for (data, differs) in [("short/*.txt", true), ("one.txt", false)] {
        let args = [shown(&long), shown(&short), "--data", data, "--tokens", "320", "--save"];
        let said = eval(&lab, args).expect(0).stdout.clone();
        assert_eq!(said.contains("val_loss: the losses are of different tokens"), differs, "{said}");
        let by = ["compare", "runs", "--metrics", "perplexity", "--by", "perplexity"];
        let said = lab.run(by).expect(0).stdout.clone();
        assert_eq!(
            said.contains("perplexity was measured on different data (evaluated tokens)"),
            differs,
            "{said}"
        );
    }
}

#[test]
fn losses_per_token_of_different_tokenizers_are_said_to_be_no_comparison() {
    let lab = Lab::new();
    let bytes = bytes_run(&lab);
    let chars = lab.train(&[&BYTES[..], &["data.tokenizer=char"]].concat());
    let note = "val_loss: the losses are per token of different tokenizers and cannot be compared; bits per byte can";
    lab.write("long.txt", "so they sang of it all, so he sang\n".repeat(400));
    let words = lab.train(&[&BYTES[..], &["data.tokenizer=gpt2", "model.vocab_size=50257"]].concat());
    for (part, is_said) in [
        (&["--data", "long.txt"][..], true),
        (&["--data", "long.txt", "--tokens", "40"], false),
        (&[], false),
    ] {
        let ended = eval(&lab, [&[shown(&bytes), shown(&words)], part].concat());
        assert_eq!(ended.expect(0).stdout.contains(note), is_said, "{part:?}: {}", ended.stdout);
        let of_bytes =
            "and of different bytes and cannot be compared; bits per byte could if all of a text were read";
        assert_eq!(ended.stdout.contains(of_bytes), !is_said, "{part:?}: {}", ended.stdout);
    }
    fs::remove_dir_all(&words).expect("removed");
    for data in [&["--data", "v.txt"][..], &[]] {
        let ended = eval(&lab, [&[shown(&bytes), shown(&chars)], data].concat());
        assert!(ended.expect(0).stdout.contains(note), "{}", ended.stdout);
        let ended = eval(&lab, [&[shown(&bytes), shown(&bytes)], data].concat());
        assert!(!ended.expect(0).stdout.contains(note), "{}", ended.stdout);
    }
    // measured on the same text, but in other tokens
    for run in [&bytes, &chars] {
        eval(&lab, [shown(run), "--data", "v.txt", "--save"]).expect(0);
    }
    let compared =
        |by: &str| lab.run(["compare", "runs", "--metrics", by, "--by", by]).expect(0).stdout.clone();
    for by in ["perplexity", "val_loss"] {
        let said = compared(by);
        assert!(said.contains(&format!("{by} was measured on different data (data.tokenizer")), "{said}");
    }
    let said = compared("bits_per_byte");
    assert!(!said.contains("bits_per_byte was measured on different data"), "{said}");
}

#[test]
fn a_loss_on_data_that_the_model_was_trained_on_is_told_of() {
    let lab = Lab::new();
    let one = bytes_run(&lab);
    lab.write("b.txt", "of it all they sang, and so it was that he sang\n".repeat(60));
    let newest = one.join("checkpoints/step-00000012");
    let from = format!("model.init_from={}", shown(&newest));
    let later = lab.train(&[&BYTES[1..], &["data.train=b.txt", &from]].concat());
    let both = lab.train(&[&BYTES[1..], &["data.train=[\"a.txt\", \"b.txt\"]"]].concat());
    for (run, data, is_seen) in [
        (&one, "a.txt", true),
        (&one, "b.txt", false),
        (&later, "a.txt", true),
        (&later, "b.txt", true),
        (&both, "b.txt", true),
        (&both, "v.txt", false),
    ] {
        let ended = eval(&lab, [shown(run), "--data", data, "--save"]);
        let note = "was trained on some of these data";
        assert_eq!(ended.expect(0).stdout.contains(note), is_seen, "{data}: {}", ended.stdout);
        let row = fs::read_to_string(run.join("eval.csv")).expect("a file");
        assert_eq!(row.lines().last().expect("a row").contains(";val_loss:seen="), is_seen, "{row}");
        let said = lab.run(["compare", shown(run), "--metrics", "perplexity"]).expect(0).stdout.clone();
        assert_eq!(
            said.contains("measured a loss on data that it was trained on"),
            is_seen,
            "{data}: {said}"
        );
    }
    // by their contents, wherever these lie, and not by the names of files
    fs::copy(lab.path("b.txt"), lab.path("copy.txt")).expect("a copy");
    lab.write("b.txt", "and what is sung is never what was said\n".repeat(60));
    let split =
        lab.train(&[&BYTES[2..], &["data.train=a.txt", "data.val=[]", "data.val_fraction=0.2"]].concat());
    lab.write("moved/a.txt", fs::read(lab.path("a.txt")).expect("a text"));
    for (run, data, is_seen) in
        [(&both, "copy.txt", true), (&both, "b.txt", false), (&split, "moved/a.txt", true)]
    {
        let said = eval(&lab, [shown(run), "--data", data]).expect(0).stdout.clone();
        assert_eq!(said.contains("was trained on some of these data"), is_seen, "{data}: {said}");
    }
    // a copy of a checkpoint has no run, and still says what it was trained on
    let copied = lab.path("copied");
    fs::create_dir(&copied).expect("a directory");
    for entry in fs::read_dir(&newest).expect("a checkpoint") {
        let entry = entry.expect("an entry");
        fs::copy(entry.path(), copied.join(entry.file_name())).expect("a copy");
    }
    for (data, is_seen) in [("a.txt", true), ("b.txt", false)] {
        let said = eval(&lab, [shown(&copied), "--data", data]).expect(0).stdout.clone();
        assert_eq!(said.contains("was trained on some of these data"), is_seen, "{data}: {said}");
    }
}

/// What lies there now may be what the run was trained on.
#[test]
fn validation_data_that_have_changed_are_not_taken_for_the_runs_own() {
    let lab = Lab::new();
    let run = bytes_run(&lab);
    let text = fs::read(lab.path("v.txt")).expect("a file");
    lab.write("v.txt", [&text[..], b"so she sang\n"].concat());
    let ended = eval(&lab, [shown(&run), "--save"]);
    ended.expect(2).says(&[shown(&run), "have changed since", "`data.val`", "--data"]);
    assert!(!run.join("eval.csv").exists());
    eval(&lab, [shown(&run), "--data", "v.txt"]).expect(0);
    lab.write("v.txt", text);
    eval(&lab, [shown(&run)]).expect(0);
    // a part of the training data
    lab.write("grown.txt", "so she sang, so he sang\n".repeat(90));
    let sets = ["data.train=grown.txt", "data.val_fraction=0.2", "data.tokenizer=bytes", "eval.batches=1"];
    let run = lab
        .run_of(lab.run(tiny("parts", &sets).iter().chain(&["--unset".into(), "data.val".into()])).expect(0));
    eval(&lab, [shown(&run)]).expect(0);
    lab.write("grown.txt", "so she sang, so he sang\n".repeat(100));
    eval(&lab, [shown(&run)]).expect(2).says(&["have changed since", "`data.train`"]);
}

#[test]
fn what_cannot_be_saved_costs_no_numbers() {
    let lab = Lab::new();
    let run = bytes_run(&lab);
    let newest = run.join("checkpoints/step-00000012");
    let moved = lab.path("moved");
    fs::create_dir(&moved).expect("mkdir");
    for entry in fs::read_dir(&newest).expect("a checkpoint") {
        let path = entry.expect("an entry").path();
        fs::copy(&path, moved.join(path.file_name().expect("a name"))).expect("copied");
    }
    // before the work
    let args = [shown(&run), "moved", "--data", "v.txt", "--save"];
    let ended = eval(&lab, args);
    assert_eq!(ended.expect(2).says(&["moved"]).stdout, "");
    assert!(!run.join("eval.csv").exists());
    // after it
    lab.write(&format!("{}/eval.csv", shown(&run)), "no such columns");
    let ended = eval(&lab, [shown(&run), "--data", "v.txt", "--save"]);
    ended.expect(1).says(&["eval.csv"]);
    assert!(ended.stdout.contains("val_loss: nats per token"), "{}", ended.stdout);
}

#[test]
fn a_checkpoint_is_its_runs_from_within_the_run_too() {
    let lab = Lab::new();
    let run = bytes_run(&lab);
    let name = run.file_name().and_then(|name| name.to_str()).expect("a name");
    for (from, named) in [
        ("checkpoints", "step-00000012"),
        ("checkpoints/step-00000012", "."),
        ("", "checkpoints/step-00000012"),
        ("checkpoints", "../checkpoints/step-00000012"),
    ] {
        let mut command =
            lab.command(["eval", named, "--data", shown(&lab.path("v.txt")), "--format", "json"]);
        command.current_dir(run.join(from));
        let found = json(&support::ended(command));
        assert_eq!(
            (&found[0]["model"], &found[0]["step"]),
            (&Value::from(name), &Value::from(12)),
            "{named}"
        );
    }
}

#[test]
fn a_run_that_trains_is_read_without_its_lock() {
    let lab = Lab::new();
    bytes_run(&lab);
    // the tenth row is written after the second checkpoint
    let (live, gate) = lab.held(lab.command(tiny("live", &BYTES)), "csv.before_row:11");
    gate.reached();
    let run = lab.only_run("live");
    let found = json(&eval(&lab, [shown(&run), "--save", "--format", "json"]));
    assert_eq!(found[0]["step"], 8);
    gate.open();
    live.end().expect(0);
    let mut computed = essence(&run);
    assert!(computed.remove("eval.csv").is_some());
    assert!(computed == essence(&lab.only_run("runs")), "it trained on as if alone");
    assert_eq!(fs::read_to_string(run.join("eval.csv")).expect("a file").lines().count(), 2);
}

#[test]
fn what_cannot_be_evaluated_is_refused_with_its_reason() {
    let lab = Lab::new();
    let run = bytes_run(&lab);
    let gpt2 = lab.train(&[]);
    let (run, gpt2) = (shown(&run), shown(&gpt2));
    let line = |text: &str| format!("{text}\n");
    for (name, text, parts) in [
        ("empty.jsonl", String::new(), ["empty.jsonl", "no examples"]),
        ("page.jsonl", line("<!DOCTYPE html><html>"), ["page.jsonl", "a web page"]),
        ("array.jsonl", line("[{}]"), ["array.jsonl", "a line per example"]),
        ("torn.jsonl", line("{\"context\": "), ["torn.jsonl`, line 1", "no JSON object"]),
        ("other.jsonl", line("{\"question\": 1}"), ["line 1", "`question`"]),
        (
            "label.jsonl",
            line("{\"context\":\"a\",\"endings\":[\"b\",\"c\"],\"label\":2}"),
            ["line 1", "from 0 to 1"],
        ),
        (
            "test.jsonl",
            line("{\"ctx\":\"a\",\"endings\":[\"b\",\"c\"],\"label\":\"\"}"),
            ["line 1", "`label` is \"\""],
        ),
        (
            "one.jsonl",
            line("{\"context\":\"a\",\"endings\":[\"b\"],\"label\":0}"),
            ["line 1", "`endings` has 1"],
        ),
        (
            "same.jsonl",
            line("{\"context\":\"a\",\"endings\":[\"\",\"\"],\"label\":0}"),
            ["line 1", "`endings` are all the same"],
        ),
        ("mixed.jsonl", CHOICES.to_owned() + LAMBADA, ["line 3", "another form than that of line 1"]),
        ("word.jsonl", line("{\"text\": \"alone\"}"), ["line 1", "no word before"]),
    ] {
        lab.write(name, text);
        let ended = eval(&lab, [run, "--tasks", name]);
        assert_eq!(ended.expect(2).stdout, "", "{name}");
        ended.says(&parts);
    }
    for name in ["val_loss_a.jsonl", "best_x.jsonl", "best.jsonl", "x_lm_eval.jsonl"] {
        lab.write(name, CHOICES);
        eval(&lab, [run, "--tasks", name]).expect(2).says(&[name, "cannot be called", "another name"]);
    }
    let refused: [(&[&str], &[&str]); 8] = [
        (&[run, "--hellaswag", "lambada.jsonl"], &["lambada.jsonl", "--lambada"]),
        (&[run, "--lambada", "choices.jsonl"], &["choices.jsonl", "--tasks"]),
        (&[run, "--tasks", "nowhere.jsonl"], &["nowhere.jsonl", "check the path"]),
        (&[gpt2, "--hellaswag", "hellaswag.jsonl"], &["hellaswag.jsonl`, line 1", "vocabulary of 256 ids"]),
        (&[run, "--tokens", "1000000"], &["--tokens 1000000"]),
        (&[run, "--data", "nowhere.bin"], &["nowhere.bin"]),
        (&["hf"], &["nothing to evaluate", "--data"]),
        (&["hf", "--save", "--data", "v.txt"], &["--save", "`hf` is no run"]),
    ];
    let newest = Path::new(run).join("checkpoints/step-00000012");
    fs::create_dir(lab.path("hf")).expect("mkdir");
    for name in ["config.json", "model.safetensors", "tokenizer.json"] {
        fs::copy(newest.join(name), lab.path("hf").join(name)).expect("copied");
    }
    for (args, parts) in refused {
        let ended = eval(&lab, args.iter().copied());
        assert_eq!(ended.expect(2).stdout, "", "{args:?}");
        ended.says(parts);
    }
}

/// Who may write in a shared directory could choose by a link which run gets the row.
#[test]
fn nothing_is_saved_through_a_link_of_another_user() {
    let lab = Lab::new();
    let run = lab.train(&["schedule.max_steps=3", "schedule.warmup_steps=0"]);
    std::fs::create_dir(lab.path("shared")).expect("a directory");
    let link = lab.path("shared").join(run.file_name().expect("a name"));
    std::os::unix::fs::symlink(&run, &link).expect("a link");
    let save = || eval(&lab, [shown(&link), "--data", "data/val.bin", "--save"]);
    let exported = || lab.run(["export", shown(&link), "--tensorboard", "shared"]);
    save().expect(0);
    // only root can give a link away
    if std::os::unix::fs::lchown(&link, Some(12345), None).is_ok() {
        let before = support::everything(&run);
        let refused = save();
        assert!(matches!(refused.code, Some(1 | 2)), "{}", refused.stderr);
        refused.says(&["is a link of another user: name what it leads to"]);
        assert_ne!(exported().code, Some(0));
        assert!(support::everything(&run) == before);
    }
}
