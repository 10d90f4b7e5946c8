//! The CUDA backend: buffers in device memory, and how spans of the plan become pointers, matrices and
//! products. `steps` launches the kernels of each step of the choreography, `attention` those of attention, `packed`
//! those of packed tokens, `muon` those of Muon; `replay` records them; `ranks` has the collectives of several ranks.

mod attention;
mod muon;
mod packed;
mod ranks;
mod replay;
mod steps;

use super::batch::{Uploads, Words};
use super::device::{Address, Device, Fused, Operand, Product};
use super::kernels::dropout::Draws;
use super::kernels::linear::{Elsewhere, Summed};
use super::kernels::ready::Ready;
use super::kernels::{Gradient, PartialSums, Slices, embedding, layernorm, naive_attention};
use super::scratch::Partials;
use super::stream::Stream;
use crate::comm::Comm;
use crate::engine::dropout::Site;
use crate::engine::fused::Packed;
use crate::engine::fused::backend::{AttentionShape, Norm, ResidualLayerNorm, Sequence};
use crate::engine::memory::{Buffer, Element, MemoryPlan, Span};
use crate::engine::{EngineError, Next};
use crate::recipe::Precision;
use ranks::RankGroup;
use replay::Replay;
use std::collections::HashMap;
use std::ops::Range;
use std::sync::Arc;

/// The buffers and kernels of a CUDA device.
pub struct CudaBackend<D> {
    stream: Stream<D>,
    plan: MemoryPlan,
    /// Where each buffer begins, by [`Buffer::index`].
    bases: Vec<Address>,
    uploads: Uploads,
    rows: usize,
    cols: usize,
    /// The word of the batch at which its targets begin.
    targets: usize,
    /// The packed tokens at hand.
    packed: Packed,
    /// The next tokens of some sequences, as they are on the device.
    next: Vec<Next>,
    known: HashMap<Sequence, Replay>,
    /// The vectors of each block in the flat layout, and then of the final LayerNorm.
    vectors: Vec<Range<usize>>,
    partials: Partials,
    /// The gradient of a bias whose sum a matrix product has left, until it is added.
    summed: Option<Span>,
    /// Whether the last product has added the residual stream to its result.
    added: bool,
    /// The gradient of a bias of which attention's backward pass has left partial sums, until they are added.
    left: Option<(Span, PartialSums)>,
    /// The ranks that gradients are summed over.
    ranks: Option<RankGroup>,
}

impl<D: Device> CudaBackend<D> {
    /// Creates the backend of one of the ranks that `comm` and the device connect. Its collectives are used
    /// even if there is only one rank.
    pub fn ranked(plan: &MemoryPlan, device: D, comm: Arc<dyn Comm>) -> Result<Self, EngineError> {
        Ok(Self { ranks: Some(RankGroup::new(plan, comm)), ..Self::new(plan, device)? })
    }

    /// Allocates everything that a plan for CUDA lists.
    ///
    /// # Errors
    /// When rows are too wide for the kernels, or memory is short.
    pub fn new(plan: &MemoryPlan, mut device: D) -> Result<Self, EngineError> {
        let dims = &plan.config.dims;
        if dims.n_embd > layernorm::WIDEST {
            return Err(layernorm::too_wide(dims.n_embd));
        }
        let buffers = plan.buffers();
        let mut bases = vec![Address(0); buffers.len()];
        for (buffer, what) in buffers {
            let bytes = plan.buffer_bytes(buffer);
            if bytes > 0 {
                bases[buffer.index()] = device.allocate(bytes, what)?;
            }
        }
        Ok(Self {
            stream: Stream::new(device, plan.config.operand()),
            plan: plan.clone(),
            bases,
            uploads: Uploads::new(plan.config.dims.padded_vocab, plan.config.dropout()),
            rows: 0,
            cols: 0,
            targets: 0,
            packed: Packed::default(),
            next: Vec::new(),
            known: HashMap::new(),
            vectors: plan.layout.vectors().collect(),
            partials: Partials::of(&plan.layout, plan.config.tokens()),
            summed: None,
            added: false,
            left: None,
            ranks: None,
        })
    }

    /// Notes from now on what is launched, for [`Backend::measured`], if `on`.
    ///
    /// [`Backend::measured`]: crate::engine::fused::backend::Backend::measured
    pub fn note_launches(&mut self, on: bool) {
        self.stream.note(on);
    }

    /// The device.
    pub fn device_mut(&mut self) -> &mut D {
        self.stream.device_mut()
    }

    /// The address of a span.
    fn at(&self, span: Span) -> Address {
        self.bases[span.buffer.index()].offset(span.byte_range().start)
    }

    /// The address of a word of the batch.
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
            vocab: self.plan.config.dims.vocab_size,
            residual: self.plan.config.residual(),
        }
    }

    /// What a launch for the batch at hand draws at a site.
    fn draws(&self, site: Option<Site>) -> Draws {
        Draws { at: site.map(|site| (self.word(Words::DRAWS), site)) }
    }

    fn norm(&self, norm: Norm) -> layernorm::Norm {
        let [weight, bias, stats] = [norm.weight, norm.bias, norm.stats].map(|span| self.at(span));
        let lacks = norm.lacks.map(|span| self.at(span));
        layernorm::Norm { lacks, weight, bias, stats, residual: self.plan.config.residual() }
    }

    /// The gradient of the residual stream.
    fn gradient(&self, dx: Span, low: Option<Span>) -> Gradient {
        let halves = self.plan.config.halves_gradient();
        Gradient { at: self.at(dx), low: low.map(|span| self.at(span)), halves }
    }

    /// A place among the partial sums, counted in floats.
    fn partial(&self, float: usize) -> Address {
        self.at(self.plan.arena.partials).offset(float * Element::F32.bytes())
    }

    /// Where the partial sums of vectors' gradients are, which the span begins.
    fn partial_sums(&self, gradient: Span) -> PartialSums {
        let block = self.vectors.iter().position(|range| range.contains(&gradient.start));
        let block = block.unwrap_or_else(|| panic!("{gradient:?} is not the gradient of a vector"));
        let column = gradient.start - self.vectors[block].start;
        PartialSums {
            at: self.partial(self.partials.matrix(block) + column),
            stride: self.partials.stride,
            slices: Slices::of(self.rows * self.cols),
        }
    }

    /// The sum among these gradients that a matrix product has left.
    fn take_summed(&mut self, gradients: Span) -> Option<Summed> {
        let bias = self.summed.take_if(|bias| bias.overlaps(&gradients))?;
        let at = self.partial(self.partials.sums());
        Some(Summed { at, first: bias.start - gradients.start, len: bias.len })
    }

    /// The columns among these gradients of which attention has left partial sums.
    fn take_elsewhere(&mut self, gradients: Span) -> Option<Elsewhere> {
        let (bias, sums) = self.left.take_if(|(bias, _)| bias.overlaps(&gradients))?;
        Some(Elsewhere { sums, first: bias.start - gradients.start })
    }

    /// A matrix with rows of `width` elements.
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
        Product { m, n, k, count: 1, a, b, out, alpha: 1.0, accumulate, fused: Fused::None, tf32: None }
    }

    /// A bias as the library needs it, stored like the operands.
    fn stored_bias(&self, bias: Span) -> Address {
        match self.plan.elements(Buffer::Low) {
            0 => self.at(bias),
            _ => self.at(Span { buffer: Buffer::Low, element: self.plan.element(Buffer::Low), ..bias }),
        }
    }

    /// Starts the product `whole` with what is fused into it, or `alone` and then the kernel `after`, which do
    /// the same. Returns whether it was fused.
    fn followed(&mut self, whole: Product, alone: Product, after: Ready) -> bool {
        let may_fuse = match (self.plan.config.precision, whole.fused) {
            // tf32 results are operands and must be rounded, which the library does not do
            (Precision::Tf32, _) => false,
            // the library's GELU is an approximation, off by more than the last digits of fp32, which the kernels keep
            (Precision::Fp32, Fused::BiasGelu { .. } | Fused::GeluSlope { .. }) => false,
            _ => true,
        };
        if may_fuse {
            return after.after(&mut self.stream, &whole, &alone);
        }
        self.stream.product(&alone);
        after.launch(&mut self.stream);
        false
    }

    /// The kernel that adds a projection to the residual stream, and its LayerNorm.
    fn residual(&self, tensors: ResidualLayerNorm) -> Ready {
        let ResidualLayerNorm { x, delta, bias, dropout, sum, norm, out } = tensors;
        let c = norm.weight.len;
        let bias = norm.lacks.is_none().then(|| self.at(bias));
        let spans = [x, delta, sum].map(|span| self.at(span));
        let (to, inner, draws) = (self.at(out), self.norm(norm), (self.draws(dropout), self.cols));
        layernorm::residual(self.plan.config.operand(), spans, bias, inner, to, [x.len / c, c], draws)
    }

    /// Starts a projection to the residual stream: as `whole`, which adds the stream, where the stream lacks biases and
    /// that is not slower together with the LayerNorm that follows, or otherwise `alone`.
    fn project(&mut self, whole: Product, alone: Product, tensors: ResidualLayerNorm) {
        let (c, sum, out) = (tensors.norm.weight.len, self.at(tensors.sum), self.at(tensors.out));
        self.added = tensors.norm.lacks.is_some() && {
            let (norm, rows) = (self.norm(tensors.norm), tensors.x.len / c);
            let then = layernorm::forward(self.plan.config.operand(), sum, norm, out, rows, c);
            let after = self.residual(tensors);
            self.stream.fuses((&whole, Some(&then)), (&alone, &after))
        };
        self.stream.product(if self.added { &whole } else { &alone });
    }

    fn naive(&self, qkv: Span, shape: AttentionShape, dropout: Option<Site>) -> naive_attention::Problem {
        naive_attention::Problem {
            shape,
            draws: self.draws(dropout),
            operand: self.plan.config.operand(),
            qkv: self.at(qkv),
            scores: self.at(self.plan.arena.workers),
        }
    }

    /// Waits for doubles of the totals and reads them.
    fn totals<const N: usize>(&mut self, first: usize) -> Result<[f64; N], EngineError> {
        let from = self.total(first);
        let mut bytes = [[0; 8]; N];
        self.stream.checked(|device| device.read(from, bytes.as_flattened_mut()))?;
        Ok(bytes.map(f64::from_ne_bytes))
    }
}
