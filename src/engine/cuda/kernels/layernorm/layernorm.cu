// LayerNorm (Ba et al., 2016; eps 1e-5) with the residual sum before it. Each warp has one row. Rows are read
// again from the cache instead of being kept in registers, so any width works.
#include "quad.cuh"

constexpr int NORM_ROWS = NORM_THREADS / WARP;
constexpr float NORM_EPS = 1e-5f;

// Statistics and output of a row, given the sum over this lane's elements.
__device__ __forceinline__ void normalize(const float* x, float sum, const float* weight, const float* bias,
                                          float* stats, operand* out, int c) {
    int lane = threadIdx.x % WARP;
    float mean = warp_sum(sum) / c, squares = 0.0f;
    for (int i = 4 * lane; i < c; i += 4 * WARP) {
        Quad quad = load_quad(x, i, c);
        for (int j = 0; j < 4; j++) {
            float off = i + j < c ? quad.x[j] - mean : 0.0f;
            squares += off * off;
        }
    }
    float rstd = 1.0f / sqrtf(warp_sum(squares) / c + NORM_EPS);
    if (lane == 0) {
        stats[0] = mean;
        stats[1] = rstd;
    }
    for (int i = 4 * lane; i < c; i += 4 * WARP) {
        Quad quad = load_quad(x, i, c), w = load_quad(weight, i, c), b = load_quad(bias, i, c);
        for (int j = 0; j < 4; j++) quad.x[j] = (quad.x[j] - mean) * rstd * w.x[j] + b.x[j];
        store_operands(out, i, c, quad);
    }
}

extern "C" __global__ void __launch_bounds__(NORM_THREADS)
layernorm(const float* x, const float* weight, const float* bias, float* stats, operand* out, int rows, int c) {
    size_t row = (size_t)blockIdx.x * NORM_ROWS + threadIdx.x / WARP;
    if (row >= rows) return;
    float sum = 0.0f;
    for (int i = 4 * (threadIdx.x % WARP); i < c; i += 4 * WARP) {
        Quad quad = load_quad(x + row * c, i, c);
        for (int j = 0; j < 4; j++) sum += quad.x[j];
    }
    normalize(x + row * c, sum, weight, bias, stats + 2 * row, out + row * c, c);
}

// total = x + (delta + delta_bias), then LayerNorm of it.
extern "C" __global__ void __launch_bounds__(NORM_THREADS)
residual_layernorm(const float* x, const float* delta, const float* delta_bias, float* total, const float* weight,
                   const float* bias, float* stats, operand* out, int rows, int c) {
    size_t row = (size_t)blockIdx.x * NORM_ROWS + threadIdx.x / WARP;
    if (row >= rows) return;
    float sum = 0.0f;
    for (int i = 4 * (threadIdx.x % WARP); i < c; i += 4 * WARP) {
        Quad quad = load_quad(x + row * c, i, c), d = load_quad(delta + row * c, i, c);
        Quad b = load_quad(delta_bias, i, c);
        for (int j = 0; j < 4; j++) {
            quad.x[j] += d.x[j] + b.x[j];
            sum += quad.x[j];
        }
        // each lane reads only what it has written itself
        store_quad(total + row * c, i, c, quad);
    }
    normalize(total + row * c, sum, weight, bias, stats + 2 * row, out + row * c, c);
}

// The output again, from stored statistics.
extern "C" __global__ void __launch_bounds__(NORM_THREADS)
layernorm_again(const float* x, const float* weight, const float* bias, const float* stats, operand* out, int rows,
                int c) {
    size_t row = (size_t)blockIdx.x * NORM_ROWS + threadIdx.x / WARP;
    if (row >= rows) return;
    float mean = stats[2 * row], rstd = stats[2 * row + 1];
    for (int i = 4 * (threadIdx.x % WARP); i < c; i += 4 * WARP) {
        Quad quad = load_quad(x + row * c, i, c), w = load_quad(weight, i, c), b = load_quad(bias, i, c);
        for (int j = 0; j < 4; j++) quad.x[j] = (quad.x[j] - mean) * rstd * w.x[j] + b.x[j];
        store_operands(out + row * c, i, c, quad);
    }
}

// With g = dout * weight and h = (x - mean) * rstd: dx (+)= rstd * (g - mean(g) - h * mean(g * h)). If `low`
// is not null, dx is also stored there as an operand.
extern "C" __global__ void __launch_bounds__(NORM_THREADS)
layernorm_backward(const float* dout, const float* x, const float* weight, const float* stats, float* dx,
                   int accumulate, operand* low, int rows, int c) {
    size_t row = (size_t)blockIdx.x * NORM_ROWS + threadIdx.x / WARP;
    if (row >= rows) return;
    dout += row * c;
    x += row * c;
    dx += row * c;
    float mean = stats[2 * row], rstd = stats[2 * row + 1], sum_g = 0.0f, sum_gh = 0.0f;
    for (int i = 4 * (threadIdx.x % WARP); i < c; i += 4 * WARP) {
        Quad d = load_quad(dout, i, c), v = load_quad(x, i, c), w = load_quad(weight, i, c);
        for (int j = 0; j < 4; j++) {
            float g = d.x[j] * w.x[j];
            sum_g += g;
            sum_gh += g * ((v.x[j] - mean) * rstd);
        }
    }
    float mean_g = warp_sum(sum_g) / c, mean_gh = warp_sum(sum_gh) / c;
    for (int i = 4 * (threadIdx.x % WARP); i < c; i += 4 * WARP) {
        Quad d = load_quad(dout, i, c), v = load_quad(x, i, c), w = load_quad(weight, i, c), out = {};
        if (accumulate) out = load_quad(dx, i, c);
        for (int j = 0; j < 4; j++) {
            float h = (v.x[j] - mean) * rstd;
            out.x[j] += (d.x[j] * w.x[j] - mean_g - h * mean_gh) * rstd;
        }
        store_quad(dx, i, c, out);
        if (low) store_operands(low + row * c, i, c, out);
    }
}

// Partial sums for the gradients of scale and shift. Block (part, slice) has 32 columns and `per_slice` rows,
// and writes partials[slice][0..c] and [c..2c].
extern "C" __global__ void __launch_bounds__(SUM_WARPS* WARP)
layernorm_backward_sums(const float* dout, const float* x, const float* stats, float* partials, int rows, int c,
                        int per_slice) {
    __shared__ float weights[SUM_WARPS][WARP], biases[SUM_WARPS][WARP];
    int lane = threadIdx.x % WARP, warp = threadIdx.x / WARP, column = blockIdx.x * WARP + lane;
    int first = blockIdx.y * per_slice, end = min(first + per_slice, rows);
    float dweight = 0.0f, dbias = 0.0f;
    if (column < c) {
        for (int row = first + warp; row < end; row += SUM_WARPS) {
            float d = dout[(size_t)row * c + column];
            float mean = stats[2 * (size_t)row], rstd = stats[2 * (size_t)row + 1];
            dweight += d * ((x[(size_t)row * c + column] - mean) * rstd);
            dbias += d;
        }
    }
    weights[warp][lane] = dweight;
    biases[warp][lane] = dbias;
    __syncthreads();
    if (warp == 0 && column < c) {
        dweight = dbias = 0.0f;
        for (int i = 0; i < SUM_WARPS; i++) {
            dweight += weights[i][lane];
            dbias += biases[i][lane];
        }
        partials[(size_t)blockIdx.y * 2 * c + column] = dweight;
        partials[(size_t)blockIdx.y * 2 * c + c + column] = dbias;
    }
}

// out[i] += the sum of partials[i] over `count` rows, which are `stride` elements apart.
extern "C" __global__ void add_partials(const float* partials, float* out, int count, int stride, int width) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= width) return;
    float sum = 0.0f;
    for (int slice = 0; slice < count; slice++) sum += partials[(size_t)slice * stride + i];
    out[i] += sum;
}
