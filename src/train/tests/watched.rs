//! The loop while someone looks on: what is told within steps and evaluations, and what breaking off leaves.

use super::*;
use crate::comm::Threads;
use std::sync::Mutex;

/// Notes where the loop is, and asks it to break off at one of these places.
#[derive(Default)]
pub(super) struct Onlooker {
    seen: Mutex<Vec<Within>>,
    break_at: Option<usize>,
}

impl Watcher for Onlooker {
    fn within(&self, at: Within) -> ControlFlow<()> {
        let mut seen = self.seen.lock().expect("no panic");
        seen.push(at);
        if self.break_at.is_some_and(|place| place < seen.len()) {
            ControlFlow::Break(())
        } else {
            ControlFlow::Continue(())
        }
    }
}

impl Onlooker {
    pub(super) fn is_breaking(&self) -> bool {
        self.break_at.is_some_and(|place| place < self.seen.lock().expect("no panic").len())
    }
}

#[test]
fn the_loop_is_watched_within_steps_and_evaluations() {
    let (mut engine, mut progress) = (Counting::new(), start(Precision::Fp32));
    let mut events = Recorder::default();
    run(&mut engine, &mut progress, &mut events);
    let seen = events.onlooker.seen.lock().expect("no panic");
    let at = |doing, pass, passes, part: f64| Within {
        doing,
        pass,
        passes,
        done: (pass as f64 + part) / passes as f64,
        may_break: true,
    };
    // before each pass, and at its looks
    let parts = [0.0, 0.25, 1.0];
    let evaluation = (0..2).flat_map(|pass| parts.map(|part| at(Doing::Evaluation, pass, 2, part)));
    let step = (0..3).flat_map(|pass| parts.map(|part| at(Doing::Step, pass, 3, part)));
    let expected: Vec<Within> = evaluation.chain(step).collect();
    assert_eq!(seen[..15], expected);
    // four evaluations and five steps
    assert_eq!(seen.len(), 4 * 6 + 5 * 9);
}

#[test]
fn a_stop_within_a_pass_discards_it_and_the_same_engine_goes_on_as_if_nothing_had_been() {
    let mut whole = Counting::new();
    run(&mut whole, &mut start(Precision::Fp32), &mut Recorder::default());
    // after the evaluation and the first step: within each pass of the second one
    for place in [6 + 9, 6 + 9 + 1, 6 + 9 + 4, 6 + 9 + 8] {
        let (mut engine, mut progress) = (Counting::new(), start(Precision::Fp32));
        let onlooker = Onlooker { break_at: Some(place), ..Onlooker::default() };
        let mut events = Recorder { onlooker, ..Recorder::default() };
        assert_eq!(run(&mut engine, &mut progress, &mut events), Outcome::Stopped(Stop::Terminate));
        assert_eq!(events.log.join(","), "eval 0 1,sample 0,step 0,save 1", "at {place}");
        assert_eq!((progress.step, engine.updates.len()), (1, 1), "at {place}");
        // what was not begun needs no discarding
        assert_eq!(engine.discarded, usize::from(place > 6 + 9), "at {place}");
        let rows = engine.rows.len();
        let mut events = Recorder::default();
        assert_eq!(run(&mut engine, &mut progress, &mut events), Outcome::Finished);
        assert_eq!(engine.rows[rows..], whole.rows[6..], "the step is repeated from its first row");
        assert_eq!(events.reports[0].loss, (6.0 + 8.0 + 10.0) / 3.0);
    }
}

#[test]
fn a_stop_within_an_evaluation_leaves_it_to_the_resumed_run() {
    for place in [0, 1, 4] {
        let (mut engine, mut progress) = (Counting::new(), start(Precision::Fp32));
        let onlooker = Onlooker { break_at: Some(place), ..Onlooker::default() };
        let mut events = Recorder { onlooker, ..Recorder::default() };
        assert_eq!(run(&mut engine, &mut progress, &mut events), Outcome::Stopped(Stop::Terminate));
        assert_eq!(events.log.join(","), "save 0", "at {place}");
        assert_eq!(progress.best_val_loss, None);
    }
}

#[test]
fn of_several_ranks_none_breaks_a_pass_off() {
    let ended = |comm: &dyn Comm| {
        let (mut engine, mut progress) = (Counting::new(), start(Precision::Fp32));
        // within the second pass of the first rank only
        let break_at = (comm.rank() == 0).then_some(4);
        let mut events =
            Recorder { onlooker: Onlooker { break_at, ..Onlooker::default() }, ..Recorder::default() };
        let sizes = StepSizes::constant(12, 2);
        let config = TrainConfig { eval_every: 0, sample_every: 0, sizes, ..config() };
        let outcome =
            train(comm, &mut engine, &Numbered, &Evaluations::default(), &config, &mut progress, &mut events);
        (outcome.expect("nothing fails here"), events.micro_steps, events.log.join(","), engine.rows.len())
    };
    let ranks = Threads::group(2, Duration::from_secs(60));
    let ends: Vec<_> = std::thread::scope(|scope| {
        let threads: Vec<_> = ranks.into_iter().map(|comm| scope.spawn(move || ended(&comm))).collect();
        threads.into_iter().map(|thread| thread.join().expect("no panic")).collect()
    });
    // the pass that was under way is done by both, and then both stop
    assert_eq!(ends[0], (Outcome::Stopped(Stop::Terminate), 2, "save 0".to_owned(), 4));
    assert_eq!(ends[0], ends[1]);
}

#[test]
fn a_stop_has_a_code_of_its_own() {
    for stop in [None, Some(Stop::Interrupt), Some(Stop::Terminate), Some(Stop::HangUp)] {
        assert_eq!(Stop::of_code(Stop::code(stop)), stop);
        assert!(Stop::code(stop) < 128);
    }
    assert_eq!([4, 127, 255].map(Stop::of_code), [None; 3]);
}
