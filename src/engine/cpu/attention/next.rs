//! Attention of one new token per sequence to itself and all earlier ones, whose keys and values are kept.
//!
//! Every sum is made in the order in which [`flash`] and [`naive`] make it for that row of a whole sequence, so the
//! output has the same bits.

use super::{flash, naive};
use crate::engine::Next;
use crate::engine::cpu::matmul::{add_rows, dots};
use crate::engine::cpu::pool::{Columns, with_scratch};
use crate::engine::cpu::round;
use crate::engine::cpu::scratch::{DEPTH, KEY_STRIP};
use crate::engine::cpu::simd::{multiply_add, multiversion};
use crate::engine::cpu::team::Team;
use crate::recipe::{Attention, Precision};
use std::f32::consts::LOG2_E;

/// Which attention, how it rounds, the new tokens, and sizes.
#[derive(Clone, Copy)]
pub(in crate::engine::cpu) struct Problem<'a> {
    pub(in crate::engine::cpu) kind: Attention,
    pub(in crate::engine::cpu) precision: Precision,
    pub(in crate::engine::cpu) next: &'a [Next],
    pub(in crate::engine::cpu) n_head: usize,
    pub(in crate::engine::cpu) head_size: usize,
    /// Tokens of a sequence for which there is room.
    pub(in crate::engine::cpu) block_size: usize,
}

/// One head of one sequence.
#[derive(Clone, Copy)]
struct Row<'a> {
    precision: Precision,
    /// Keys that the new token sees: itself and those before it.
    seen: usize,
    /// `[size]`.
    query: &'a [f32],
    /// Keys and values of the head, `[seen, size]`, rows `stride` apart.
    keys: &'a [f32],
    values: &'a [f32],
    stride: usize,
}

multiversion! {
    // What a product does with its sums before they are stored.
    fn scale_sums(sums: &mut [f32], scale: f32) {
        for sum in sums {
            *sum = multiply_add::<FMA>(*sum, scale, 0.0);
        }
    }
}

multiversion! {
    fn add(out: &mut [f32], sums: &[f32]) {
        for (out, sum) in out.iter_mut().zip(sums) {
            *out += sum;
        }
    }
}

/// See [`Backend::attention_next`](crate::engine::fused::backend::Backend::attention_next).
pub(in crate::engine::cpu) fn attend(
    team: &Team,
    problem: Problem,
    qkv: &[f32],
    kept: &mut [f32],
    out: &mut [f32],
    workers: &mut [f32],
    worker: usize,
) {
    let Problem { kind, precision, next, n_head, head_size: size, block_size } = problem;
    let c = n_head * size;
    let place = |one: &Next| 3 * c * (one.sequence * block_size + one.position);
    for (one, qkv) in next.iter().zip(qkv.chunks_exact(3 * c)) {
        kept[place(one)..][..3 * c].copy_from_slice(qkv);
    }
    let kept = &*kept;
    let out = Columns::new(out, c);
    with_scratch(team, workers, worker, next.len() * n_head, |task, scratch| {
        let (row, head) = (task / n_head, task % n_head);
        let first = 3 * c * next[row].sequence * block_size + head * size;
        let query = &qkv[3 * c * row + head * size..][..size];
        let (keys, values) = (&kept[first + c..], &kept[first + 2 * c..]);
        let part = Row { precision, seen: next[row].position + 1, query, keys, values, stride: 3 * c };
        // SAFETY: these columns of the row are this head's alone.
        let out = unsafe { out.row(row, head * size, size) };
        match kind {
            Attention::Flash => part.flash(out, scratch),
            Attention::Naive => part.naive(out, scratch),
        }
        round::slice(precision, out);
    });
}

impl Row<'_> {
    fn scale(&self) -> f32 {
        1.0 / (self.query.len() as f32).sqrt()
    }

    /// `sums = Σ weights · values`, over the keys from `first` on.
    fn weigh(&self, first: usize, weights: &[f32], sums: &mut [f32]) {
        sums.fill(0.0);
        add_rows(weights, &self.values[first * self.stride..], self.stride, sums);
    }

    /// As [`flash::forward`] does it.
    fn flash(&self, out: &mut [f32], scratch: &mut [f32]) {
        let (scores, rest) = scratch.split_at_mut(KEY_STRIP);
        let sums = &mut rest[..out.len()];
        let (mut max, mut total) = ([f32::NEG_INFINITY], [0.0]);
        for (first_key, keys) in flash::tiles(self.seen, KEY_STRIP) {
            let scores = &mut scores[..keys];
            dots(self.query, &self.keys[first_key * self.stride..], self.stride, scores);
            scale_sums(scores, self.scale() * LOG2_E);
            let strip = flash::Strip { first_query: self.seen - 1, queries: 1, first_key, keys };
            let before = if first_key > 0 { &mut *out } else { &mut [] };
            flash::online_softmax(strip, scores, keys, &mut max, &mut total, before);
            round::slice(self.precision, scores);
            self.weigh(first_key, scores, sums);
            match first_key {
                0 => out.copy_from_slice(sums),
                _ => add(out, sums),
            }
        }
        flash::divide_rows(out, &total);
    }

    /// As [`naive::forward`] does it.
    fn naive(&self, out: &mut [f32], scratch: &mut [f32]) {
        let (scores, rest) = scratch.split_at_mut(self.seen);
        dots(self.query, self.keys, self.stride, scores);
        scale_sums(scores, self.scale());
        naive::softmax(scores);
        round::slice(self.precision, scores);
        let sums = &mut rest[..out.len()];
        for (first, depth) in flash::tiles(self.seen, DEPTH) {
            self.weigh(first, &scores[first..][..depth], sums);
            match first {
                0 => out.copy_from_slice(sums),
                _ => add(out, sums),
            }
        }
    }
}
