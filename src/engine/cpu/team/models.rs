//! The gate in every order of events that Loom finds, up to a number of preemptions.

use super::*;
use crate::sync::atomic::Ordering::SeqCst;

/// Runs a model, with at most so many places where a thread is stopped in the middle of its work.
fn model(preemptions: usize, check: impl Fn() + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(preemptions);
    builder.check(check);
}

/// Tasks that count themselves; what they count in lives no longer than the call.
fn count(team: &Team, tasks: usize) {
    let ran: Vec<_> = (0..tasks).map(|_| AtomicUsize::new(0)).collect();
    let threads = team.threads();
    team.tasks(tasks, |task, worker| {
        assert!(worker < threads);
        ran[task].fetch_add(1, Relaxed);
    });
    assert!(ran.iter().all(|times| times.load(Relaxed) == 1), "a task ran twice or not at all");
}

#[test]
fn two_jobs_and_the_end_with_one_helper() {
    model(3, || {
        let team = Team::new(2).expect("a thread");
        count(&team, 2);
        count(&team, 2);
    });
}

#[test]
fn a_job_with_two_helpers() {
    model(2, || {
        let team = Team::new(3).expect("two threads");
        count(&team, 3);
    });
}

/// What the tasks of one job wrote, the caller and the tasks of the next one read: without locks, so that only the
/// gate orders them.
#[test]
fn what_a_job_wrote_is_there_for_the_next_one() {
    model(3, || {
        let team = Team::new(2).expect("a thread");
        let places = [InTurns::<usize>::default(), InTurns::default()];
        for round in 1..=2 {
            team.tasks(2, |task, _| {
                // SAFETY: the place is this task's alone, which is what the model proves.
                unsafe {
                    assert_eq!(places[task].read(), round - 1);
                    places[task].write(round);
                }
            });
            // SAFETY: all tasks have ended.
            assert!(places.iter().all(|place| unsafe { place.read() } == round));
        }
    });
}

#[test]
fn a_helper_that_sleeps_is_woken() {
    model(2, || {
        let team = Team::new(2).expect("a thread");
        let shared = team.shared.as_ref().expect("helpers").clone();
        // without this, Loom would seldom let it fall asleep
        while shared.asleep.load(SeqCst) == 0 {
            thread::yield_now();
        }
        count(&team, 2);
    });
}
