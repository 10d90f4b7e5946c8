//! Muon's kernels on a CUDA device: passes over a matrix, and products of the library between them. What they hold is
//! fp32, of which bf16 is a part, so that the iteration rounds as it says under every precision of the run.

use super::CudaBackend;
use crate::engine::cuda::device::{Device, Product};
use crate::engine::cuda::kernels::muon;
use crate::engine::fused::backend::{MuonKernels, MuonMomentum, MuonProduct, MuonUpdate};
use crate::engine::memory::Span;
use crate::engine::optimizer::muon::{Constants, Side};
use crate::recipe::MuonPrecision;

impl<D: Device> MuonKernels for CudaBackend<D> {
    fn muon_momentum(&mut self, tensors: MuonMomentum, constants: &Constants) {
        let MuonMomentum { gradients, momentum, out } = tensors;
        let buffers = [gradients, momentum, out].map(|span| self.at(span));
        let totals = self.total(0);
        muon::momentum(&mut self.stream, buffers, totals, out.len, constants);
    }

    fn muon_normalize(&mut self, x: Span, precision: MuonPrecision) {
        let (at, totals) = (self.at(x), self.total(0));
        muon::normalize(&mut self.stream, at, totals, x.len, precision);
    }

    fn muon_product(&mut self, product: MuonProduct, precision: MuonPrecision) {
        let (product, out, plus, factors) = match product {
            MuonProduct::Gram { x, shape: [rows, cols], side, out } => {
                let x = self.matrix(x, cols);
                let (a, b, n, k) = match side {
                    Side::Left => (x, x.transposed(), rows, cols),
                    Side::Right => (x.transposed(), x, cols, rows),
                };
                (self.product([n, n, k], a, b, self.matrix(out, n), false), out, None, [1.0, 0.0])
            }
            MuonProduct::Sum { left, right, shapes: [[rows, depth], [_, cols]], factors, plus, out } => {
                let (a, b) = (self.matrix(left, depth), self.matrix(right, cols));
                let product = self.product([rows, cols, depth], a, b, self.matrix(out, cols), false);
                (product, out, Some(plus), factors)
            }
        };
        // bf16's 8 bits are among TF32's 11, so tensor cores lose nothing there
        let tf32 = Some(precision == MuonPrecision::Bf16);
        self.stream.product(&Product { tf32, ..product });
        if plus.is_some() || precision == MuonPrecision::Bf16 {
            let (at, plus) = (self.at(out), plus.map(|span| self.at(span)));
            muon::combine(&mut self.stream, at, plus, out.len, factors, precision);
        }
    }

    fn muon_apply(&mut self, tensors: MuonUpdate, constants: &Constants) {
        let MuonUpdate { parameters, update, low } = tensors;
        let (at, low) = ([parameters, update].map(|span| self.at(span)), low.map(|span| self.at(span)));
        let totals = self.total(0);
        muon::apply(&mut self.stream, at, low, totals, parameters.len, constants);
    }
}
