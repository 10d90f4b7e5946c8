//! The search for what is to blame, as the other ranks see it.

use super::*;
use crate::comm::{Comm, CommError};
use std::sync::atomic::{AtomicBool, Ordering};

/// A rank that waits for no other, and notes whether the others wait for it.
#[derive(Default)]
struct Watched {
    working: AtomicBool,
}

impl Watched {
    fn is_working(&self) -> bool {
        self.working.load(Ordering::SeqCst)
    }
}

impl Comm for Watched {
    fn rank(&self) -> usize {
        0
    }
    fn size(&self) -> usize {
        1
    }
    fn gather(&self, mine: &[u8]) -> Result<Vec<Vec<u8>>, CommError> {
        assert!(!self.is_working(), "a rank that waits for others does not work");
        Ok(vec![mine.to_vec()])
    }
    fn broadcast(&self, _: &mut Vec<u8>) -> Result<(), CommError> {
        Ok(())
    }
    fn all_reduce(&self, _: &mut [f32]) -> Result<(), CommError> {
        Ok(())
    }
    fn reduce_scatter(&self, _: &mut [f32], _: &[Range<usize>]) -> Result<(), CommError> {
        Ok(())
    }
    fn all_gather(&self, _: &mut [f32], _: &[Range<usize>]) -> Result<(), CommError> {
        Ok(())
    }
    fn check(&self) -> Result<(), CommError> {
        Ok(())
    }
    fn abandon(&self, _: &str) {}
    fn set_working(&self, working: bool) {
        self.working.store(working, Ordering::SeqCst);
    }
    fn name(&self) -> &'static str {
        "watched"
    }
}

/// Rows that are located while a rank looks for what is to blame.
struct Located<'a>(&'a Watched);

impl Rows for Located<'_> {
    fn fill(&self, first: u64, rows: usize, inputs: &mut [u32], targets: &mut [u32]) {
        Numbered.fill(first, rows, inputs, targets);
    }
    fn locate(&self, _: u64) -> Option<String> {
        Some(if self.0.is_working() { "as it works" } else { "as if it hung" }.to_owned())
    }
}

#[test]
fn a_rank_that_searches_its_rows_does_not_count_as_hung() {
    let comm = Watched::default();
    let mut engine = Counting { bad_row: Some(9), ..Counting::new() };
    let (mut progress, mut events) = (start(Precision::Fp32), Recorder::default());
    let (rows, evaluations) = (Located(&comm), Evaluations::of(&Numbered, 3));
    let outcome = train(&comm, &mut engine, &rows, &evaluations, &config(), &mut progress, &mut events);
    let Ok(Outcome::Diverged { step: 1, what }) = outcome else { panic!("{outcome:?}") };
    assert!(what.ends_with("from row 9 (as it works)"), "{what}");
    assert!(!comm.is_working(), "it is over");
}
