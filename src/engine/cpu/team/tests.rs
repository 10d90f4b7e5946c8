//! The team at work, many times over.

use super::*;
use std::time::Duration;

#[test]
fn every_task_runs_once_however_many_helpers_are_awake() {
    for threads in [1, 2, 5] {
        let team = Team::new(threads).expect("a few threads can start");
        // Miri is some thousand times slower
        for round in 0..if cfg!(miri) { 12 } else { 300 } {
            let count = round % 40;
            let ran: Vec<_> = (0..count).map(|_| AtomicUsize::new(0)).collect();
            let busy: Vec<_> = (0..threads).map(|_| AtomicBool::new(false)).collect();
            team.tasks(count, |task, worker| {
                assert!(!busy[worker].swap(true, SeqCst), "two tasks share a worker");
                ran[task].fetch_add(1, SeqCst);
                busy[worker].store(false, SeqCst);
            });
            assert!(ran.iter().all(|times| times.load(SeqCst) == 1));
            if round % 100 == 50 {
                // long enough that helpers go to sleep
                thread::sleep(Duration::from_millis(30));
            }
        }
    }
}

#[test]
#[cfg_attr(miri, ignore = "Miri does not flush denormal numbers")]
fn helpers_come_and_flush_denormals() {
    let team = Team::new(2).expect("two threads can start");
    let (seen, helped) = (AtomicBool::new(false), AtomicBool::new(false));
    // two tasks that wait for each other need two threads
    team.tasks(2, |task, worker| {
        let (mine, other) = if task == 0 { (&seen, &helped) } else { (&helped, &seen) };
        mine.store(true, SeqCst);
        while !other.load(SeqCst) {
            thread::yield_now();
        }
        if worker == 1 {
            assert_eq!(std::hint::black_box(1e-30f32) * std::hint::black_box(1e-10), 0.0);
        }
    });
}

#[test]
fn a_panic_reaches_the_caller_and_the_team_goes_on() {
    let team = Team::new(3).expect("three threads can start");
    for task_that_fails in [0, 7, 63] {
        let run = || team.tasks(64, |task, _| assert!(task != task_that_fails, "task {task}"));
        assert!(catch_unwind(AssertUnwindSafe(run)).is_err());
        let count = AtomicUsize::new(0);
        team.tasks(64, |_, _| {
            count.fetch_add(1, SeqCst);
        });
        assert_eq!(count.load(SeqCst), 64);
    }
}
