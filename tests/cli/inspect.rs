//! `runner data inspect`: what data files hold, and what other files look like.

use crate::support;

use serde_json::Value;
use std::fs;
use support::{Lab, tokens};

fn json(lab: &Lab, words: &[&str], code: i32) -> Value {
    let words = ["data", "inspect", "--format", "json"].into_iter().chain(words.iter().copied());
    let ended = lab.run(words);
    serde_json::from_str(&ended.expect(code).stdout).expect("JSON")
}

#[test]
fn a_directory_is_shown_file_by_file() {
    let lab = Lab::new();
    let (stop, word) = (50_256, 11);
    lab.shard("web/train-1.bin", &[[stop, 15_496, 11, 314].as_slice(), &[stop; 2], &[word; 7]].concat());
    lab.write("web/a.txt", "Hello, I am");
    lab.write("web/notes.md", "no data");
    lab.write("web/.hidden.bin", "no data");
    let shown = json(&lab, &["web"], 0);
    let files = shown["files"].as_array().expect("a list");
    assert_eq!(files.len(), 2);
    let (text, shard) = (&files[0], &files[1]);
    assert_eq!(text["path"], "web/a.txt");
    assert_eq!(
        (&text["format"], &text["tokens"], &text["text"]),
        (&"text".into(), &4.into(), &"Hello, I am".into())
    );
    assert_eq!(text["documents"], Value::Null);
    assert_eq!(shard["format"], "llm.c shard");
    assert_eq!((&shard["tokens"], &shard["min"], &shard["max"]), (&13.into(), &11.into(), &50_256.into()));
    let documents = serde_json::json!(
        { "by": "separator_before", "count": 2, "shortest": 3, "longest": 7, "tokens": 10 });
    assert_eq!(shard["documents"], documents);
    let blake3 = blake3::hash(&fs::read(lab.path("web/train-1.bin")).expect("read")).to_string();
    assert_eq!(shard["blake3"], blake3.as_str());
    // 8 of 13 tokens are equal, 3 are, and two occur once
    let p = |n: f64| -(n / 13.0) * (n / 13.0).ln();
    let entropy = p(8.0) + p(3.0) + 2.0 * p(1.0);
    assert!((shard["entropy"].as_f64().expect("a number") - entropy).abs() < 1e-12, "{shard}");
    assert_eq!(shown["total"]["tokens"], 17);
    assert_eq!(shown["total"]["documents"], 2);

    let text = lab.run(["data", "inspect", "web"]);
    for part in [
        "web/train-1.bin\n  format     llm.c shard, 0.0 MiB\n  tokens     13\n  range      11 to 50256\n",
        "  documents  2 (50256 before each), of 3 to 7 tokens, 5.0 on average\n",
        "  first      50256 15496 11 314 50256 50256 11",
        "  text       \"<|endoftext|>Hello, I<|endoftext|>",
        "2 files, 17 tokens, 0.0 MiB\n",
    ] {
        assert!(text.expect(0).stdout.contains(part), "{part} is not in\n{}", text.stdout);
    }
}

#[test]
fn documents_that_end_with_the_separator_are_told_from_those_that_begin_with_it() {
    let lab = Lab::new();
    for (tokens, by) in [
        (&[5, 6, 50_256, 7, 50_256][..], "separator_behind"),
        (&[5, 6, 50_256, 7, 8], "separator_between"),
        (&[50_256, 6, 50_256, 7, 8], "separator_before"),
    ] {
        lab.shard("x.bin", tokens);
        let shown = json(&lab, &["x.bin"], 0);
        assert_eq!(shown["files"][0]["documents"]["by"], by);
        assert_eq!(shown["files"][0]["documents"]["count"], 2);
    }
}

#[test]
fn a_file_that_is_no_data_is_named_for_what_it_is_and_the_others_are_shown() {
    let lab = Lab::new();
    let llama = [20_240_801_i32, 7, 3].iter().flat_map(|word| word.to_le_bytes()).collect::<Vec<u8>>();
    for (name, bytes, what) in [
        ("page.bin", b"<!DOCTYPE html><html><body>404 Not Found</body></html>".to_vec(), "a web page"),
        ("zipped.bin", vec![0x1f, 0x8b, 8, 0, 0, 0, 0, 0, 0, 3, 9, 9], "gzip"),
        ("zipped.txt", vec![0x1f, 0x8b, 8, 0, 0, 0, 0, 0, 0, 3, 9, 9], "gzip"),
        ("llama.bin", llama, "Llama 3"),
        ("objects.npy", b"\x80\x04\x95\x0f\0\0\0\0\0\0\0]\x94.".to_vec(), "pickled Python objects"),
        ("lfs.bin", b"version https://git-lfs.github.com/spec/v1\noid sha256:0\n".to_vec(), "Git LFS"),
    ] {
        lab.write(name, bytes);
        let ended = lab.run(["data", "inspect", name, "data/train.bin"]);
        ended.expect(2).says(&[name, what]);
        assert!(ended.stdout.contains("data/train.bin\n  format     llm.c shard"), "{}", ended.stdout);
        let shown = json(&lab, &[name, "data/train.bin"], 2);
        assert!(shown["files"][0]["error"].as_str().is_some_and(|error| error.contains(what)), "{shown}");
        assert_eq!(shown["total"]["files"], 1);
        // training refuses it in the same words
        lab.run(["tiny.toml", &format!("data.train={name}")]).expect(2).says(&["data.train: ", what]);
    }
    lab.run(["data", "inspect", "nowhere.bin"]).expect(2).says(&["`nowhere.bin` does not exist"]);
    fs::create_dir(lab.path("void")).expect("a directory");
    lab.run(["data", "inspect", "void"]).expect(2).says(&["`void` holds no .bin, .npy or .txt file"]);
}

/// Megatron-LM's index of documents of one sequence each.
fn index(dtype: u8, width: u64, lengths: &[u32]) -> Vec<u8> {
    let mut file = b"MMIDIDX\0\0\x01\0\0\0\0\0\0\0".to_vec();
    file.push(dtype);
    file.extend((lengths.len() as u64).to_le_bytes());
    file.extend((lengths.len() as u64 + 1).to_le_bytes());
    file.extend(lengths.iter().flat_map(|length| length.to_le_bytes()));
    let ends = lengths.iter().scan(0, |end, &length| {
        let begin = *end;
        *end += u64::from(length) * width;
        Some(begin)
    });
    file.extend(ends.flat_map(u64::to_le_bytes));
    file.extend((0..=lengths.len() as u64).flat_map(u64::to_le_bytes));
    file
}

#[test]
fn data_of_megatron_are_read_by_their_index() {
    let lab = Lab::new();
    let (train, lengths) = (tokens(4000, 1), [3000, 1000]);
    let narrow: Vec<u8> = train.iter().flat_map(|token| token.to_le_bytes()).collect();
    let wide: Vec<u8> = train.iter().flat_map(|&token| i32::from(token).to_le_bytes()).collect();
    lab.write("narrow.bin", narrow);
    lab.write("narrow.idx", index(8, 2, &lengths));
    lab.write("wide.bin", &wide);
    lab.write("wide.idx", index(4, 4, &lengths));
    let shown = json(&lab, &["narrow.bin", "wide.bin"], 0);
    for (file, bits) in shown["files"].as_array().expect("a list").iter().zip([16, 32]) {
        assert_eq!(file["format"], format!("Megatron-LM data of {bits}-bit tokens"));
        assert_eq!((&file["tokens"], &file["documents"]["count"]), (&4000.into(), &2.into()));
        assert_eq!(file["documents"]["by"], "index");
    }
    // rows are those of a llm.c shard with the same tokens
    let rows = |runs: &str, set: &str| {
        let run = lab.train_in(runs, &["schedule.max_steps=4", set]);
        support::column(&run, "loss")
    };
    let plain = rows("plain", "name=plain");
    assert_eq!(rows("narrow", "data.train=narrow.bin"), plain);
    assert_eq!(rows("wide", "data.train=wide.bin"), plain);
    // an index that does not fit, and one that is named itself
    lab.write("wide.bin", &wide[4..]);
    lab.run(["tiny.toml", "data.train=wide.bin"]).expect(2).says(&["wide.idx", "take 16000 bytes"]);
    lab.run(["tiny.toml", "data.train=narrow.idx"]).expect(2).says(&["index: name the .bin file beside it"]);
}
