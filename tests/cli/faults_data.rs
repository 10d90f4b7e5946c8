//! Data that others change while a run reads them: the run ends, names the file, saves nothing of what it has read
//! since, and goes on as if nothing had happened once the data are back.

use crate::support;

use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};
use support::{Gate, Lab, Live, checkpoints, essence, record, rows, shard, tiny, tokens, wait};

const SETS: &[&str] = &["checkpoint.keep=0"];

/// A run that is held before a row of its logs, once the rows before that one are logged: this many of steps and of
/// evaluations. It does nothing until the gate is opened.
fn held(
    lab: &Lab,
    runs: &str,
    sets: &[&str],
    row: usize,
    rows_before: (usize, usize),
) -> (Live, Gate, PathBuf) {
    let (live, gate) = lab.held(lab.command(tiny(runs, sets)), &format!("csv.before_row:{row}"));
    gate.reached();
    let run = lab.only_run(runs);
    let evaluated = fs::read_to_string(run.join("val.csv")).map_or(0, |text| text.matches('\n').count());
    let (steps, evaluations) = rows_before;
    assert_eq!((rows(&run), evaluated), (steps, evaluations + 1));
    (live, gate, run)
}

/// Writes over the beginning of a file without cutting it first, as a copy into it does.
fn overwrite(path: &Path, bytes: &[u8]) {
    let file = File::options().write(true).open(path).expect("open");
    file.write_all_at(bytes, 0).expect("written");
}

fn replace(path: &Path, bytes: &[u8]) {
    let other = path.with_extension("new");
    fs::write(&other, bytes).expect("written");
    fs::rename(other, path).expect("renamed");
}

fn cut(path: &Path, bytes: u64) {
    let file = File::options().write(true).open(path).expect("open");
    let length = file.metadata().expect("stat").len();
    file.set_len(length - bytes).expect("cut");
}

#[test]
fn data_that_are_changed_under_a_run_end_it_and_what_is_saved_knows_nothing_of_them() {
    type Change = fn(&Path);
    let changes: [(&str, Change, &str); 5] = [
        // within the last page, which then reads as zeros
        ("train", |path| cut(path, 800), "had 9024 bytes at the start and has 8224 now"),
        (
            "train",
            |path| overwrite(path, &shard(&tokens(4000, 7))),
            "its contents are others than at the start",
        ),
        ("train", |path| replace(path, &shard(&tokens(4000, 7))), "another file with other contents"),
        ("train", |path| overwrite(path, &shard(&[60_000; 4000])), "token 60000 at index"),
        ("val", |path| overwrite(path, &shard(&tokens(600, 8))), "its contents are others than at the start"),
    ];
    let lab = Lab::new();
    let whole = essence(&lab.train_in("whole", SETS));
    for (i, (set, change, says)) in changes.into_iter().enumerate() {
        let runs = format!("runs-{i}");
        let path = lab.path(format!("data/{set}.bin"));
        let good = fs::read(&path).expect("read");
        // the checkpoint of step 4 is written, that of step 8 is not
        let (live, gate, run) = held(&lab, &runs, SETS, 8, (5, 2));
        change(&path);
        gate.open();
        let key = format!("data.{set}");
        live.end().expect(1).says(&[
            &key,
            &format!("{set}.bin` was changed while it is in use"),
            says,
            "put it back",
        ]);
        assert_eq!(checkpoints(&run), ["step-00000004"], "change {i}");
        assert_eq!(record(&run)["status"], "failed");
        assert!(record(&run)["error"].as_str().is_some_and(|error| error.contains(says)), "{}", record(&run));
        assert_eq!(record(&run)["data_changed"], true);
        replace(&path, &good);
        lab.run(tiny(&runs, SETS)).expect(0).says(&["step 4 of 12"]);
        assert!(record(&run).get("data_changed").is_none(), "{}", record(&run));
        assert!(essence(&run) == whole, "change {i}");
    }
}

#[test]
fn an_evaluation_on_changed_data_is_not_logged() {
    let lab = Lab::new();
    let sets = ["eval.every=1", "checkpoint.every=0"];
    let whole = essence(&lab.train_in("whole", &sets));
    let path = lab.path("data/val.bin");
    let good = fs::read(&path).expect("read");
    for (runs, token, says) in
        [("other", 7, "its contents are others than at the start"), ("outside", 256, "token 256 at index 0 ")]
    {
        let (live, gate, run) = held(&lab, runs, &sets, 8, (3, 4));
        overwrite(&path, &shard(&[token; 600]));
        gate.open();
        live.end().expect(1).says(&["data.val", "was changed while it is in use", says]);
        let evaluated = support::val_csv(&run).numbers("step");
        assert!(evaluated == [0.0, 1.0, 2.0] || evaluated == [0.0, 1.0, 2.0, 3.0], "{evaluated:?}");
        assert_eq!(record(&run)["status"], "failed");
        replace(&path, &good);
        lab.run(tiny(runs, &sets)).expect(0);
        assert!(essence(&run) == whole, "{runs}");
    }
}

#[test]
fn what_is_done_to_a_file_without_changing_its_contents_does_no_harm() {
    let lab = Lab::new();
    let whole = essence(&lab.train_in("whole", SETS));
    let path = lab.path("data/train.bin");
    let good = fs::read(&path).expect("read");
    type Change<'a> = Box<dyn Fn() + 'a>;
    let changes: [Change; 4] = [
        Box::new(|| {
            let file = File::options().append(true).open(&path).expect("open");
            file.set_modified(SystemTime::now() - Duration::from_secs(99)).expect("dated");
        }),
        Box::new(|| overwrite(&path, &good)),
        Box::new(|| replace(&path, &good)),
        Box::new(|| fs::remove_file(&path).expect("removed")),
    ];
    for (i, change) in changes.iter().enumerate() {
        let runs = format!("runs-{i}");
        let (live, gate, run) = held(&lab, &runs, SETS, 8, (5, 2));
        change();
        gate.open();
        live.end().expect(0);
        assert!(essence(&run) == whole, "change {i}");
    }
}

#[test]
fn data_that_are_put_back_before_anything_looks_at_them_are_found_by_the_rows_that_were_read() {
    let lab = Lab::new();
    let sets = ["schedule.max_steps=100000000", "checkpoint.every=0", "eval.every=0"];
    let mut live = lab.start(tiny("runs", &sets));
    let run = lab.only_run("runs");
    let more = |count: usize| {
        let before = rows(&run);
        wait("more rows", || rows(&run) >= before + count);
    };
    more(3);
    let path = lab.path("data/train.bin");
    let good = fs::read(&path).expect("read");
    overwrite(&path, &shard(&tokens(4000, 7)));
    more(5);
    overwrite(&path, &good);
    more(5);
    live.signal("TERM");
    live.end().expect(1).says(&["train.bin", "was read with other tokens than it has now"]);
    assert!(!run.join("checkpoints").exists() || checkpoints(&run).is_empty());
}

#[test]
fn a_text_may_change_and_its_encoded_copy_may_not() {
    let lab = Lab::new();
    let text = "Lorem ipsum dolor sit amet, consectetur adipiscing elit. ".repeat(60);
    lab.write("data/train.txt", &text);
    let sets = ["data.train=data/train.txt", "data.val=[]", "model.vocab_size=50257", "schedule.max_steps=8"];
    let whole = essence(&lab.train_in("whole", &sets));
    for harmful in [false, true] {
        let runs = format!("runs-{harmful}");
        let (live, gate, run) = held(&lab, &runs, &sets, 6, (5, 0));
        let cached = fs::read_dir(lab.path(&runs).join(".cache")).expect("a cache");
        let mut cached = cached.map(|entry| entry.expect("an entry").path());
        let cached = cached.find(|path| path.extension().is_some_and(|extension| extension == "bin"));
        let cached = cached.expect("an encoded text");
        if harmful {
            overwrite(&cached, &shard(&[65_535; 200]));
        } else {
            lab.write("data/train.txt", "another text");
            fs::remove_dir_all(lab.path(&runs).join(".cache")).expect("removed");
        }
        gate.open();
        let ended = live.end();
        if harmful {
            ended.expect(1).says(&["was changed while it is in use"]);
            fs::remove_dir_all(lab.path(&runs).join(".cache")).expect("removed");
        } else {
            ended.expect(0);
        }
        lab.write("data/train.txt", &text);
        lab.run(tiny(&runs, &sets)).expect(0);
        assert!(essence(&run) == whole, "harmful: {harmful}");
    }
}

#[test]
fn more_files_than_a_process_may_keep_open_may_be_deleted_and_not_changed() {
    let lab = Lab::new();
    for part in 0..80 {
        lab.shard(&format!("data/part-{part:03}.bin"), &tokens(100, part));
    }
    let sets = [SETS, &["data.train=\"data/part-*.bin\""]].concat();
    let whole = essence(&lab.train_in("whole", &sets));
    type Change = fn(&Path, &[u8]);
    let changes: [(&str, Change, Option<&str>); 4] = [
        ("deleted", |path, _| fs::remove_file(path).expect("removed"), None),
        ("copied", replace, None),
        ("moved", |path, _| fs::rename(path, path.with_extension("moved")).expect("renamed"), None),
        ("exchanged", |path, bytes| replace(path, &bytes[..200]), Some("another file with other contents")),
    ];
    for (runs, change, complaint) in changes {
        let mut command = lab.launcher("sh");
        command.args(["-c", "ulimit -n 64; exec \"$RUNNER\" \"$@\"", "sh"]).args(tiny(runs, &sets));
        let (live, gate) = lab.held(command, "csv.before_row:8");
        gate.reached();
        let last = lab.path("data/part-079.bin");
        let bytes = fs::read(&last).expect("read");
        change(&last, &bytes);
        gate.open();
        let ended = live.end();
        match complaint {
            None => ended.expect(0),
            Some(complaint) => ended.expect(1).says(&["part-079.bin", complaint]),
        };
        fs::write(&last, &bytes).expect("back");
        lab.run(tiny(runs, &sets)).expect(0);
        assert!(essence(&lab.only_run(runs)) == whole, "{runs}");
    }
}

#[test]
fn ranks_end_together_when_data_are_changed() {
    let lab = Lab::new();
    let sets = ["checkpoint.keep=0", "batch.world_size=2"];
    let whole = essence(&lab.train_in("whole", &sets));
    let path = lab.path("data/train.bin");
    let good = fs::read(&path).expect("read");
    let bad = shard(&[60_000; 4000]);
    for (runs, bytes) in [("other", shard(&tokens(4000, 7))), ("outside", bad)] {
        let (live, gate, run) = held(&lab, runs, &sets, 8, (5, 2));
        overwrite(&path, &bytes);
        gate.open();
        live.end().expect(1).says(&["train.bin` was changed while it is in use"]);
        assert_eq!((&record(&run)["status"], checkpoints(&run).len()), (&"failed".into(), 1));
        replace(&path, &good);
        lab.run(tiny(runs, &sets)).expect(0).says(&["step 4 of 12"]);
        assert!(essence(&run) == whole, "{runs}");
    }
}
