// The kernels of layernorm.cuh, for residual streams in fp32 and of operands.
#include "layernorm/layernorm.cuh"

// sums[0] = 0, and sums[k + 1] = sums[k] + the bias of projection k, all `c` wide. Each block has two projections,
// whose biases are `between` numbers apart, and those of neighbouring blocks `stride`.
extern "C" __global__ void
add_up_biases(const float* first, int between, int stride, float* sums, int blocks, int c) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= c) return;
    float sum = 0.0f;
    sums[i] = sum;
    for (int k = 0; k < 2 * blocks; k++) {
        sum += first[(i64)(k / 2) * stride + k % 2 * between + i];
        sums[(i64)(k + 1) * c + i] = sum;
    }
}

extern "C" __global__ void __launch_bounds__(NORM_THREADS)
layernorm(const float* x, const float* lacks, const float* weight, const float* bias, float* stats, operand* out,
          int rows, int c) {
    normalize<NOTHING, float>(Stored<float>{x}, nullptr, nullptr, nullptr, lacks, weight, bias, stats, out, rows, c,
                              NOTHING_DROPPED);
}

extern "C" __global__ void __launch_bounds__(NORM_THREADS)
residual_layernorm(const float* x, const operand* delta, const float* delta_bias, float* total, const float* lacks,
                   const float* weight, const float* bias, float* stats, operand* out, int rows, int c,
                   const u32* of_batch, int site, int cols) {
    normalize<PROJECTION, float>(Stored<float>{x}, delta, delta_bias, total, lacks, weight, bias, stats, out, rows, c,
                                 Dropped{{of_batch, site}, cols});
}

extern "C" __global__ void __launch_bounds__(NORM_THREADS)
embed_layernorm(const int* tokens, const float* wte, const float* wpe, float* total, const float* lacks,
                const float* weight, const float* bias, float* stats, operand* out, int rows, int c, int cols) {
    normalize<EMBEDDING, float>(Embedded{tokens, wte, wpe, cols}, nullptr, nullptr, total, lacks, weight, bias, stats,
                                out, rows, c, NOTHING_DROPPED);
}

extern "C" __global__ void __launch_bounds__(NORM_THREADS)
layernorm_again(const float* x, const float* lacks, const float* weight, const float* bias, const float* stats,
                operand* out, int rows, int c) {
    normalize_again<float>(x, lacks, weight, bias, stats, out, rows, c);
}

extern "C" __global__ void __launch_bounds__(NORM_THREADS)
layernorm_backward(const operand* dout, const float* x, const float* lacks, const float* weight, const float* stats,
                   float* dx, int accumulate, operand* low, float* dweight, float* dbias, float* dx_sums, int rows,
                   int c, int per_slice, int stride, const u32* of_batch, int site, int cols) {
    normalize_backward(dout, x, lacks, weight, stats, dx, accumulate, low, dweight, dbias, dx_sums, rows, c, per_slice,
                       stride, Dropped{{of_batch, site}, cols}, NO_POSITIONS);
}

// The same kernels for a residual stream of operands, which lacks nothing.

extern "C" __global__ void __launch_bounds__(NORM_THREADS)
layernorm_low(const operand* x, const float* lacks, const float* weight, const float* bias, float* stats, operand* out,
              int rows, int c) {
    normalize<NOTHING, operand>(Stored<operand>{x}, nullptr, nullptr, nullptr, nullptr, weight, bias, stats, out, rows,
                                c, NOTHING_DROPPED);
}

extern "C" __global__ void __launch_bounds__(NORM_THREADS)
residual_layernorm_low(const operand* x, const operand* delta, const float* delta_bias, operand* total,
                       const float* lacks, const float* weight, const float* bias, float* stats, operand* out, int rows,
                       int c, const u32* of_batch, int site, int cols) {
    normalize<PROJECTION, operand>(Stored<operand>{x}, delta, delta_bias, total, nullptr, weight, bias, stats, out,
                                   rows, c, Dropped{{of_batch, site}, cols});
}

extern "C" __global__ void __launch_bounds__(NORM_THREADS)
embed_layernorm_low(const int* tokens, const float* wte, const float* wpe, operand* total, const float* lacks,
                    const float* weight, const float* bias, float* stats, operand* out, int rows, int c, int cols) {
    normalize<EMBEDDING, operand>(Embedded{tokens, wte, wpe, cols}, nullptr, nullptr, total, nullptr, weight, bias,
                                  stats, out, rows, c, NOTHING_DROPPED);
}

extern "C" __global__ void __launch_bounds__(NORM_THREADS)
layernorm_again_low(const operand* x, const float* lacks, const float* weight, const float* bias, const float* stats,
                    operand* out, int rows, int c) {
    normalize_again<operand>(x, nullptr, weight, bias, stats, out, rows, c);
}

extern "C" __global__ void __launch_bounds__(NORM_THREADS)
layernorm_backward_low(const operand* dout, const operand* x, const float* lacks, const float* weight,
                       const float* stats, operand* dx, int accumulate, operand* low, float* dweight, float* dbias,
                       float* dx_sums, int rows, int c, int per_slice, int stride, const u32* of_batch, int site,
                       int cols) {
    normalize_backward(dout, x, nullptr, weight, stats, dx, accumulate, low, dweight, dbias, dx_sums, rows, c,
                       per_slice, stride, Dropped{{of_batch, site}, cols}, NO_POSITIONS);
}
