// Muon's passes over a matrix, which obey the decision of step.cu. The products between them are the library's; what
// they leave in fp32 is rounded here, to bf16 where the rule says so.
#include "numbers.cuh"

__device__ __forceinline__ float rounded(float x, int bf16) { return bf16 ? float_of_bf16(bf16_bits(x)) : x; }

// The running mean `m` of the gradients, and in `out` the gradient moved towards it by `ahead`, rounded. Clears the
// gradients; `m` stays and `out` is zero if nothing is to be applied.
extern "C" __global__ void __launch_bounds__(MUON_THREADS)
muon_momentum(float* g, float* m, float* out, const double* sums, i64 len, float one_minus_momentum, float ahead,
              int bf16) {
    i64 i = ((i64)blockIdx.x * MUON_THREADS + threadIdx.x) * 4;
    if (i >= len) return;
    float scale = (float)sums[4];
    Quad* gradient = reinterpret_cast<Quad*>(g + i);
    Quad result{};
    if (sums[3] != 0.0) {
        Quad gs = *gradient, ms = *reinterpret_cast<Quad*>(m + i);
        for (int j = 0; j < 4; j++) {
            float x = gs.x[j] * scale;
            ms.x[j] += (x - ms.x[j]) * one_minus_momentum;
            result.x[j] = rounded(ms.x[j] + (x - ms.x[j]) * ahead, bf16);
        }
        *reinterpret_cast<Quad*>(m + i) = ms;
    }
    *reinterpret_cast<Quad*>(out + i) = result;
    *gradient = Quad{};
}

// x /= max(the square root of the sum of the partial sums of its squares, least), rounded.
extern "C" __global__ void __launch_bounds__(MUON_THREADS)
muon_divide(float* x, const double* partials, int count, i64 len, float least, int bf16) {
    __shared__ double scratch[WARP];
    double squares = 0.0;
    for (int i = threadIdx.x; i < count; i += MUON_THREADS) squares += partials[i];
    float norm = fmaxf(rounded((float)sqrt(block_sum(squares, scratch)), bf16), least);
    i64 i = ((i64)blockIdx.x * MUON_THREADS + threadIdx.x) * 4;
    if (i >= len) return;
    Quad* at = reinterpret_cast<Quad*>(x + i);
    Quad xs = *at;
    for (int j = 0; j < 4; j++) xs.x[j] = rounded(xs.x[j] / norm, bf16);
    *at = xs;
}

// x = factor x + other plus, rounded; x alone if `plus` is null.
extern "C" __global__ void __launch_bounds__(MUON_THREADS)
muon_combine(float* x, const float* plus, i64 len, float factor, float other, int bf16) {
    i64 i = ((i64)blockIdx.x * MUON_THREADS + threadIdx.x) * 4;
    if (i >= len) return;
    Quad* at = reinterpret_cast<Quad*>(x + i);
    Quad xs = *at, more{};
    if (plus) more = *reinterpret_cast<const Quad*>(plus + i);
    for (int j = 0; j < 4; j++) xs.x[j] = rounded(xs.x[j] * factor + more.x[j] * other, bf16);
    *at = xs;
}

// p = keep p - step_size update; writes the parameter as an operand to `low` where that is not null. Nothing if nothing
// is to be applied.
extern "C" __global__ void __launch_bounds__(MUON_THREADS)
muon_apply(float* p, const float* update, operand* low, const double* sums, i64 len, float keep, float step_size) {
    i64 i = ((i64)blockIdx.x * MUON_THREADS + threadIdx.x) * 4;
    if (i >= len || sums[3] == 0.0) return;
    Quad ps = *reinterpret_cast<Quad*>(p + i), us = *reinterpret_cast<const Quad*>(update + i);
    for (int j = 0; j < 4; j++) {
        // behind the matrix is a gap, which stays zero
        if (i + j < len) ps.x[j] = ps.x[j] * keep - step_size * us.x[j];
    }
    *reinterpret_cast<Quad*>(p + i) = ps;
    if (low) store_operands(low + i, 0, 4, ps);
}
