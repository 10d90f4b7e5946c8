//! Characters and bytes instead of GPT-2's tokens: what recipes make of text, and what a checkpoint says of it.

use crate::support;

use serde_json::Value;
use std::fs;
use std::os::unix::fs::symlink;
use support::{Lab, checkpoints, tiny};

/// A text of 14 different characters, one of them of two bytes.
const TEXT: &str = "so she sang, so he sang;\né so he hid\n";

/// A recipe for a miniature without a vocabulary.
fn recipe(lab: &Lab, data: &str) {
    let text = fs::read_to_string(lab.path("tiny.toml")).expect("a recipe").replace("vocab_size = 256\n", "");
    let begin = text.find("[data]").expect("a table");
    let end = text.find("[batch]").expect("a table");
    lab.write("own.toml", format!("{}[data]\n{data}\n{}", &text[..begin], &text[end..]));
}

fn value(lab: &Lab, key: &str, more: &[&str]) -> Value {
    let args = ["explain", "own.toml", key, "--format", "json"];
    let shown = lab.run(args.iter().chain(more));
    shown.expect(0);
    serde_json::from_str(&shown.stdout).expect("JSON")
}

fn train(lab: &Lab) -> std::path::PathBuf {
    let args =
        ["own.toml", "schedule.max_steps=2", "schedule.warmup_steps=0", "sample.every=2", "sample.prompt=so"];
    let ended = lab.run(args.iter().chain(&["sample.tokens=40"]));
    ended.expect(0);
    lab.run_of(&ended)
}

fn json(path: &std::path::Path) -> Value {
    serde_json::from_slice(&fs::read(path).expect("a file")).expect("JSON")
}

#[test]
fn a_recipe_whose_vocabulary_is_no_longer_that_of_its_text_begins_no_run() {
    for (text, what) in [
        (TEXT.replace('é', "o"), "the data have 13 token ids, and when the recipe was read they gave 14"),
        (TEXT.replace('é', "öä"), "the data have 15 token ids, and when the recipe was read they gave 14"),
    ] {
        let lab = Lab::new();
        lab.write("a.txt", TEXT.repeat(60));
        recipe(&lab, "train = \"a.txt\"\nval_fraction = 0.2\ntokenizer = \"char\"");
        // the text changes while another recipe of the same call trains
        let mut args = tiny("runs", &["sample.every=0"]);
        args.insert(1, "own.toml".to_owned());
        let (live, gate) = lab.held(lab.command(&args), "csv.before_row:3");
        gate.reached();
        lab.write("a.txt", text.repeat(60));
        gate.open();
        live.end().expect(1).says(&["model.vocab_size: ", what, "start again"]);
        assert_eq!(lab.runs("runs").len(), 1);
        args.remove(0);
        lab.run(&args).expect(0);
    }
}

#[test]
fn a_text_that_cannot_be_read_does_not_become_another_vocabulary() {
    let lab = Lab::new();
    symlink("a.txt", lab.path("a.txt")).expect("a link to itself");
    recipe(&lab, "train = \"a.txt\"\nval_fraction = 0.2\ntokenizer = \"char\"");
    for args in [&["explain", "own.toml"][..], &["plan", "own.toml"], &["own.toml"]] {
        let ended = lab.run(args);
        ended.expect(2).says(&["data.train: could not read `", "a.txt"]);
        assert_eq!(ended.stdout, "");
    }
}

#[test]
fn characters_of_a_text_are_its_vocabulary() {
    let lab = Lab::new();
    lab.write("a.txt", TEXT.repeat(60));
    recipe(&lab, "train = \"a.txt\"\nval_fraction = 0.2\ntokenizer = \"char\"");
    let mut characters: Vec<char> = TEXT.chars().collect();
    characters.sort_unstable();
    characters.dedup();
    let explained = value(&lab, "model.vocab_size", &[]).to_string();
    assert!(explained.contains(&characters.len().to_string()) && explained.contains("a.txt"), "{explained}");
    let run = train(&lab);
    let samples = fs::read_to_string(run.join("samples.txt")).expect("samples");
    assert!(samples.contains("so"), "{samples}");
    let newest = run.join("checkpoints").join(checkpoints(&run).last().expect("a checkpoint"));
    let config = json(&newest.join("config.json"));
    assert_eq!(
        (config["vocab_size"].as_u64(), &config["eos_token_id"]),
        (Some(characters.len() as u64), &Value::Null)
    );
    let vocab = &json(&newest.join("tokenizer.json"))["model"]["vocab"];
    for (id, c) in characters.iter().enumerate() {
        assert_eq!(vocab[c.to_string()], id);
    }
    // the run is used with its own characters
    let said = lab.run(["sample", &run.display().to_string(), "--prompt", "é", "--tokens", "30"]);
    said.expect(0);
    assert!(
        said.stdout.starts_with('é') && said.stdout.trim_end_matches('\n').chars().count() >= 28,
        "{}",
        said.stdout
    );
    assert!(said.stdout.chars().all(|c| characters.contains(&c)), "{}", said.stdout);
    lab.run(["sample", &run.display().to_string(), "--prompt", "X"])
        .expect(2)
        .says(&["the prompt \"X\" has 'X', which is none of the 14 characters"]);
    // and its own recipe is the same run
    let again = lab.run([run.join("recipe.toml").display().to_string()]);
    again.expect(0).says(&["finished"]);
    let refused = lab.run(["own.toml", "sample.every=1", "sample.prompt=XY", "--dry-run"]);
    refused.expect(2).says(&["sample.prompt", "'X', which is none of the"]);
}

#[test]
fn bytes_are_256_ids() {
    let lab = Lab::new();
    lab.write("a.txt", TEXT.repeat(60));
    recipe(&lab, "train = \"a.txt\"\nval = \"builtin:lipsum:words=2000\"\ntokenizer = \"bytes\"");
    assert!(value(&lab, "model.vocab_size", &[]).to_string().contains("256"));
    let run = train(&lab);
    let said = lab.run(["sample", &run.display().to_string(), "--prompt", "é", "--tokens", "9"]);
    said.expect(0);
    assert!(said.stdout.starts_with('é'), "{}", said.stdout);
    // an explicit number wins
    assert!(value(&lab, "model.vocab_size", &["--set", "model.vocab_size=300"]).to_string().contains("300"));
}

#[test]
fn a_prepared_set_states_its_tokenizer() {
    let lab = Lab::new();
    lab.write("a.txt", TEXT.repeat(60));
    let prepare = |out: &str, tokenizer: &str| {
        lab.run([
            "data",
            "prepare",
            "a.txt",
            "--out",
            out,
            "--tokenizer",
            tokenizer,
            "--val-fraction",
            "0.2",
        ])
        .expect(0);
    };
    prepare("chars", "char");
    recipe(&lab, "train = \"chars/train-*.bin\"\nval = \"chars/val-*.bin\"");
    let explained = value(&lab, "data.tokenizer", &[]).to_string();
    assert!(explained.contains("char") && explained.contains("dataset.json"), "{explained}");
    let run = train(&lab);
    let said = lab.run(["sample", &run.display().to_string(), "--prompt", "he", "--tokens", "5"]);
    said.expect(0);
    // the text itself trains to the same numbers: the tokens and their order are the same
    recipe(&lab, "train = \"a.txt\"\nval_fraction = 0.2\ntokenizer = \"char\"");
    let other = train(&lab);
    assert_eq!(support::column(&run, "loss"), support::column(&other, "loss"));
    recipe(&lab, "train = \"chars/train-*.bin\"\ntokenizer = \"bytes\"");
    let refused = lab.run(["plan", "own.toml"]);
    refused.expect(2).says(&[
        "`data.tokenizer` is \"bytes\", but `chars/dataset.json` says \"char\"",
        "leave data.tokenizer out",
    ]);
    prepare("gpt2", "gpt2");
    recipe(&lab, "train = \"chars/train-*.bin\"\nval = \"gpt2/val-*.bin\"");
    lab.run(["plan", "own.toml"])
        .expect(2)
        .says(&["chars/dataset.json` and `", "give the same tokens other meanings"]);
    recipe(&lab, "train = \"gpt2/train-*.bin\"\nval = \"gpt2/val-*.bin\"");
    assert!(value(&lab, "model.vocab_size", &[]).to_string().contains("50257"));
    lab.write("chars/dataset.json", "{\"version\": 2}");
    recipe(&lab, "train = \"chars/train-*.bin\"");
    lab.run(["plan", "own.toml"])
        .expect(2)
        .says(&["chars/dataset.json` does not say", "version 2 is not known"]);
}

#[test]
fn nanogpts_characters_are_read_beside_its_files() {
    let lab = Lab::new();
    let ids: Vec<u16> = TEXT
        .repeat(40)
        .chars()
        .map(|c| TEXT.chars().position(|other| other == c).expect("known"))
        .map(|id| id as u16)
        .collect();
    // pickle.dumps({"itos": {...}}) in protocol 2
    let mut meta = b"\x80\x02}X\x04\x00\x00\x00itos}(".to_vec();
    let mut seen = std::collections::BTreeSet::new();
    let mut characters = Vec::new();
    for c in TEXT.chars().filter(|c| seen.insert(*c)) {
        meta.extend([b'K', characters.len() as u8, b'X', c.len_utf8() as u8, 0, 0, 0]);
        meta.extend(c.to_string().bytes());
        characters.push(c);
    }
    meta.extend(b"us.");
    let of = |id: u16| TEXT.chars().nth(usize::from(id)).expect("a character");
    let id = |c: char| characters.iter().position(|known| *known == c).expect("known") as u16;
    let bytes: Vec<u8> = ids.iter().flat_map(|first| id(of(*first)).to_le_bytes()).collect();
    lab.write("nano/train.bin", &bytes);
    lab.write("nano/val.bin", &bytes[..2000]);
    lab.write("nano/meta.pkl", &meta);
    recipe(&lab, "train = \"nano/train.bin\"\nval = \"nano/val.bin\"");
    let explained = value(&lab, "model.vocab_size", &[]).to_string();
    assert!(
        explained.contains(&characters.len().to_string()) && explained.contains("meta.pkl"),
        "{explained}"
    );
    // a name in capitals is one of its files too
    lab.write("nano/train.BIN", &bytes);
    let shown = |file: &str| {
        let shown = lab.run(["data", "inspect", file]);
        shown.expect(0);
        shown.stdout.replace(file, "")
    };
    assert_eq!(shown("nano/train.BIN"), shown("nano/train.bin"));
    let run = train(&lab);
    let said = lab.run(["sample", &run.display().to_string(), "--prompt", "he", "--tokens", "12"]);
    said.expect(0);
    assert!(
        said.stdout.starts_with("he") && said.stdout.chars().all(|c| characters.contains(&c)),
        "{}",
        said.stdout
    );
    lab.write("nano/train.idx", b"MMIDIDX\0\0");
    lab.run(["own.toml", "--dry-run"]).expect(2).says(&["train.idx", "it ends after 9 bytes"]);
    // what another user has put there says nothing; only root can give a file away
    if std::os::unix::fs::chown(lab.path("nano/train.idx"), Some(12345), None).is_ok() {
        let told = lab.run(["plan", "own.toml"]);
        told.expect(0).says(&["nano/train.bin lies beside nano/train.idx, which another user has put there"]);
        assert_eq!(value(&lab, "model.vocab_size", &[]).to_string(), explained);
        let inspected = lab.run(["data", "inspect", "nano/train.bin"]);
        assert!(!inspected.expect(0).stdout.contains("Megatron"), "{}", inspected.stdout);
    }
    fs::remove_file(lab.path("nano/train.idx")).expect("removed");
    lab.write("nano/meta.pkl", b"\x80\x02cos\nsystem\nX\x04\x00\x00\x00true\x85R.");
    lab.run(["plan", "own.toml"]).expect(2).says(&["meta.pkl` does not say", "names `os.system`"]);
    // what another user has put there says nothing; only root can give a file away
    if std::os::unix::fs::chown(lab.path("nano/meta.pkl"), Some(12345), None).is_ok() {
        let told = lab.run(["plan", "own.toml"]);
        told.expect(0).says(&["lies beside nano/meta.pkl, which another user has put there"]);
    }
}

/// The shards of two texts may be equal: what their tokens stand for lies beside them.
#[test]
fn a_run_whose_tokens_have_got_another_meaning_is_neither_continued_nor_called_finished() {
    let lab = Lab::new();
    let prepare = |text: &str| {
        let _ = fs::remove_dir_all(lab.path("chars"));
        lab.write("a.txt", text.repeat(60));
        let args =
            ["data", "prepare", "a.txt", "--out", "chars", "--tokenizer", "char", "--val-fraction", "0.2"];
        lab.run(args).expect(0);
        fs::read(lab.path("chars/train-000001.bin")).expect("a shard")
    };
    let shard = prepare(TEXT);
    recipe(&lab, "train = \"chars/train-*.bin\"\nval = \"chars/val-*.bin\"");
    let run = train(&lab);
    let path = run.display().to_string();
    lab.run(["eval", &path]).expect(0);
    // the other letter is the last of all, too
    assert!(shard == prepare(&TEXT.replace('é', "ê")));
    let again =
        ["own.toml", "schedule.max_steps=2", "schedule.warmup_steps=0", "sample.every=2", "sample.prompt=so"];
    let again = again.iter().chain(&["sample.tokens=40"]).copied();
    for dry in [None, Some("--dry-run")] {
        let ended = lab.run(again.clone().chain(dry));
        ended.expect(2).says(&["another text than when it began", "dataset.json", "--fresh"]);
    }
    lab.run(["--resume", &path]).expect(2).says(&["another text than when it began"]);
    lab.run(["eval", &path]).expect(2).says(&["stand for something else than the model's"]);
    prepare(TEXT);
    lab.run(again).expect(0).says(&["already finished"]);
    lab.run(["eval", &path]).expect(0);
}
