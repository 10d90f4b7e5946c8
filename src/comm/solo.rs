//! A single rank: there is nothing to sum and no rank to wait for.

use super::{Comm, CommError};
use std::ops::Range;

/// The only rank.
#[derive(Debug, Clone, Copy, Default)]
pub struct Solo;

impl Comm for Solo {
    fn rank(&self) -> usize {
        0
    }

    fn size(&self) -> usize {
        1
    }

    fn gather(&self, mine: &[u8]) -> Result<Vec<Vec<u8>>, CommError> {
        Ok(vec![mine.to_vec()])
    }

    fn broadcast(&self, _message: &mut Vec<u8>) -> Result<(), CommError> {
        Ok(())
    }

    fn all_reduce(&self, _values: &mut [f32]) -> Result<(), CommError> {
        Ok(())
    }

    fn reduce_scatter(&self, _values: &mut [f32], _owners: &[Range<usize>]) -> Result<(), CommError> {
        Ok(())
    }

    fn all_gather(&self, _values: &mut [f32], _owners: &[Range<usize>]) -> Result<(), CommError> {
        Ok(())
    }

    fn check(&self) -> Result<(), CommError> {
        Ok(())
    }

    fn abandon(&self, _why: &str) {}

    fn name(&self) -> &'static str {
        "solo"
    }
}
