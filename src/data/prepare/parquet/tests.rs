//! Files as `pyarrow` writes them, and damage to them.

use super::*;
use crate::data::prepare::parquet;

/// `tests/golden/texts/NAME.parquet`, made by `make.py` there.
fn golden(name: &str) -> Vec<u8> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden/texts").join(name);
    std::fs::read(path).expect("a golden file")
}

fn read(bytes: &[u8], field: &str) -> Result<Vec<String>, String> {
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().join("a.parquet");
    std::fs::write(&path, bytes).expect("written");
    let mut found = Vec::new();
    let file = File::open(&path).expect("opened");
    let done = parquet::texts(&path, file, field, &|_| (), &mut |text| {
        found.push(text.to_owned());
        ControlFlow::Continue(())
    });
    done.map(|()| found).map_err(|error| error.to_string())
}

/// What `make.py` puts into every file.
fn expected() -> Vec<String> {
    (0..500)
        .map(|row| match row % 5 {
            0 => format!("Document {row}, with a few words.\n"),
            1 => "the same text again and again".to_owned(),
            2 => String::new(),
            3 => format!("漢字 {row} é 🦀"),
            _ => "long ".repeat(row % 40),
        })
        .collect()
}

const FILES: [&str; 6] = ["snappy", "zstd", "gzip", "plain", "required", "version2"];

#[test]
fn what_pyarrow_writes_is_read() {
    for name in FILES {
        assert!(read(&golden(&format!("{name}.parquet")), "text") == Ok(expected()), "{name}");
    }
}

#[test]
fn what_is_not_read_is_named() {
    let snappy = golden("snappy.parquet");
    let problem = read(&snappy, "body").expect_err("refused");
    assert!(
        problem.contains("its schema: it has no field `body`: choose one of id, tags, text"),
        "{problem}"
    );
    for column in ["id", "tags"] {
        let problem = read(&snappy, column).expect_err("refused");
        assert!(problem.contains(&format!("its column `{column}` does not hold texts")), "{problem}");
    }
    let problem = read(&golden("delta.parquet"), "text").expect_err("refused");
    assert!(problem.contains("row 0: its pages have the encoding DELTA_BYTE_ARRAY"), "{problem}");
    let problem = read(&golden("lz4.parquet"), "text").expect_err("refused");
    assert!(problem.contains("compressed with LZ4"), "{problem}");
    let problem = read(&golden("null.parquet"), "text").expect_err("refused");
    assert!(problem.contains("row 2: its text is null"), "{problem}");
    for bytes in [&b"<html>not found</html>"[..], &snappy[..snappy.len() - 5], b"PAR1"] {
        let problem = read(bytes, "text").expect_err("refused");
        assert!(problem.contains("no Parquet, or cut off"), "{problem}");
    }
}

/// Any byte of a file may be wrong: the texts are read, other texts are read, or the file is refused.
#[test]
fn damage_is_refused_or_another_text() {
    for name in FILES {
        let whole = golden(&format!("{name}.parquet"));
        let mut refused = 0;
        for at in (4..whole.len()).step_by(whole.len() / 150) {
            let mut broken = whole.clone();
            broken[at] ^= 0x5a;
            refused += usize::from(read(&broken, "text").is_err());
        }
        assert!(refused > 10, "{name}: {refused}");
    }
}
