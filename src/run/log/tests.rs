//! Writing, cutting back and widening logs.

use super::super::cut::{Kept, cut, cut_back};
use super::super::records::{read_train, read_val};
use super::super::seal;
use super::*;
use std::fs;
use std::io::Write;
use std::path::Path;

#[allow(clippy::needless_update, reason = "needed once the table has a further column")]
fn row(step: u64) -> TrainRow {
    TrainRow {
        step,
        tokens: (step + 1) * 512,
        loss: 10.825 / (step + 1) as f32,
        lr: 6e-4 / 3.0,
        grad_norm: 1.0 / 3.0,
        epoch: 1e-9,
        loss_scale: 65536.0,
        skipped: step % 2 == 1,
        step_ms: 12.5,
        tokens_per_s: 40960.0,
        mfu: (step > 0).then_some(0.375),
        memory_bytes: 1 << 33,
        elapsed_s: step as f64 * 0.0125,
        ..TrainRow::UNKNOWN
    }
}

fn opened(dir: &Path) -> Arc<OpenDir> {
    Arc::new(OpenDir::open(dir).expect("open"))
}

fn written(dir: &Path, steps: std::ops::Range<u64>) {
    let mut log = TrainLog::open(&opened(dir)).expect("open");
    steps.for_each(|step| log.append(&row(step)).expect("append"));
    log.sync().expect("sync");
}

fn rows(path: &Path) -> Vec<TrainRow> {
    read_train(path).expect("read").collect::<Result<_, _>>().expect("every row")
}

#[test]
fn the_file_is_the_contract_byte_for_byte() {
    let dir = tempfile::tempdir().expect("tempdir");
    let path = dir.path().join("train.csv");
    written(dir.path(), 0..2);
    assert_eq!(
        fs::read_to_string(&path).expect("read"),
        "step,tokens,loss,lr,grad_norm,epoch,loss_scale,skipped,step_ms,tokens_per_s,mfu,memory_bytes,elapsed_s\n\
         0,512,10.825,0.00019999999999999998,0.3333333333333333,0.000000001,65536,0,12.5,40960,,8589934592,0\n\
         1,1024,5.4125,0.00019999999999999998,0.3333333333333333,0.000000001,65536,1,12.5,40960,0.375,8589934592,\
         0.0125\n"
    );
    assert_eq!(rows(&path), [row(0), row(1)]);
    let path = dir.path().join("val.csv");
    #[allow(clippy::needless_update, reason = "needed once the table has a further column")]
    let val = ValRow { step: 250, tokens: 1000, val_loss: 3.2914627, ..ValRow::UNKNOWN };
    ValLog::open(&opened(dir.path())).expect("open").append(&val).expect("append");
    assert_eq!(fs::read_to_string(&path).expect("read"), "step,tokens,val_loss\n250,1000,3.2914627\n");
    assert_eq!(read_val(&path).expect("read").next().expect("a row").expect("whole"), val);
}

#[test]
fn cutting_back_leaves_the_bytes_of_the_steps_before() {
    let (dir, shorter) = (tempfile::tempdir().expect("tempdir"), tempfile::tempdir().expect("tempdir"));
    let (path, short) = (dir.path().join("train.csv"), shorter.path().join("train.csv"));
    written(dir.path(), 0..5);
    written(shorter.path(), 0..3);
    fs::OpenOptions::new().append(true).open(&path).expect("open").write_all(b"5,30").expect("tear");
    assert_eq!(rows(&path).len(), 5, "a torn line is passed over");
    assert!(TrainLog::open(&opened(dir.path())).expect_err("torn").to_string().contains("torn"));
    let kept = cut_back(&opened(dir.path()), "train.csv", 3, None).expect("cut");
    assert_eq!(kept, Kept { rows: 3, last_step: Some(2), elapsed_s: 0.025 });
    assert_eq!(fs::read(&path).expect("read"), fs::read(&short).expect("read"));
    let modified = || fs::metadata(&path).expect("stat").modified().expect("mtime");
    let before = modified();
    assert_eq!(cut_back(&opened(dir.path()), "train.csv", 3, None).expect("again"), kept);
    assert_eq!(modified(), before, "nothing to cut, nothing written");
    written(dir.path(), 3..4);
    assert_eq!(rows(&path).last(), Some(&row(3)));
    assert_eq!(cut_back(&opened(dir.path()), "train.csv", 0, None).expect("cut"), Kept::default());
    assert_eq!(rows(&path), []);
    assert_eq!(cut_back(&opened(dir.path()), "none.csv", 7, None).expect("no file"), Kept::default());
}

#[test]
fn a_torn_header_is_cut_to_nothing_and_written_anew() {
    let dir = tempfile::tempdir().expect("tempdir");
    let path = dir.path().join("train.csv");
    fs::write(&path, "step,tok").expect("write");
    assert_eq!(rows(&path), []);
    assert_eq!(cut_back(&opened(dir.path()), "train.csv", 9, None).expect("cut"), Kept::default());
    written(dir.path(), 0..1);
    assert_eq!(rows(&path), [row(0)]);
}

#[test]
fn garbage_is_cut_off_behind_the_checkpoint_and_refused_before_it() {
    let dir = tempfile::tempdir().expect("tempdir");
    let path = dir.path().join("train.csv");
    written(dir.path(), 0..3);
    let whole = fs::read(&path).expect("read");
    fs::write(&path, [&whole, &b"\0\0\xff\n3,4\n"[..]].concat()).expect("write");
    assert!(
        cut_back(&opened(dir.path()), "train.csv", 4, None)
            .expect_err("row 3 is lost")
            .to_string()
            .contains("train.csv")
    );
    assert_eq!(cut_back(&opened(dir.path()), "train.csv", 3, None).expect("cut").rows, 3);
    assert_eq!(fs::read(&path).expect("read"), whole);
}

#[test]
fn a_stray_sign_in_a_line_does_not_end_it_elsewhere() {
    let dir = tempfile::tempdir().expect("tempdir");
    let path = dir.path().join("train.csv");
    written(dir.path(), 0..4);
    let whole = fs::read(&path).expect("read");
    let third = whole.iter().enumerate().filter(|(_, b)| **b == b'\n').nth(2).expect("a line").0 + 1;
    for stray in [b'\r', b'"'] {
        let mut bytes = whole.clone();
        // in the row of step 2, behind its step
        bytes[third + 4] = stray;
        fs::write(&path, &bytes).expect("write");
        for first_step_to_drop in [2, 3, 4] {
            if let Ok((_, left)) = cut(&path, &bytes, first_step_to_drop) {
                assert!(left.ends_with(b"\n") && bytes.starts_with(&left), "{stray}, {first_step_to_drop}");
            }
        }
        assert_eq!(cut_back(&opened(dir.path()), "train.csv", 2, None).expect("cut").rows, 2);
        written(dir.path(), 2..3);
        assert_eq!(rows(&path).len(), 3);
    }
}

#[test]
fn a_log_of_an_earlier_version_keeps_its_columns() {
    let dir = tempfile::tempdir().expect("tempdir");
    let path = dir.path().join("train.csv");
    let before = "step,loss,skipped,elapsed_s,mfu\n0,2.5,0,1.5,\n";
    fs::write(&path, before).expect("write");
    let mut log = TrainLog::open(&opened(dir.path())).expect("open");
    log.append(&row(1)).expect("append");
    log.append(&TrainRow { mfu: None, ..row(2) }).expect("append");
    let after = format!("{before}1,5.4125,1,0.0125,0.375\n2,{},0,0.025,\n", row(2).loss);
    assert_eq!(fs::read_to_string(&path).expect("read"), after);
    cut_back(&opened(dir.path()), "train.csv", 1, None).expect("cut");
    assert_eq!(fs::read_to_string(&path).expect("read"), before);
}

#[test]
fn a_log_takes_up_columns_and_keeps_those_that_nothing_fills() {
    let dir = tempfile::tempdir().expect("tempdir");
    let path = dir.path().join("val.csv");
    #[allow(clippy::needless_update, reason = "needed once the table has a further column")]
    let row = |step| ValRow { step, tokens: step, val_loss: 2.5, ..ValRow::UNKNOWN };
    let names = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>();
    ValLog::open_with(&opened(dir.path()), &[], None).expect("open").append(&row(0)).expect("append");
    let before = fs::read(&path).expect("read");
    let first = FileDigest::of(&before);
    let mut log = ValLog::open_with(&opened(dir.path()), &names(&["a_acc"]), None).expect("open");
    log.append_with(&row(1), &names(&["0.5"])).expect("append");
    let mut log = ValLog::open_with(&opened(dir.path()), &names(&["b_acc"]), None).expect("open");
    log.append_with(&row(2), &names(&["0.25"])).expect("append");
    let expected = "step,tokens,val_loss,a_acc,b_acc\n0,0,2.5,,\n1,1,2.5,0.5,\n2,2,2.5,,0.25\n";
    assert_eq!(fs::read_to_string(&path).expect("read"), expected);
    let earlier = Some(EarlierRow { step: 3, cells: names(&["3", "3", "2.5", "0.75", "0.125"]) });
    let mut log = ValLog::open_with(&opened(dir.path()), &names(&["b_acc"]), earlier).expect("open");
    log.append_with(&row(3), &names(&["0.5"])).expect("append");
    log.append_with(&row(4), &names(&["0.5"])).expect("append");
    let again = expected.to_owned() + "3,3,2.5,0.75,0.5\n4,4,2.5,,0.5\n";
    assert_eq!(fs::read_to_string(&path).expect("read"), again);
    // what was there before is known again
    seal::verify_beginning(&path, &first).expect("the first row");
    fs::write(&path, expected.replace("0,0,2.5", "0,0,2.4")).expect("write");
    seal::verify_beginning(&path, &first).expect_err("another row");
    fs::write(&path, &before).expect("write");
    seal::verify_beginning(&path, &first).expect("the file itself");
}

#[test]
fn a_log_with_columns_that_cannot_be_written_is_refused() {
    let dir = tempfile::tempdir().expect("tempdir");
    let path = dir.path().join("train.csv");
    for (header, what) in [
        ("loss,lr", "no column `step`"),
        ("step,note,loss", "a column `note`"),
        ("step,loss,step", "two columns `step`"),
    ] {
        fs::write(&path, format!("{header}\n")).expect("write");
        let error = TrainLog::open(&opened(dir.path())).expect_err("refused").to_string();
        assert!(error.contains(what) && error.contains("train.csv"), "{error}");
    }
}
