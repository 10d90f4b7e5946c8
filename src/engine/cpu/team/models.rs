//! The gate in every order of events that Loom finds, up to a number of preemptions.

use super::*;

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

/// Tasks each of which waits until all have begun: they need every worker at once.
fn together(team: &Team) {
    let threads = team.threads();
    let (begun, all) = (Mutex::new(0), Condvar::new());
    team.tasks(threads, |_, _| {
        let mut begun = begun.lock().expect("nothing panics");
        *begun += 1;
        all.notify_all();
        while *begun < threads {
            begun = all.wait(begun).expect("nothing panics");
        }
    });
}

/// Lets as many helpers fall asleep; without this, Loom would seldom do so.
fn wait_for_sleepers(team: &Team, helpers: usize) {
    let shared = team.shared.as_ref().expect("helpers");
    while shared.asleep.load(SeqCst) < helpers {
        thread::yield_now();
    }
}

/// A helper that is not woken would be missed by nobody but these tasks.
#[test]
fn a_helper_that_sleeps_is_woken() {
    model(2, || {
        let team = Team::new(2).expect("a thread");
        wait_for_sleepers(&team, 1);
        together(&team);
        count(&team, 2);
    });
}

#[test]
fn all_helpers_that_sleep_are_woken() {
    model(1, || {
        let team = Team::new(3).expect("two threads");
        wait_for_sleepers(&team, 2);
        together(&team);
    });
}

/// Either the caller sees who is asleep, or who goes to sleep sees the gate.
#[test]
fn a_helper_that_goes_to_sleep_comes_to_the_next_job() {
    model(3, || {
        let team = Team::new(2).expect("a thread");
        together(&team);
        together(&team);
    });
}

/// Runs tasks of which one panics, without a message for each order of events.
fn with_a_panic(team: &Team, place: &InTurns<usize>, failing: usize) -> bool {
    let run = || {
        team.tasks(2, |task, _| {
            if task == failing {
                resume_unwind(Box::new("told"));
            }
            // SAFETY: this task alone writes, and the call waits for it however it ends: what the models prove.
            unsafe { place.write(task + 1) };
        });
    };
    let ended = catch_unwind(AssertUnwindSafe(run));
    // SAFETY: all tasks have ended.
    let _ = unsafe { place.read() };
    ended.is_err_and(|payload| payload.downcast_ref::<&str>() == Some(&"told"))
}

#[test]
fn a_panic_of_the_caller_waits_for_the_helper() {
    model(3, || {
        let team = Team::new(2).expect("a thread");
        assert!(with_a_panic(&team, &InTurns::default(), 0));
        count(&team, 2);
    });
}

#[test]
fn a_panic_of_the_helper_reaches_the_caller() {
    model(3, || {
        let team = Team::new(2).expect("a thread");
        assert!(with_a_panic(&team, &InTurns::default(), 1));
        count(&team, 2);
    });
}
