//! Packs batches for the kernels and stages them for the device.

use super::device::{Address, Device};
use super::stream::Stream;
use crate::engine::Batch;
use crate::engine::dropout::Dropout;
use crate::engine::fused::{Gather, Packed};
use crate::engine::traffic::{F32, Traffic};

/// The offsets of the arrays in a packed batch of `n` tokens, in words; [`pack`] writes them.
#[derive(Debug, Clone, Copy)]
pub(super) struct Words {
    n: usize,
}

impl Words {
    pub(super) fn new(n: usize) -> Self {
        Self { n }
    }

    /// Number of distinct input tokens.
    pub(super) const DISTINCT: usize = 0;
    /// Weight of each token's loss, a float.
    pub(super) const WEIGHT: usize = 1;
    /// What dropout draws from: the first training row, the seed (two words each), the threshold and the factor of what
    /// stays, a float. Zeros without dropout.
    pub(super) const DRAWS: usize = 2;
    const INPUTS: usize = 8;

    pub(super) fn inputs(self) -> usize {
        Self::INPUTS
    }

    pub(super) fn targets(self) -> usize {
        Self::INPUTS + self.n
    }

    /// Positions sorted by input token.
    pub(super) fn order(self) -> usize {
        Self::INPUTS + 2 * self.n
    }

    /// For each distinct token, the index in the order at which it begins; then the end of the last one.
    pub(super) fn begins(self) -> usize {
        Self::INPUTS + 3 * self.n
    }

    /// Words in all: the numbers before them, inputs, targets, their order, where each distinct token begins, and the
    /// end of the last.
    pub(super) fn len(self) -> usize {
        Self::INPUTS + 4 * self.n + 1
    }
}

/// The offsets of the arrays of packed tokens, in words; [`PackedWords::pack`] writes them. Tokens and their positions
/// come first, as those of the next tokens of sequences do.
#[derive(Debug, Clone, Copy)]
pub(super) struct PackedWords {
    computed: usize,
    places: usize,
    asked: usize,
}

impl PackedWords {
    pub(super) fn of(packed: &Packed) -> Self {
        let Packed { computed, places, asked, .. } = packed;
        Self { computed: computed.len(), places: places.len(), asked: asked.len() }
    }

    /// Where the rows begin that are taken.
    pub(super) fn rows(self, of: Gather) -> usize {
        let places = 2 * self.computed;
        match of {
            Gather::Places => places,
            Gather::Computed => places + self.places,
            Gather::Asked => places + self.places + self.computed,
        }
    }

    pub(super) fn targets(self) -> usize {
        self.rows(Gather::Asked) + self.asked
    }

    /// Words in all where a batch has `n` tokens at most.
    pub(super) fn most(n: usize) -> usize {
        Self { computed: n, places: n, asked: n }.targets() + n
    }

    pub(super) fn pack(self, packed: &Packed) -> Vec<u32> {
        let tokens = packed.computed.iter().map(|one| one.token);
        let positions = packed.computed.iter().map(|one| one.position as u32);
        let rows =
            [Gather::Places, Gather::Computed, Gather::Asked].into_iter().flat_map(|of| packed.rows(of));
        tokens.chain(positions).chain(rows.chain(&packed.targets).copied()).collect()
    }
}

/// Packs batches and stages them alternately in the device's two buffers.
pub(super) struct Uploads {
    slots: [Slot; 2],
    next: usize,
    dropout: Option<Dropout>,
    /// Scratch: the number of positions of each token.
    counts: Vec<u32>,
}

#[derive(Default)]
struct Slot {
    words: Vec<u32>,
    n: usize,
    /// The training row that it begins with.
    first_row: u64,
    /// Whether the slot is staged and not yet taken.
    waiting: bool,
}

impl Slot {
    fn holds(&self, batch: &Batch) -> bool {
        let words = Words::new(self.n);
        self.waiting
            && (self.n, self.first_row) == (batch.inputs.len(), batch.first_row)
            && self.words[words.inputs()..][..self.n] == *batch.inputs
            && self.words[words.targets()..][..self.n] == *batch.targets
    }
}

impl Uploads {
    /// Uploads for token ids below `vocab_size`, of which training drops activations so.
    pub(super) fn new(vocab_size: usize, dropout: Option<Dropout>) -> Self {
        Self { slots: Default::default(), next: 0, dropout, counts: vec![0; vocab_size + 1] }
    }

    /// Stages a batch unless it is staged already; returns its slot.
    pub(super) fn stage<D: Device>(&mut self, stream: &mut Stream<D>, batch: &Batch) -> usize {
        if let Some(slot) = self.slots.iter().position(|slot| slot.holds(batch)) {
            return slot;
        }
        // a staged batch is wanted later, so it must not be overwritten
        let slot = if self.slots[self.next].waiting { 1 - self.next } else { self.next };
        let (counts, target) = (&mut self.counts, &mut self.slots[slot]);
        pack(batch, counts, &mut target.words);
        if let Some(dropout) = self.dropout {
            target.words[Words::DRAWS..Words::INPUTS].copy_from_slice(&draws(dropout, batch.first_row));
        }
        (target.n, target.first_row, target.waiting) = (batch.inputs.len(), batch.first_row, true);
        stream.run(|device| device.stage(slot, &target.words));
        self.next = 1 - slot;
        slot
    }

    /// Copies a batch to `to` in the stream, staging it first if necessary.
    pub(super) fn take<D: Device>(&mut self, stream: &mut Stream<D>, batch: &Batch, to: Address) {
        let slot = self.stage(stream, batch);
        self.slots[slot].waiting = false;
        let words = self.slots[slot].words.len();
        let traffic = Traffic::of_kernel().reads(words, F32).writes(words, F32);
        stream.noted(|| "copy of the batch".into(), traffic, |device| device.take(slot, to));
    }

    /// Copies words to `to` in the stream, in the place of a batch that is staged no longer.
    pub(super) fn take_words<D: Device>(&mut self, stream: &mut Stream<D>, words: Vec<u32>, to: Address) {
        // a staged batch is wanted later, so it must not be overwritten
        let slot = if self.slots[self.next].waiting { 1 - self.next } else { self.next };
        let traffic = Traffic::of_kernel().reads(words.len(), F32).writes(words.len(), F32);
        stream.run(|device| device.stage(slot, &words));
        self.slots[slot] = Slot { words, n: 0, first_row: 0, waiting: false };
        self.next = 1 - slot;
        stream.noted(|| "copy of the next tokens".into(), traffic, |device| device.take(slot, to));
    }
}

/// The words that dropout draws from.
fn draws(dropout: Dropout, first_row: u64) -> [u32; Words::INPUTS - Words::DRAWS] {
    let [low, high] = dropout.key();
    let row = [first_row as u32, (first_row >> 32) as u32];
    [row[0], row[1], low, high, dropout.threshold(), dropout.scale().to_bits()]
}

/// Packs a batch, with its positions sorted by token. The counting sort is stable, so a token's positions are
/// always summed in the same order.
fn pack(batch: &Batch, counts: &mut [u32], words: &mut Vec<u32>) {
    let n = batch.inputs.len();
    let at = Words::new(n);
    words.clear();
    words.resize(at.len(), 0);
    words[at.inputs()..][..n].copy_from_slice(batch.inputs);
    words[at.targets()..][..n].copy_from_slice(batch.targets);
    counts.fill(0);
    batch.inputs.iter().for_each(|&token| counts[token as usize + 1] += 1);
    let mut distinct = 0;
    for token in 1..counts.len() {
        if counts[token] > 0 {
            words[at.begins() + distinct] = counts[token - 1];
            distinct += 1;
        }
        counts[token] += counts[token - 1];
    }
    words[at.begins() + distinct] = n as u32;
    words[Words::DISTINCT] = distinct as u32;
    for (position, &token) in batch.inputs.iter().enumerate() {
        let place = &mut counts[token as usize];
        words[at.order() + *place as usize] = position as u32;
        *place += 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn positions_are_ordered_by_token_and_then_by_position() {
        let (inputs, targets) = ([5, 0, 2, 5, 2, 5], [0, 2, 5, 2, 5, 1]);
        let batch = Batch { inputs: &inputs, targets: &targets, rows: 2, cols: 3, first_row: 0 };
        let mut words = Vec::new();
        pack(&batch, &mut [9; 8], &mut words);
        let at = Words::new(6);
        assert_eq!(words[Words::DISTINCT], 3);
        assert_eq!(words[at.inputs()..][..6], inputs);
        assert_eq!(words[at.targets()..][..6], targets);
        assert_eq!(words[at.order()..][..6], [1, 2, 4, 0, 3, 5]);
        assert_eq!(words[at.begins()..][..4], [0, 1, 3, 6]);
        assert_eq!(words.len(), 8 + 4 * 6 + 1);
    }

    /// What dropout draws for equal rows of two epochs differs.
    #[test]
    fn equal_rows_with_other_numbers_are_another_batch() {
        let tokens = [1, 2];
        let batch = |first_row| Batch { inputs: &tokens, targets: &tokens, rows: 1, cols: 2, first_row };
        let mut words = Vec::new();
        pack(&batch(0), &mut [0; 4], &mut words);
        let slot = Slot { words, n: 2, first_row: 0, waiting: true };
        assert!(slot.holds(&batch(0)) && !slot.holds(&batch(8)));
    }
}
