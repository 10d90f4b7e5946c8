//! Files as `pyarrow` writes them, and damage to them.

use super::footer::MAGIC;
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

/// A structure in Thrift's compact protocol: bytes behind the step to a field's number and its kind.
fn fields(fields: &[(u8, u8, Vec<u8>)]) -> Vec<u8> {
    let mut out: Vec<u8> =
        fields.iter().flat_map(|(step, kind, value)| [&[step << 4 | kind][..], value].concat()).collect();
    out.push(0);
    out
}

fn number(value: u64) -> Vec<u8> {
    let mut value = value << 1;
    let mut out = Vec::new();
    while value > 0x7f {
        out.push(0x80 | (value & 0x7f) as u8);
        value >>= 7;
    }
    out.push(value as u8);
    out
}

/// Twelve structures or fewer.
fn list(items: &[Vec<u8>]) -> Vec<u8> {
    [&[(items.len() as u8) << 4 | 12][..], &items.concat()].concat()
}

/// A file of one required column of texts, with the rows and the places that its groups state.
fn file(pages: &[u8], groups: &[(u64, u64)]) -> Vec<u8> {
    file_of(1, pages, groups)
}

/// [`file`] with so many columns of one name.
fn file_of(columns: usize, pages: &[u8], groups: &[(u64, u64)]) -> Vec<u8> {
    let root = fields(&[(4, 8, b"\x01r".to_vec()), (1, 5, number(1))]);
    let text = fields(&[(1, 5, number(6)), (2, 5, number(0)), (1, 8, b"\x04text".to_vec())]);
    let group = |&(rows, at): &(u64, u64)| {
        let meta = fields(&[(4, 5, number(0)), (1, 6, number(rows)), (4, 6, number(at))]);
        fields(&[(1, 9, list(&[fields(&[(3, 12, meta)])]))])
    };
    let groups: Vec<_> = groups.iter().map(group).collect();
    let footer = fields(&[(2, 9, list(&[vec![root], vec![text; columns]].concat())), (2, 9, list(&groups))]);
    [MAGIC, pages, &footer, &(footer.len() as u32).to_le_bytes(), MAGIC].concat()
}

/// A page of a kind, with the fields that a header of its kind begins with.
fn page(kind: u64, field: u8, count: u64, encoding: u64, body: &[u8]) -> Vec<u8> {
    let size = || number(body.len() as u64);
    let inner = fields(&[(1, 5, number(count)), (1, 5, number(encoding))]);
    let header = fields(&[(1, 5, number(kind)), (1, 5, size()), (1, 5, size()), (field - 3, 12, inner)]);
    [&header[..], body].concat()
}

#[test]
fn a_few_bytes_do_not_state_a_billion_rows() {
    let empty = page(2, 7, 1, 0, &[0; 4]);
    // of indices of no bits, one run of so many
    let many = |rows: u64| page(0, 5, rows, 8, &[&[0][..], &number(rows)].concat());
    let read = |rows: u64| read(&file(&[&empty[..], &many(rows)].concat(), &[(rows, 4)]), "text");
    assert_eq!(read(1000), Ok(vec![String::new(); 1000]));
    for rows in [1 << 33, 1 << 62, u64::MAX >> 1] {
        let problem = read(rows).expect_err("refused");
        assert!(problem.contains("unfolds to more than 2048 times its size"), "{rows}: {problem}");
    }
}

#[test]
fn pages_do_not_overlap() {
    let body = [&40u32.to_le_bytes()[..], &[b'a'; 40]].concat();
    let one = page(0, 5, 1, 0, &body);
    let two = one.len() as u64 + 4;
    let text = "a".repeat(40);
    let both = [&one[..], &one].concat();
    assert_eq!(read(&file(&both, &[(1, 4), (1, two)]), "text"), Ok(vec![text.clone(), text]));
    let problem = read(&file(&one, &[(1, 4); 12]), "text").expect_err("refused");
    assert!(problem.contains("its pages overlap"), "{problem}");
}

/// A page is read whole, with the dictionary of its group beside it.
#[test]
fn what_is_held_is_the_largest_page_and_its_dictionary() {
    let held = |bytes: &[u8]| {
        let mut file = tempfile::tempfile().expect("a file");
        std::io::Write::write_all(&mut file, bytes).expect("written");
        parquet::held(file, "text")
    };
    let text = |len: usize| [&(len as u32).to_le_bytes()[..], &vec![b'a'; len]].concat();
    let (small, large) = (page(0, 5, 1, 0, &text(40)), page(0, 5, 1, 0, &text(60_000)));
    let dictionary = page(2, 7, 2, 0, &[text(3000), text(4000)].concat());
    let pages = [&small[..], &large, &small, &dictionary, &small].concat();
    let second = 4 + (2 * small.len() + large.len()) as u64;
    assert_eq!(held(&file(&pages, &[(3, 4)])), Ok(2 * 60_004));
    assert_eq!(held(&file(&pages, &[(1, second)])), Ok(3 * (3004 + 4004) + 2 * 8));
    assert_eq!(held(&file(&pages, &[(3, 4), (1, second)])), Ok(2 * 60_004));
    assert!(held(&file(&pages, &[(3, 4); 12])).expect_err("refused").contains("its pages overlap"));
    for name in FILES {
        let bytes = golden(&format!("{name}.parquet"));
        let found = held(&bytes).expect("pages");
        assert!((1..20 << 10).contains(&found), "{name}: {found}");
    }
}

#[test]
fn numbers_that_no_file_has_are_refused() {
    let one = page(0, 5, 1, 0, &[0; 4]);
    // the second group's rows do not fit behind those of the first
    let problem = read(&file(&one, &[(1, 4), (u64::MAX >> 1, 4)]), "text").expect_err("refused");
    assert!(!problem.is_empty());
    let mut wide = file(&one, &[(1, 4)]);
    // the root has as many children as there are numbers
    let at = wide.windows(3).position(|bytes| bytes == b"\x01r\x15").expect("the root") + 3;
    wide[at] = 0x7e;
    assert_eq!(read(&wide, "text"), Ok(vec![String::new()]));
}

#[test]
fn two_columns_of_one_name_are_refused() {
    let problem = read(&file_of(2, &[], &[(0, 4)]), "text").expect_err("refused");
    assert!(problem.contains("it has two columns `text`"), "{problem}");
}
