//! What the reference engine is said to allocate is what it allocates.
//!
//! One test only: it reads the whole process's peak.

#![cfg(target_os = "linux")]

use runner::engine::dfdx::CpuEngine;
use runner::engine::dfdx::memory;
use runner::engine::dropout::Dropout;
use runner::engine::optimizer::OptimizerKind;
use runner::engine::{Batch, Engine};
use runner::model::Dims;
use runner::plan::hardware::peak_resident_bytes;

/// The process's peak after one micro-batch.
fn peak(dims: Dims, rows: usize, dropout: Option<Dropout>) -> u64 {
    let engine = CpuEngine::new(dims, OptimizerKind::AdamW).expect("valid dimensions");
    let mut engine = engine.with_dropout(dropout);
    let tokens: Vec<u32> = (0..rows * dims.block_size).map(|i| (i % dims.vocab_size) as u32).collect();
    let batch = Batch { inputs: &tokens, targets: &tokens, rows, cols: dims.block_size, first_row: 0 };
    engine.accumulate(batch, 1.0).expect("a valid batch");
    peak_resident_bytes()
}

/// Models whose memory is attention, parameters or logits, each much larger than the one before, for a peak only rises.
#[test]
fn the_estimate_is_not_below_the_peak_and_not_far_above() {
    let dims = |n_layer, n_head, n_embd, block_size, vocab_size| Dims {
        n_layer,
        n_head,
        n_embd,
        block_size,
        vocab_size,
        padded_vocab: vocab_size,
    };
    let before = peak_resident_bytes();
    let some = Dropout::new(0.1, 1);
    for (what, dims, rows, dropout) in [
        ("attention", dims(2, 8, 64, 256, 100), 1, None),
        ("attention with dropout", dims(2, 8, 64, 320, 100), 1, some),
        ("parameters", dims(2, 4, 512, 16, 4000), 1, None),
        ("logits", dims(1, 2, 64, 128, 30_000), 4, None),
    ] {
        let states = OptimizerKind::AdamW.states().len();
        let estimate: usize =
            memory::bytes(&dims, rows, states, dropout.is_some()).iter().map(|(_, bytes)| bytes).sum();
        let ratio = estimate as f64 / (peak(dims, rows, dropout) - before) as f64;
        assert!((0.9..1.5).contains(&ratio), "{what}: {ratio} of the peak");
    }
}
