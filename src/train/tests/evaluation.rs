//! The loss of a model on rows of one's own.

use super::*;

#[test]
fn rows_are_evaluated_without_ranks_and_the_last_pass_may_be_short() {
    let asked = std::cell::RefCell::new(Vec::new());
    let mean = |range, stop_at| {
        let before = |done| -> Result<_, EngineError> {
            asked.borrow_mut().push(done);
            Ok(if done == stop_at { ControlFlow::Break(()) } else { ControlFlow::Continue(()) })
        };
        asked.borrow_mut().clear();
        let loss = evaluate(&mut Counting::new(), &Numbered, range, (4, 2), before).expect("no failure");
        loss.map(|loss| (loss.mean(), loss.rows))
    };
    // the loss of row g is g
    assert_eq!(mean(3..13, u64::MAX), Some((7.5, 10)));
    assert_eq!(*asked.borrow(), [0, 4, 8]);
    assert_eq!(mean(0..8, u64::MAX), Some((3.5, 8)));
    assert_eq!(*asked.borrow(), [0, 4]);
    assert_eq!(mean(3..13, 8), None);
    assert_eq!(mean(0..1, 0), None);
    assert!(mean(5..5, u64::MAX).is_some_and(|(mean, rows)| mean.is_nan() && rows == 0));
    let refuse = |_| Err(EngineError::Input("enough".into()));
    let failed = evaluate(&mut Counting::new(), &Numbered, 0..4, (4, 2), refuse);
    assert_eq!(failed.expect_err("refused").to_string(), "enough");
}

#[test]
#[should_panic(expected = "micro_batch must be positive")]
fn no_rows_at_a_time_are_refused() {
    let before = |_| Ok::<_, EngineError>(ControlFlow::Continue(()));
    let _ = evaluate(&mut Counting::new(), &Numbered, 0..4, (0, 2), before);
}
