//! Packing: rows of one length, as nearly as can be, in each forward pass.

use super::{Candidate, Share, Task};

/// Lengths are rounded up to a multiple of this, for a device tunes its products for each shape that it meets.
const STEP: usize = 8;

/// A row's length as it is computed.
pub(super) fn rounded(len: usize, block_size: usize) -> usize {
    len.next_multiple_of(STEP).min(block_size)
}

/// One candidate: the numbers of its example and of its ending.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Row {
    pub(super) example: usize,
    pub(super) candidate: usize,
}

impl Row {
    pub(super) fn of(self, task: &Task) -> &Candidate {
        &task.examples[self.example].candidates[self.candidate]
    }

    /// Tokens that are read.
    fn len(self, task: &Task) -> usize {
        self.of(task).tokens.len() - 1
    }
}

/// The rows of a share, the longest ones first.
pub(super) fn rows_of(task: &Task, share: Share) -> Vec<Row> {
    let mut rows: Vec<Row> = Vec::new();
    for (example, one) in task.examples.iter().enumerate().skip(share.rank).step_by(share.ranks) {
        rows.extend((0..one.candidates.len()).map(|candidate| Row { example, candidate }));
    }
    rows.sort_by_key(|row| std::cmp::Reverse(row.len(task)));
    rows
}

/// The batch of one pass.
#[derive(Debug, Default)]
pub(super) struct Packed {
    /// `[rows, cols]`, row-major, padded with 0 behind each row: what comes later changes nothing before it.
    pub(super) inputs: Vec<u32>,
    pub(super) targets: Vec<u32>,
    pub(super) cols: usize,
    /// Tokens that are no padding.
    pub(super) tokens: usize,
}

impl Packed {
    /// Packs rows, the longest of which is first.
    pub(super) fn fill(&mut self, task: &Task, rows: &[Row]) {
        let longest = rows.first().map_or(0, |row| row.len(task));
        self.cols = rounded(longest, task.limits.block_size);
        for buffer in [&mut self.inputs, &mut self.targets] {
            buffer.clear();
            buffer.resize(rows.len() * self.cols, 0);
        }
        self.tokens = 0;
        for (row, at) in rows.iter().zip((0..).step_by(self.cols)) {
            let tokens = &row.of(task).tokens;
            let len = tokens.len() - 1;
            self.inputs[at..at + len].copy_from_slice(&tokens[..len]);
            self.targets[at..at + len].copy_from_slice(&tokens[1..]);
            self.tokens += len;
        }
    }
}
