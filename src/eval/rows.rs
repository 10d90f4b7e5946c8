//! Which rows go into a forward pass: rows of one length, as nearly as can be, for a batch is a rectangle.

use super::{Candidate, Example, Share, Task};
use std::cmp::Reverse;

/// Lengths are rounded up to a multiple of this, for a device tunes its products for each shape that it meets.
const STEP: usize = 8;

/// Rows of a pass at most: a grid of CUDA counts 65,535 of them.
const MOST_ROWS: usize = 1 << 14;

/// A row's length as it is computed.
pub(super) fn rounded(len: usize, block_size: usize) -> usize {
    len.next_multiple_of(STEP).min(block_size)
}

/// One candidate: the numbers of its example and of its ending.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Row {
    pub(super) example: u32,
    pub(super) candidate: u32,
}

impl Row {
    pub(super) fn of(self, task: &Task) -> (&Example, &Candidate) {
        let example = &task.examples[self.example as usize];
        (example, &example.candidates[self.candidate as usize])
    }

    /// Tokens that are read.
    pub(super) fn len(self, task: &Task) -> usize {
        let (example, candidate) = self.of(task);
        example.parts(candidate).iter().copied().map(<[u32]>::len).sum::<usize>() - 1
    }
}

/// The rows of a share, pass by pass: as many as `micro_batch` rows of the model's longest context have tokens. An
/// engine computes once what the rows of an example begin with, so they stay together where there is room for them;
/// the examples with the longest rows come first.
pub(super) fn passes_of(task: &Task, micro_batch: usize, Share { rank, ranks }: Share) -> Vec<Vec<Row>> {
    let own = (rank..task.examples.len()).step_by(ranks);
    let rows = |example: usize| {
        let candidates = 0..task.examples[example].candidates.len() as u32;
        candidates.map(move |candidate| Row { example: example as u32, candidate })
    };
    let mut examples: Vec<Vec<Row>> =
        own.map(|example| rows(example).collect()).filter(|rows: &Vec<Row>| !rows.is_empty()).collect();
    for rows in &mut examples {
        rows.sort_by_key(|row| Reverse(row.len(task)));
    }
    examples.sort_by_key(|rows| Reverse(rows.first().map_or(0, |row| row.len(task))));
    let block_size = task.limits.block_size;
    let mut passes: Vec<Vec<Row>> = Vec::new();
    let mut room = 0;
    for rows in &examples {
        let mut rows = rows.as_slice();
        if rows.len() > room {
            let longest = rows.first().map_or(0, |row| row.len(task));
            let fits = micro_batch * block_size / rounded(longest, block_size).max(1);
            let most = fits.clamp(1, MOST_ROWS);
            while let Some((first, others)) =
                rows.split_at_checked(most).filter(|(_, others)| !others.is_empty())
            {
                passes.push(first.to_vec());
                rows = others;
            }
            passes.push(Vec::new());
            room = most;
        }
        room -= rows.len();
        passes.last_mut().expect("a pass was begun").extend_from_slice(rows);
    }
    passes
}

/// The batch of one pass, a rectangle. An engine that computes tokens one by one leaves out its padding.
#[derive(Debug, Default)]
pub(super) struct Padded {
    /// `[rows, cols]`, row-major, padded with 0 behind each row: what comes later changes nothing before it.
    pub(super) inputs: Vec<u32>,
    pub(super) targets: Vec<u32>,
    pub(super) cols: usize,
    /// Tokens that are no padding.
    pub(super) tokens: usize,
}

impl Padded {
    /// Puts rows into as many columns as the longest one needs.
    pub(super) fn fill(&mut self, task: &Task, rows: &[Row]) {
        let longest = rows.iter().map(|row| row.len(task)).max().unwrap_or(0);
        self.cols = rounded(longest, task.limits.block_size);
        for buffer in [&mut self.inputs, &mut self.targets] {
            buffer.clear();
            buffer.resize(rows.len() * self.cols, 0);
        }
        self.tokens = 0;
        for (row, at) in rows.iter().zip((0..).step_by(self.cols)) {
            let (example, candidate) = row.of(task);
            let (parts, len) = (example.parts(candidate), row.len(task));
            let tokens = || parts.into_iter().flatten().copied();
            self.inputs[at..at + len].iter_mut().zip(tokens()).for_each(|(input, token)| *input = token);
            self.targets[at..at + len]
                .iter_mut()
                .zip(tokens().skip(1))
                .for_each(|(target, token)| *target = token);
            self.tokens += len;
        }
    }
}
