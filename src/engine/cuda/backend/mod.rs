//! The CUDA backend: buffers in device memory, and how spans of the plan become pointers, matrices and products.
//! `steps` has the kernels of each step of the choreography, `ranks` what several ranks do together.

mod ranks;
mod steps;

use super::batch::{Uploads, Words};
use super::device::{Address, Device, Fused, Operand, Product, Recording};
use super::kernels::{embedding, layernorm, naive_attention};
use super::stream::Stream;
use crate::comm::Comm;
use crate::engine::EngineError;
use crate::engine::fused::backend::{AttentionShape, Norm, Sequence};
use crate::engine::memory::{Buffer, Element, MemoryPlan, Span};
use crate::recipe::Precision;
use ranks::Ranks;
use std::collections::HashMap;
use std::sync::Arc;

/// How far a sequence of kernels has come towards being replayed.
enum Known {
    /// Issued once, so that the library has chosen its algorithms.
    Seen,
    /// Being recorded.
    Recording,
    /// Ready.
    Recorded(Recording),
    /// The device cannot.
    Never,
}

/// Buffers and kernels of a CUDA device.
pub struct CudaBackend<D> {
    stream: Stream<D>,
    plan: MemoryPlan,
    /// Where each buffer begins, by [`Buffer::index`].
    bases: Vec<Address>,
    uploads: Uploads,
    rows: usize,
    cols: usize,
    known: HashMap<Sequence, Known>,
    /// The others that gradients are added up with.
    ranks: Option<Ranks>,
}

impl<D: Device> CudaBackend<D> {
    /// As [`new`](Self::new) for one of the ranks that `comm` connects, and so does the device. Its collectives are used
    /// even where there is one rank only.
    pub fn ranked(plan: &MemoryPlan, device: D, comm: Arc<dyn Comm>) -> Result<Self, EngineError> {
        Ok(Self { ranks: Some(Ranks::new(plan, comm)), ..Self::new(plan, device)? })
    }

    /// Allocates everything that a plan for CUDA lists.
    pub fn new(plan: &MemoryPlan, mut device: D) -> Result<Self, EngineError> {
        let buffers = plan.buffers();
        let mut bases = vec![Address(0); buffers.len()];
        for (buffer, what) in buffers {
            let bytes = plan.buffer_bytes(buffer);
            if bytes > 0 {
                bases[buffer.index()] = device.allocate(bytes, what)?;
            }
        }
        Ok(Self {
            stream: Stream::new(device),
            plan: plan.clone(),
            bases,
            uploads: Uploads::new(plan.config.dims.padded_vocab),
            rows: 0,
            cols: 0,
            known: HashMap::new(),
            ranks: None,
        })
    }

    /// The device.
    pub fn device_mut(&mut self) -> &mut D {
        self.stream.device_mut()
    }

    /// Where a span begins.
    fn at(&self, span: Span) -> Address {
        self.bases[span.buffer.index()].offset(span.byte_range().start)
    }

    /// Where a word of the batch lies.
    fn word(&self, word: usize) -> Address {
        self.at(self.plan.arena.batch).offset(word * Element::F32.bytes())
    }

    fn total(&self, which: usize) -> Address {
        self.at(self.plan.arena.sums).offset(which * size_of::<f64>())
    }

    fn tokens(&self) -> embedding::Tokens {
        let words = Words::new(self.rows * self.cols);
        embedding::Tokens {
            inputs: self.word(words.inputs()),
            distinct: self.word(Words::DISTINCT),
            order: self.word(words.order()),
            begins: self.word(words.begins()),
            rows: self.rows,
            cols: self.cols,
        }
    }

    fn norm(&self, norm: Norm) -> layernorm::Norm {
        let [weight, bias, stats] = [norm.weight, norm.bias, norm.stats].map(|span| self.at(span));
        layernorm::Norm { weight, bias, stats }
    }

    /// A matrix with rows of `width`.
    fn matrix(&self, span: Span, width: usize) -> Operand {
        Operand { address: self.at(span), element: span.element, stride: width, stack: 0, transposed: false }
    }

    fn product(
        &self,
        [m, n, k]: [usize; 3],
        a: Operand,
        b: Operand,
        out: Operand,
        accumulate: bool,
    ) -> Product {
        Product { m, n, k, count: 1, a, b, out, alpha: 1.0, accumulate, fused: Fused::None }
    }

    /// A bias as the library wants it: stored as the operands are.
    fn stored_bias(&self, bias: Span) -> Address {
        match self.plan.elements(Buffer::Low) {
            0 => self.at(bias),
            _ => self.at(Span { buffer: Buffer::Low, element: self.plan.element(Buffer::Low), ..bias }),
        }
    }

    /// A product with what follows fused into it, where the library can and it is the same arithmetic. Otherwise the
    /// product alone; false.
    fn fused(&mut self, product: Product, fused: Fused) -> bool {
        // tf32 results are operands to be rounded, which the library does not do
        let whole = Product { fused, ..product };
        let fuses = self.plan.config.precision != Precision::Tf32 && self.stream.fuses(&whole);
        self.stream.product(if fuses { &whole } else { &product });
        fuses
    }

    fn naive(&self, qkv: Span, shape: AttentionShape) -> naive_attention::Problem {
        naive_attention::Problem {
            shape,
            operand: self.plan.config.operand(),
            qkv: self.at(qkv),
            scores: self.at(self.plan.arena.workers),
        }
    }

    /// Reads doubles of the totals, waiting.
    fn totals<const N: usize>(&mut self, first: usize) -> Result<[f64; N], EngineError> {
        let from = self.total(first);
        let mut bytes = [[0; 8]; N];
        self.stream.checked(|device| device.read(from, bytes.as_flattened_mut()))?;
        Ok(bytes.map(f64::from_ne_bytes))
    }
}
