//! The loss of a model on data, per token and per byte of text.

use super::Passes;
use crate::data::{TokenStream, Tokenizer};
use crate::engine::{Batch, Engine, EngineError};
use std::f64::consts::LN_2;
use std::ops::ControlFlow;

/// Sums over the tokens of data.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct DataLoss {
    /// Losses, in nats.
    pub nats: f64,
    /// Tokens that were predicted.
    pub tokens: u64,
    /// Losses of the tokens that stand for text.
    pub text_nats: f64,
    /// Bytes of that text; `None` where a token stands for nothing that is known.
    pub bytes: Option<u64>,
}

impl DataLoss {
    /// Mean loss in nats per token.
    #[must_use]
    pub fn mean(&self) -> f64 {
        self.nats / self.tokens as f64
    }

    /// exp of the mean loss.
    #[must_use]
    pub fn perplexity(&self) -> f64 {
        libm::exp(self.mean())
    }

    /// Bits per byte of text: the losses of tokens that stand for text, over its bytes. Separators of documents take no
    /// part.
    #[must_use]
    pub fn bits_per_byte(&self) -> Option<f64> {
        let bytes = self.bytes.filter(|&bytes| bytes > 0)?;
        Some(self.text_nats / LN_2 / bytes as f64)
    }
}

/// The loss of an engine's model on the first `tokens` targets of `stream`, forward passes only, `micro_batch` rows of
/// `block_size` tokens at a time. Without a tokenizer, the bytes of text are not known. `before` is asked before each
/// pass; when it breaks, the result is `None`.
///
/// # Errors
/// [`EngineError`] as `E`, or what `before` returns.
///
/// # Panics
/// Where `micro_batch` is 0, or the rows of the stream have another length.
pub fn data_loss<E: From<EngineError>>(
    engine: &mut dyn Engine,
    stream: &TokenStream,
    tokenizer: Option<&Tokenizer>,
    tokens: u64,
    (micro_batch, block_size): (usize, usize),
    mut before: impl FnMut(Passes) -> Result<ControlFlow<()>, E>,
) -> Result<Option<DataLoss>, E> {
    assert!(micro_batch > 0, "micro_batch must be positive");
    let rows = tokens.div_ceil(block_size as u64);
    let mut loss = DataLoss { nats: 0.0, tokens: 0, text_nats: 0.0, bytes: Some(0) };
    let (mut inputs, mut targets) = (vec![0; micro_batch * block_size], vec![0; micro_batch * block_size]);
    let total = rows.div_ceil(micro_batch as u64) as usize;
    for (done, first) in (0..rows).step_by(micro_batch).enumerate() {
        if before(Passes { done, total })?.is_break() {
            return Ok(None);
        }
        let rows = (micro_batch as u64).min(rows - first) as usize;
        let (inputs, targets) = (&mut inputs[..rows * block_size], &mut targets[..rows * block_size]);
        stream.fill(first, rows, inputs, targets);
        let found = engine.token_losses(Batch { inputs, targets, rows, cols: block_size, first_row: 0 })?;
        let left = usize::try_from(tokens - loss.tokens).unwrap_or(usize::MAX);
        for (&nats, &target) in found.iter().zip(targets.iter()).take(left) {
            let bytes = tokenizer.and_then(|tokenizer| tokenizer.bytes_of(target));
            loss.nats += f64::from(nats);
            loss.text_nats += if bytes == Some(0) { 0.0 } else { f64::from(nats) };
            loss.bytes = loss.bytes.zip(bytes).map(|(sum, bytes)| sum + bytes as u64);
            loss.tokens += 1;
        }
    }
    Ok(Some(loss))
}
