//! Reading a few columns of a log quickly: a thousand runs of ten thousand rows are a gigabyte of text.
//!
//! Rows are handed out one by one as numbers, nothing is allocated per row or cell. Columns are found by name, so logs
//! of other versions are read as far as they go: a column that is missing and a cell that is empty are NaN. A torn last
//! line, which a killed or a writing process leaves, is passed over; a malformed row is left out and counted.

use super::bounds::{Allowance, has_header, without_long_lines};
use crate::regular;
use crate::run::RunError;
use crate::run::files::whole_lines;
use crate::run::records::HEADER;
use memchr::{memchr, memchr2};
use std::io::{BufRead, BufReader, ErrorKind, Read, Seek, SeekFrom};
use std::path::Path;

/// What a pass over a log found beside the rows that were handed out.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Scanned {
    /// The columns of the file, in order.
    pub header: Vec<String>,
    /// Rows that were not numbers in the columns asked for, had too few cells, or were too many for the file's size.
    pub malformed: u64,
    /// Why the file could not be read, naming it; it has no rows then.
    pub unreadable: Option<String>,
}

/// The columns of a log, in order. A missing file, one without a whole line and one that cannot be read have none.
pub fn header(path: &Path) -> Vec<String> {
    let mut line = Vec::new();
    let read = regular::open_unlinked(path);
    match read.and_then(|file| BufReader::new(file.take(HEADER as u64)).read_until(b'\n', &mut line)) {
        Ok(_) => scan_bytes(whole_lines(&line), &[], |_| {}).header,
        Err(_) => Vec::new(),
    }
}

/// How much of the end of a log is read to find its last row.
const TAIL: u64 = 1 << 14;

/// Reads a log into `buffer` and calls `each` for every whole row with the values of the columns `wanted`, in that
/// order. A missing file has no rows, and neither has one that cannot be read: it must not hide the other runs.
pub fn scan(path: &Path, wanted: &[&str], buffer: &mut Vec<u8>, each: impl FnMut(&[f64])) -> Scanned {
    match load(path, buffer) {
        Ok(()) => scan_bytes(whole_lines(buffer), wanted, each),
        Err(nothing) => nothing,
    }
}

/// Reads a log into `buffer`. Errors: what a pass finds over a log that is missing or cannot be read.
pub(super) fn load(path: &Path, buffer: &mut Vec<u8>) -> Result<(), Scanned> {
    buffer.clear();
    match regular::read_without_holes(path, buffer) {
        Ok(()) => Ok(()),
        Err(error) if error.kind() == ErrorKind::NotFound => Err(Scanned::default()),
        Err(error) => {
            buffer.clear();
            let error = RunError::Io { action: "read", path: path.to_owned(), error };
            Err(Scanned { unreadable: Some(error.to_string()), ..Scanned::default() })
        }
    }
}

/// The values of the columns `wanted` in the last whole row, without reading what is before it.
///
/// Errors: [`RunError::Io`].
pub fn last_row(path: &Path, wanted: &[&str]) -> Result<Option<Vec<f64>>, RunError> {
    let read = || -> std::io::Result<Vec<u8>> {
        let mut file = match regular::open_unlinked(path) {
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Vec::new()),
            file => file?,
        };
        let mut bytes = Vec::new();
        let length = file.metadata()?.len();
        if length > 2 * TAIL {
            // a header, and the lines that begin after some point near the end
            file.by_ref().take(TAIL).read_to_end(&mut bytes)?;
            bytes.truncate(bytes.iter().position(|&b| b == b'\n').map_or(0, |end| end + 1));
            file.seek(SeekFrom::Start(length - TAIL))?;
        }
        // a log may grow meanwhile, but not by much
        file.take(4 * TAIL).read_to_end(&mut bytes)?;
        Ok(bytes)
    };
    let bytes = read().map_err(|error| RunError::Io { action: "read", path: path.to_owned(), error })?;
    Ok(last_of(&bytes, wanted))
}

/// The values of the columns `wanted` in the last whole row of a log in memory: a header and at least the last lines,
/// the first of which may be torn.
pub fn last_of(bytes: &[u8], wanted: &[&str]) -> Option<Vec<f64>> {
    let whole = whole_lines(bytes);
    let header = whole.iter().position(|&b| b == b'\n')? + 1;
    let (header, rows) = whole.split_at(header);
    let mut tail = &rows[rows.len().saturating_sub(TAIL as usize)..];
    if tail.len() < rows.len() {
        tail = &tail[tail.iter().position(|&b| b == b'\n')? + 1..];
    }
    let mut last = None;
    scan_bytes(&[header, tail].concat(), wanted, |row| last = Some(row.to_vec()));
    last
}

/// [`scan`] over text in memory, which begins with a header.
pub fn scan_bytes(bytes: &[u8], wanted: &[&str], each: impl FnMut(&[f64])) -> Scanned {
    scan_piece(bytes, wanted, &mut Allowance::default(), each)
}

/// [`scan_bytes`] over a piece of a log behind its header. `allowance` is that of the whole log.
pub(super) fn scan_piece(
    bytes: &[u8],
    wanted: &[&str],
    allowance: &mut Allowance,
    mut each: impl FnMut(&[f64]),
) -> Scanned {
    if bytes.len() > HEADER && !bytes[..HEADER].contains(&b'\n') {
        // a name would take more memory than it has bytes
        return Scanned { malformed: 1, ..Scanned::default() };
    }
    match std::str::from_utf8(bytes) {
        // our own writer never quotes
        Ok(text) if !bytes.contains(&b'"') => scan_plain(text, wanted, allowance, each),
        _ => scan_quoted(bytes, wanted, [], allowance, |row, []| each(row)),
    }
}

/// For each column up to the last one wanted, where its value goes.
fn places(header: &[String], wanted: &[&str]) -> Vec<Option<usize>> {
    let mut places: Vec<_> = header.iter().map(|name| wanted.iter().position(|want| want == name)).collect();
    places.truncate(places.iter().rposition(Option::is_some).map_or(0, |last| last + 1));
    places
}

/// A cell as a number; empty is NaN.
fn number(cell: &str) -> Option<f64> {
    match cell.parse() {
        Ok(value) => Some(value),
        Err(_) => match cell.trim() {
            "" => Some(f64::NAN),
            text => text.parse().ok(),
        },
    }
}

fn scan_plain(
    text: &str,
    wanted: &[&str],
    allowance: &mut Allowance,
    mut each: impl FnMut(&[f64]),
) -> Scanned {
    let Some((first, rows)) = text.split_once('\n') else { return Scanned::default() };
    let header: Vec<String> = first.split(',').map(|name| name.trim().to_owned()).collect();
    let places = places(&header, wanted);
    // how many cells to pass over before each one that is read, and where that one goes
    let mut reads = Vec::new();
    let mut passed = 0;
    for place in places {
        match place {
            Some(place) => reads.push((std::mem::take(&mut passed), place)),
            None => passed += 1,
        }
    }
    let mut scanned = Scanned { header, ..Scanned::default() };
    let mut values = vec![f64::NAN; wanted.len()];
    allowance.grow(rows.len() as u64);
    let mut at = 0;
    while at < rows.len() {
        match read_row(rows, at, &reads, &mut values).filter(|_| allowance.take()) {
            Some(end) => {
                at = end;
                each(&values);
            }
            None => {
                scanned.malformed += 1;
                at = line_end(rows, at);
            }
        }
    }
    scanned
}

/// Reads cells of the row that begins at `at`; where the next row begins, or `None` for a malformed row.
fn read_row(rows: &str, mut at: usize, reads: &[(usize, usize)], values: &mut [f64]) -> Option<usize> {
    let bytes = rows.as_bytes();
    let mut ended = false;
    for &(passed, place) in reads {
        if ended {
            return None;
        }
        at = pass(bytes, at, passed)?;
        let end = cell_end(bytes, at);
        values[place] = number(&rows[at..end])?;
        ended = bytes[end] == b'\n';
        at = end + 1;
    }
    Some(if ended { at } else { line_end(rows, at) })
}

/// Where the line that holds `at` ends, behind its newline.
fn line_end(rows: &str, at: usize) -> usize {
    memchr(b'\n', &rows.as_bytes()[at..]).map_or(rows.len(), |newline| at + newline + 1)
}

/// The comma or newline that ends the cell at `at`. The bytes end with a newline.
fn cell_end(bytes: &[u8], at: usize) -> usize {
    at + memchr2(b',', b'\n', &bytes[at..]).expect("the last line is ended")
}

/// Where the cell begins that comes `count` cells after the one at `at`; `None` if the row ends before.
fn pass(bytes: &[u8], mut at: usize, count: usize) -> Option<usize> {
    for _ in 0..count {
        at = cell_end(bytes, at) + 1;
        if bytes[at - 1] == b'\n' {
            return None;
        }
    }
    Some(at)
}

/// [`scan_bytes`] for a file that another program has written, with quotes or with bytes that are not UTF-8. It hands
/// out the cells of the columns `texts` too, which are empty where a row has none.
pub(super) fn scan_texts<const N: usize>(
    bytes: &[u8],
    wanted: &[&str],
    texts: [&str; N],
    each: impl FnMut(&[f64], [&str; N]),
) -> Scanned {
    scan_quoted(bytes, wanted, texts, &mut Allowance::default(), each)
}

fn scan_quoted<const N: usize>(
    bytes: &[u8],
    wanted: &[&str],
    texts: [&str; N],
    allowance: &mut Allowance,
    mut each: impl FnMut(&[f64], [&str; N]),
) -> Scanned {
    let (bytes, malformed) = without_long_lines(bytes);
    if !has_header(&bytes) {
        return Scanned { malformed: malformed + 1, ..Scanned::default() };
    }
    let mut reader = csv::ReaderBuilder::new().flexible(true).from_reader(&*bytes);
    let header: Vec<String> = match reader.byte_headers() {
        Ok(names) => names.iter().map(|name| String::from_utf8_lossy(name).trim().to_owned()).collect(),
        Err(_) => return Scanned::default(),
    };
    let places = places(&header, wanted);
    let texts = texts.map(|text| header.iter().position(|name| name == text));
    let mut scanned = Scanned { header, malformed, ..Scanned::default() };
    let mut values = vec![f64::NAN; wanted.len()];
    allowance.grow((bytes.len() as u64).saturating_sub(reader.position().byte()));
    let mut record = csv::ByteRecord::new();
    while let Ok(true) = reader.read_byte_record(&mut record) {
        let mut good = true;
        for (i, place) in places.iter().enumerate() {
            let Some(place) = place else { continue };
            let cell = record.get(i).and_then(|cell| std::str::from_utf8(cell).ok()).and_then(number);
            good &= cell.is_some();
            values[*place] = cell.unwrap_or(f64::NAN);
        }
        let text = |place: usize| record.get(place).and_then(|cell| std::str::from_utf8(cell).ok());
        if good && allowance.take() {
            each(&values, texts.map(|place| place.and_then(text).unwrap_or_default()));
        } else {
            scanned.malformed += 1;
        }
    }
    scanned
}

#[cfg(test)]
mod tests {
    use super::super::bounds::{FEW_ROWS, ROW_BYTES};
    use super::*;

    #[test]
    fn a_hole_takes_no_memory_and_hides_no_row_behind_it() {
        use std::fs::File;
        use std::os::unix::fs::FileExt;
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("train.csv");
        std::fs::write(&path, "step,loss\n0,3\n1,2.5\n").expect("written");
        let file = File::options().write(true).open(&path).expect("open");
        file.write_all_at(b"\n2,2\n", 1 << 30).expect("written");
        file.set_len(3 << 30).expect("longer");
        let (mut buffer, mut rows) = (Vec::new(), Vec::new());
        let scanned = scan(&path, &["step", "loss"], &mut buffer, |row| rows.push(row.to_vec()));
        assert_eq!(rows, [[0.0, 3.0], [1.0, 2.5], [2.0, 2.0]]);
        assert_eq!(scanned.malformed, 1);
        assert!(buffer.len() < 1 << 16 && buffer.capacity() < 8 << 20, "{} bytes", buffer.capacity());
    }

    fn read(text: &str, wanted: &[&str]) -> (Vec<Vec<f64>>, u64) {
        let mut rows = Vec::new();
        let scanned = scan_bytes(whole_lines(text.as_bytes()), wanted, |row| rows.push(row.to_vec()));
        (rows, scanned.malformed)
    }

    #[test]
    fn columns_come_in_the_order_asked_for() {
        let (rows, malformed) =
            read("step,note,loss,mfu\n0,x,2.5,\n1,y,1e-3,0.5\n2,z,NaN,1\n3,torn", &["loss", "step"]);
        assert_eq!((rows.len(), malformed), (3, 0));
        assert_eq!(rows[..2], [[2.5, 0.0], [0.001, 1.0]]);
        assert!(rows[2][0].is_nan() && rows[2][1] == 2.0);
    }

    #[test]
    fn what_is_missing_is_nan_and_what_is_broken_is_counted() {
        let (rows, malformed) = read("step,loss\n0,1\nx,2\n2\n\n3,4\n", &["step", "grad_norm", "loss"]);
        assert_eq!(malformed, 3);
        let known: Vec<_> = rows.iter().map(|row| (row[0], row[2])).collect();
        assert_eq!(known, [(0.0, 1.0), (3.0, 4.0)]);
        assert!(rows.iter().all(|row| row[1].is_nan()));
        assert_eq!(read("", &["step"]), (vec![], 0));
        assert_eq!(read("step,lo", &["step"]), (vec![], 0), "a torn header");
    }

    #[test]
    fn rows_of_single_digits_without_end_are_not_held() {
        let lines = 30 * FEW_ROWS;
        for header in ["step", "\"step\""] {
            let text = format!("{header}\n{}", "1\n".repeat(lines as usize));
            let (rows, malformed) = read(&text, &["step", "loss"]);
            assert!(rows.len() as u64 <= FEW_ROWS + text.len() as u64 / ROW_BYTES, "{}", rows.len());
            assert_eq!(rows.len() as u64 + malformed, lines);
        }
        let wide: String = (0..2 * FEW_ROWS).map(|step| format!("{step},0.123456789\n")).collect();
        assert_eq!(read(&format!("step,loss\n{wide}"), &["step"]).1, 0, "rows as they are");
    }

    #[test]
    fn quoted_text_of_other_programs_is_read() {
        let text = "\"step\",\"a, b\",loss\n0,\"x\ny, \"\"z\"\"\",5\n1,\"\",6\nq,\"\",7\n";
        assert_eq!(read(text, &["step", "loss"]), (vec![vec![0.0, 5.0], vec![1.0, 6.0]], 1));
    }

    proptest::proptest! {
        #[test]
        fn the_quick_reader_reads_what_the_thorough_one_reads(
            cells in proptest::collection::vec("[0-9a.e,\n-]{0,40}", 0..8),
            wanted in proptest::sample::subsequence(vec!["a", "b", "c", "d", "e"], 1..=3),
        ) {
            let text = format!("a,b,c,d,e\n{}\n", cells.join("\n"));
            // the thorough one passes over empty lines
            let text: String = text.split_inclusive('\n').filter(|line| *line != "\n").collect();
            let (mut quick, mut thorough) = (Vec::new(), Vec::new());
            let bits = |row: &[f64]| row.iter().map(|x| x.to_bits()).collect::<Vec<_>>();
            let one = scan_plain(&text, &wanted, &mut Allowance::default(), |row| quick.push(bits(row)));
            let other = scan_texts(text.as_bytes(), &wanted, [], |row, []| thorough.push(bits(row)));
            proptest::prop_assert_eq!((one, quick), (other, thorough));
        }
    }

    #[test]
    fn the_last_row_is_found_from_the_end() {
        let dir = tempfile::tempdir().expect("tempdir");
        let path = dir.path().join("train.csv");
        assert_eq!(last_row(&path, &["step"]).expect("missing"), None);
        for rows in [0, 1, 2, 5000] {
            let text: String = (0..rows).map(|step| format!("{step},{}\n", step * 2)).collect();
            std::fs::write(&path, format!("step,tokens\n{text}77,")).expect("write");
            let last = (rows > 0).then(|| vec![f64::from(rows - 1) * 2.0, f64::from(rows - 1)]);
            assert_eq!(last_row(&path, &["tokens", "step"]).expect("read"), last);
        }
    }
}
