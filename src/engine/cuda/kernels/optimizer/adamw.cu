// AdamW: one pass over the flat buffers, which obeys the decision of step.cu.
#include "numbers.cuh"

// Loshchilov and Hutter (2019), algorithm 2, as `torch.optim.AdamW` computes it, on `len` elements. Clears the
// gradient; writes the parameter as an operand to `low` where that is not null. Only clears if nothing is to be
// applied.
extern "C" __global__ void __launch_bounds__(ADAMW_THREADS)
adamw(float* p, float* g, float* m, float* v, operand* low, const double* sums, i64 len, float keep,
      float one_minus_beta1, float beta2, float one_minus_beta2, float step_size, float rsqrt_correction, float eps) {
    i64 i = ((i64)blockIdx.x * ADAMW_THREADS + threadIdx.x) * 4;
    if (i >= len) return;
    float scale = (float)sums[4];
    Quad* gradient = reinterpret_cast<Quad*>(g + i);
    if (sums[3] != 0.0) {
        Quad gs = *gradient, ms = *reinterpret_cast<Quad*>(m + i), vs = *reinterpret_cast<Quad*>(v + i);
        Quad ps = *reinterpret_cast<Quad*>(p + i);
        for (int j = 0; j < 4; j++) {
            float x = gs.x[j] * scale;
            ms.x[j] += (x - ms.x[j]) * one_minus_beta1;
            vs.x[j] = vs.x[j] * beta2 + x * x * one_minus_beta2;
            ps.x[j] = ps.x[j] * keep - step_size * ms.x[j] / (sqrtf(vs.x[j]) * rsqrt_correction + eps);
        }
        *reinterpret_cast<Quad*>(m + i) = ms;
        *reinterpret_cast<Quad*>(v + i) = vs;
        *reinterpret_cast<Quad*>(p + i) = ps;
        if (low) store_operands(low + i, 0, 4, ps);
    }
    *gradient = Quad{};
}
