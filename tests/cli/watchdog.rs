//! The watchdog through the program: spikes are skipped or end the run, and a resumed run judges as if uninterrupted.

use crate::support;

use std::fs;
use std::io::Write;
use support::{Lab, checkpoints, column, essence, everything, record, rows, tiny, train_csv};

/// Data that is easy but for a few rows of noise: steps that read those stand out.
fn lab() -> Lab {
    let lab = Lab::new();
    let mut tokens: Vec<u16> = (0..33 * 8 * 40).map(|i| (i % 7) as u16).collect();
    let noise = support::tokens(32 * 8, 5);
    // rows are read in order, 8 per step: steps 20 and 21
    tokens[32 * 8 * 20..][..32 * 8].copy_from_slice(&noise);
    lab.shard("data/spike.bin", &tokens);
    lab
}

const SPIKY: [&str; 7] = [
    "data.train=data/spike.bin",
    "data.shuffle=false",
    "schedule.max_steps=30",
    "eval.every=0",
    "checkpoint.every=3",
    "watchdog.max_loss_zscore=4",
    "watchdog.window=8",
];

#[test]
fn a_spike_is_skipped_and_the_run_goes_on() {
    let lab = lab();
    let sets = [&SPIKY[..], &["watchdog.action=skip"]].concat();
    let whole = lab.run(tiny("whole", &sets));
    whole.expect(0).says(&["warning: step 20 is skipped by the watchdog", "standard deviations above"]);
    let run = lab.run_of(&whole);
    let skipped = column(&run, "skipped");
    assert_eq!(skipped[20], 1.0, "{skipped:?}");
    assert!(skipped[..20].iter().all(|&s| s == 0.0), "{skipped:?}");
    let csv = train_csv(&run);
    assert!(csv.rows.iter().flatten().all(|cell| !cell.contains("NaN") && !cell.contains("inf")), "{csv:?}");
    // without the watchdog, the same spike is learned from
    let without: Vec<_> = SPIKY[..5].to_vec();
    let without = lab.train_in("without", &without);
    assert_eq!(column(&without, "loss")[..21], column(&run, "loss")[..21]);
    assert_ne!(column(&without, "loss")[21..], column(&run, "loss")[21..]);
    assert_ne!(without.file_name(), run.file_name(), "a watchdog that skips is another experiment");
    // killed before, in the middle and after
    for killed in [19, 21, 22, 25] {
        let runs = format!("runs-{killed}");
        let run_again = lab.crash(&runs, &sets, &format!("csv.before_row:{killed}"));
        lab.run(tiny(&runs, &sets)).expect(0);
        assert!(essence(&run_again) == essence(&run), "killed at row {killed}");
    }
}

#[test]
fn ranks_skip_a_spike_together() {
    let lab = lab();
    let sets = [&SPIKY[..], &["watchdog.action=skip", "batch.micro_batch=1"]].concat();
    let alone = lab.train_in("alone", &sets);
    let skipped = column(&alone, "skipped");
    assert_eq!(skipped[20], 1.0, "{skipped:?}");
    for shard in ["distributed.shard_optimizer=false", "distributed.shard_optimizer=true"] {
        let run = lab.train_in(shard, &[&sets[..], &["batch.world_size=2", shard]].concat());
        assert_eq!(column(&run, "skipped"), skipped, "{shard}");
        for (step, (loss, alone)) in column(&run, "loss").iter().zip(column(&alone, "loss")).enumerate() {
            assert!((loss - alone).abs() <= 1e-5 * alone, "{shard}, step {step}: {loss} and {alone}");
        }
    }
}

#[test]
fn a_spike_stops_the_run_before_it_is_applied() {
    let lab = lab();
    let sets = [&SPIKY[..], &["watchdog.max_grad_zscore=1e6"]].concat();
    let stopped = lab.run(tiny("runs", &sets));
    stopped.expect(4).says(&["diverged at step 20: the loss", "standard deviations above", "--resume"]);
    let run = lab.run_of(&stopped);
    assert_eq!((rows(&run), record(&run)["status"].as_str()), (20, Some("diverged")));
    assert_eq!(checkpoints(&run).last().map(String::as_str), Some("step-00000018"));
    let before = everything(&run);
    lab.run(tiny("runs", &sets)).expect(4);
    assert!(everything(&run) == before, "nothing is tried again");
    // a milder watchdog may go on where this one has stopped
    let id = run.file_name().and_then(|name| name.to_str()).expect("a name");
    let state = run.join("checkpoints/step-00000018/state.json");
    let state = fs::read_to_string(state).expect("a state");
    let window: serde_json::Value = serde_json::from_str(&state).expect("JSON");
    assert_eq!(window["watchdog"]["losses"].as_array().map(Vec::len), Some(8), "{state}");
    lab.run(["--resume", id]).expect(4).says(&["diverged at step 20"]);
    let resumed = lab.run(["--resume", id, "--set", "watchdog.max_loss_zscore=0"]);
    resumed.expect(0).says(&["step 18 of 30"]);
    let free = lab.train_in("free", &SPIKY[..5]);
    assert_eq!(column(&run, "loss"), column(&free, "loss"));
}

/// What stands out may be what somebody has written over the data.
#[test]
fn a_spike_of_data_that_were_changed_says_nothing_of_the_recipe() {
    let lab = lab();
    let spiky = fs::read(lab.path("data/spike.bin")).expect("a shard");
    let easy: Vec<u16> = (0..33 * 8 * 40).map(|i| (i % 7) as u16).collect();
    let path = lab.shard("data/spike.bin", &easy);
    let good = fs::read(&path).expect("a shard");
    // a checkpoint would look at the data before
    let sets = [&SPIKY[..4], &["checkpoint.every=0"], &SPIKY[5..]].concat();
    let whole = essence(&lab.train_in("whole", &sets));
    let (live, gate) = lab.held(lab.command(tiny("runs", &sets)), "csv.before_row:15");
    gate.reached();
    let run = lab.only_run("runs");
    let write = |bytes: &[u8]| {
        fs::File::options()
            .write(true)
            .open(&path)
            .and_then(|mut file| file.write_all(bytes))
            .expect("written");
    };
    write(&spiky);
    gate.open();
    live.end().expect(1).says(&["spike.bin` was changed while it is in use"]);
    assert_eq!(
        (record(&run)["status"].as_str(), record(&run)["data_changed"].as_bool()),
        (Some("failed"), Some(true))
    );
    write(&good);
    lab.run(tiny("runs", &sets)).expect(0);
    assert!(essence(&run) == whole);
}

#[test]
fn a_watchdog_that_watches_nothing_is_told_so() {
    let lab = Lab::new();
    lab.run(tiny("runs", &["watchdog.window=9"])).expect(2).says(&[
        "`watchdog.window` has no effect with watchdog.max_loss_zscore = 0.0 and watchdog.max_grad_zscore = 0.0",
    ]);
    lab.run(tiny("runs", &["watchdog.action=skip", "watchdog.max_grad_zscore=3"])).expect(0);
    assert!(lab.runs("runs").len() == 1);
}
