//! What documents are in files of all shapes, and what is refused.

use super::*;

/// The documents of a file, each with its number of parts.
fn documents(
    name: &str,
    contents: &[u8],
    split_on: Option<&str>,
) -> Result<Vec<(String, usize)>, PrepareError> {
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().join(name);
    std::fs::write(&path, contents).expect("written");
    let file = super::super::sources::find(&[path.display().to_string()])?.remove(0);
    let reading = Reading { field: "text", split_on, tokenizer: Tokenizer::gpt2() };
    let mut found: Vec<(String, usize)> = Vec::new();
    let open = File::open(&path).expect("opened");
    reading.documents(&file, open, &|_| (), &mut |part| {
        if part.is_first {
            found.push((String::new(), 0));
        }
        let last = found.last_mut().expect("a first part");
        last.0.push_str(part.text);
        last.1 += 1;
        ControlFlow::Continue(())
    })?;
    Ok(found)
}

fn texts(found: Result<Vec<(String, usize)>, PrepareError>) -> Vec<String> {
    found.expect("read").into_iter().map(|(text, _)| text).collect()
}

#[test]
fn a_text_is_one_document_in_parts_or_split() {
    let long = "Wörter 漢字 and spaces\n".repeat(100_000);
    let found = documents("a.txt", long.as_bytes(), None).expect("read");
    assert!(found.len() == 1 && found[0].0 == long && found[0].1 > 3, "{}", found[0].1);
    assert_eq!(texts(documents("a.txt", b"a\n\nb\n\n\n\n c", Some("\n\n"))), ["a", "b", " c"]);
    // a separator on the border of every block
    let many = format!("{}<|end|>", "é".repeat(BLOCK / 2 - 3));
    let found = texts(documents("a.txt", many.repeat(9).as_bytes(), Some("<|end|>")));
    assert_eq!(found, vec!["é".repeat(BLOCK / 2 - 3); 9]);
    let found = documents("a.txt", format!("{long}|{long}").as_bytes(), Some("|")).expect("read");
    assert!(found.iter().all(|(text, parts)| *text == long && *parts > 3) && found.len() == 2);
}

#[test]
fn a_mark_at_the_beginning_is_no_part_of_a_line() {
    let line = "{\"text\": \"a\"}\n";
    for marked in [format!("\u{feff}{line}"), format!("\u{feff}\n{line}")] {
        assert_eq!(texts(documents("a.jsonl", marked.as_bytes(), None)), ["a"]);
    }
    let later = format!("{line}\u{feff}{line}");
    let error = documents("a.jsonl", later.as_bytes(), None).expect_err("no object").to_string();
    assert!(error.contains("line 2"), "{error}");
}

#[test]
fn a_line_without_a_space_stays_whole() {
    let long = "x".repeat(3_000_000);
    assert_eq!(documents("a.txt", long.as_bytes(), None).expect("read"), [(long, 1)]);
}

#[test]
fn lines_have_their_field() {
    let lines = "{\"id\": 1, \"text\": \"a\\nb\"}\n\n{\"text\":\"\\u00e9\",\"x\":{\"text\":3}}";
    assert_eq!(texts(documents("a.jsonl", lines.as_bytes(), None)), ["a\nb", "é"]);
    for (line, message) in [
        ("{\"body\": \"x\", \"n\": 1}", "line 2: it has no field `text`: choose one of body, n with --field"),
        ("{\"text\": 7}", "line 2: its field `text` is a number, not a text"),
        ("[1]", "line 2: it is no JSON object"),
        ("{\"text\": \"a\"", "line 2: it is no JSON object"),
        ("{\"text\": \"a\"} x", "line 2: it is no JSON object"),
    ] {
        let problem = documents("a.jsonl", format!("{{\"text\":\"\"}}\n{line}").as_bytes(), None);
        let problem = problem.expect_err("refused").to_string();
        assert!(problem.contains(message), "{problem}");
    }
    let problem = documents("a.jsonl", b"{\"text\": \"\xff\"}", None).expect_err("refused").to_string();
    assert!(problem.contains("line 1: it is not UTF-8 at byte 10"), "{problem}");
    let problem = documents("a.txt", b"abc\xffd", None).expect_err("refused").to_string();
    assert!(problem.contains("a.txt") && problem.contains('3'), "{problem}");
    let problem = documents("a.txt", "ab漢".as_bytes().split_last().expect("bytes").1, None);
    assert!(problem.is_err(), "the end of a character is missing");
}

#[test]
fn packed_files_may_have_several_members() {
    let gzip = |text: &str| {
        let mut packed = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
        std::io::Write::write_all(&mut packed, text.as_bytes()).expect("packed");
        packed.finish().expect("packed")
    };
    let packed = [gzip("one "), gzip("two")].concat();
    assert_eq!(texts(documents("a.txt.gz", &packed, None)), ["one two"]);
    let zstd = |text: &str| {
        ruzstd::encoding::compress_to_vec(text.as_bytes(), ruzstd::encoding::CompressionLevel::Fastest)
    };
    let packed_zstd = [zstd("one "), zstd("two")].concat();
    assert_eq!(texts(documents("a.txt.zst", &packed_zstd, None)), ["one two"]);
    for (name, cut) in
        [("a.txt.gz", &packed[..packed.len() - 9]), ("a.txt.zst", &packed_zstd[..packed_zstd.len() - 5])]
    {
        let problem = documents(name, cut, None).expect_err("refused").to_string();
        assert!(problem.contains("damaged or cut off"), "{problem}");
    }
    assert!(documents("a.txt.gz", b"plain text", None).is_err());
}
