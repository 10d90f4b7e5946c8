//! A data set as the endless stream of rows that training reads.

use super::{Dataset, RowOrder};

/// A data set read endlessly, epoch after epoch.
#[derive(Clone, Copy)]
pub struct TokenStream<'a> {
    dataset: &'a Dataset,
    /// Of all rows, where they are not those of a mixture.
    order: RowOrder,
}

impl<'a> TokenStream<'a> {
    /// The rows of `dataset`: permuted by `seed`, differently in every epoch, if `shuffle`; otherwise in file
    /// order. The sources of a mixture take turns, and each is read in such an order.
    pub fn new(dataset: &'a Dataset, seed: u64, shuffle: bool) -> Self {
        Self { dataset, order: RowOrder { seed, rows: dataset.rows(), shuffle } }
    }

    /// The row of the set at position `g` of the stream.
    fn row(&self, g: u64) -> u64 {
        match self.dataset.mixture() {
            Some(mixture) => mixture.row(self.order.seed, self.order.shuffle, g),
            None => self.order.row(g),
        }
    }

    /// The name of the shard that holds row `row` of the stream, and the index of the row's first token in
    /// that shard.
    pub fn locate(&self, row: u64) -> (&str, u64) {
        self.dataset.locate(self.row(row))
    }

    /// Copies rows `first` to `first + rows` of the stream; both slices are `[rows, T]`, row-major. Panics if
    /// a slice has another length.
    pub fn fill(&self, first: u64, rows: usize, inputs: &mut [u32], targets: &mut [u32]) {
        let t = self.dataset.block_size();
        assert_eq!(
            (inputs.len(), targets.len()),
            (rows * t, rows * t),
            "slices of {rows} rows of {t} tokens"
        );
        for (i, (inputs, targets)) in inputs.chunks_exact_mut(t).zip(targets.chunks_exact_mut(t)).enumerate()
        {
            self.dataset.fill(self.row(first + i as u64), inputs, targets);
        }
    }
}
