//! The launches of attention, both ways.

use super::CudaBackend;
use crate::engine::cuda::device::{Device, KernelConfig};
use crate::engine::cuda::kernels::{flash_attention, linear};
use crate::engine::dropout::Site;
use crate::engine::fused::backend::{AttentionBackward, AttentionShape};
use crate::engine::memory::Span;
use crate::recipe::Attention;

impl<D: Device> CudaBackend<D> {
    /// See [`Backend::attention`](crate::engine::fused::backend::Backend::attention).
    pub(super) fn attend(
        &mut self,
        [qkv, softmax, out]: [Span; 3],
        shape: AttentionShape,
        dropout: Option<Site>,
    ) {
        let (kept, scratch, to) = (self.at(softmax), self.at(self.plan.arena.scores), self.at(out));
        let draws = self.draws(dropout);
        match self.plan.config.attention {
            Attention::Flash => {
                let (from, kernels) = (self.at(qkv), KernelConfig::of(&self.plan.config));
                flash_attention::forward(&mut self.stream, &kernels, [from, kept, to], shape, draws);
            }
            Attention::Naive => {
                let kept = (self.plan.config.mode.is_training()).then_some(kept);
                self.naive(qkv, shape, dropout).forward(&mut self.stream, kept, scratch, to);
            }
        }
    }

    /// See [`Backend::attention_backward`](crate::engine::fused::backend::Backend::attention_backward).
    pub(super) fn attend_backward(&mut self, tensors: AttentionBackward) {
        let AttentionBackward { qkv, softmax, out, dout, dqkv: gradient, dqkv_sums, dropout, shape } =
            tensors;
        let (kept, scratch) = (self.at(softmax), self.at(self.plan.arena.scores));
        let [from, out, dout, dqkv, flash] =
            [qkv, out, dout, gradient, self.plan.arena.workers].map(|span| self.at(span));
        match self.plan.config.attention {
            Attention::Flash => {
                let (kernels, draws) = (KernelConfig::of(&self.plan.config), self.draws(dropout));
                let spans =
                    flash_attention::Backward { qkv: from, lse: kept, out, dout, dqkv, scratch: flash };
                let left = flash_attention::backward(&mut self.stream, &kernels, spans, shape, draws);
                self.left = dqkv_sums.zip(left);
            }
            Attention::Naive => {
                let problem = self.naive(qkv, shape, dropout);
                problem.backward(&mut self.stream, kept, scratch, dout, dqkv);
                if let Some(bias) = dqkv_sums {
                    let (sums, sizes) = (self.partial_sums(bias), [gradient.len / bias.len, bias.len]);
                    linear::column_sums(&mut self.stream, dqkv, sums, sizes, gradient.element);
                }
            }
        }
    }
}
