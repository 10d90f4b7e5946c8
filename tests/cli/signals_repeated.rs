//! One event may send several signals, milliseconds apart: all of them together ask for one checkpoint.

#![cfg(unix)]

use crate::processes::{port, rank, sized};
use crate::signals::{held_in_a_step, minds_hang_ups, slow};
use crate::support;

use std::process::Command;
use std::thread::sleep;
use std::time::{Duration, Instant};
use support::{Lab, Live, checkpoints, record, rows, spawned};

/// Sends two signals to each of these processes, 5 ms apart, and gives them time to arrive. False if that took so long
/// that the second ones may count as others.
fn sent_twice(ids: &[u32], signals: [&str; 2]) -> bool {
    let ids = ids.iter().map(u32::to_string).collect::<Vec<_>>().join(" ");
    let script = format!("kill -{} {ids}; sleep 0.005; kill -{} {ids}", signals[0], signals[1]);
    let start = Instant::now();
    let sent = Command::new("sh").args(["-c", &script]).status();
    assert!(sent.is_ok_and(|status| status.success()), "{script}");
    let took = start.elapsed();
    sleep(Duration::from_millis(200));
    took < Duration::from_millis(300)
}

/// Tries again where the machine was too busy.
fn once_in_time(mut attempt: impl FnMut() -> bool) {
    assert!((0..20).any(|_| attempt()), "the machine is too busy to send two signals");
}

/// Asserts that the only run was interrupted, with a checkpoint of its last step.
fn interrupted(lab: &Lab) {
    let run = lab.only_run("runs");
    let last = format!("step-{:08}", rows(&run));
    assert_eq!((&record(&run)["status"], checkpoints(&run).last()), (&"interrupted".into(), Some(&last)));
}

#[test]
fn two_signals_of_one_event_leave_a_checkpoint() {
    for (signals, code) in [
        (["HUP", "HUP"], 129),
        (["INT", "INT"], 130),
        (["TERM", "TERM"], 143),
        (["HUP", "TERM"], 129),
        (["INT", "TERM"], 130),
    ] {
        once_in_time(|| {
            let lab = Lab::new();
            // it is held while they arrive
            let (mut live, gate) = held_in_a_step(&lab, minds_hang_ups(&lab, &slow(1000)), 1000, 2);
            let in_time = sent_twice(&[live.id()], signals);
            gate.open();
            let ended = live.end();
            if in_time {
                ended.expect(code).says(&["interrupted after"]);
                interrupted(&lab);
            }
            in_time
        });
    }
}

/// Nobody is there to mean it.
#[test]
fn a_terminal_that_closes_is_no_second_signal() {
    let lab = Lab::new();
    let (mut live, gate) = held_in_a_step(&lab, minds_hang_ups(&lab, &slow(1000)), 1000, 2);
    live.signal("INT");
    sleep(Duration::from_millis(1200));
    live.signal("HUP");
    sleep(Duration::from_millis(200));
    gate.open();
    live.end().expect(130).says(&["SIGINT: stopping", "interrupted after"]);
    interrupted(&lab);
}

#[test]
fn ranks_that_a_launcher_signals_twice_leave_a_checkpoint() {
    once_in_time(|| {
        let lab = Lab::new();
        let args = sized("runs", 2, &["batch.total_tokens=6400", "eval.every=0", "checkpoint.every=0"]);
        let port = port();
        let second = spawned(rank(&lab, 1, 2, port, &args));
        // each rank has a hundred micro-steps in a step
        let (first, gate) = held_in_a_step(&lab, rank(&lab, 0, 2, port, &args), 100, 2);
        let mut ranks = [first, second];
        let in_time = sent_twice(&ranks.each_mut().map(Live::id), ["TERM", "TERM"]);
        gate.open();
        let ended = ranks.map(Live::end);
        if in_time {
            for ended in &ended {
                ended.expect(143);
            }
            ended[0].says(&["interrupted after"]);
            interrupted(&lab);
        }
        in_time
    });
}
