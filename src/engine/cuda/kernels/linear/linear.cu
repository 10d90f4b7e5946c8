// Operations after the matrix products of linear layers that the library does not fuse: biases, GELU in its
// tanh approximation (Hendrycks and Gimpel, 2016; `torch.nn.functional.gelu(approximate="tanh")`), and the
// sums that are gradients of biases.
#include "quad.cuh"

struct Gelu {
    float value, slope;
};

// x * sigmoid(2u) with u = sqrt(2/pi) * (x + 0.044715 x^3), which is x/2 * (1 + tanh(u)), and its derivative.
__device__ __forceinline__ Gelu gelu(float x) {
    constexpr float A = 2.0f * 0.79788456f, B = 0.044715f, LOG2_E = 1.44269504f;
    float square = x * x;
    float sigmoid = 1.0f / (1.0f + exp2_fast(-A * LOG2_E * x * (1.0f + B * square)));
    float slope = A * (1.0f + 3.0f * B * square);
    // where the sigmoid is 0 or 1, x * (1 - sigmoid) * slope may overflow although the product is 0
    float curve = sigmoid == 0.0f || sigmoid == 1.0f ? 0.0f : x * (1.0f - sigmoid) * slope;
    return {x * sigmoid, sigmoid * (1.0f + curve)};
}

// x = x + bias, rounded; each thread has four neighbouring elements of a row.
extern "C" __global__ void __launch_bounds__(LINEAR_THREADS)
add_bias(operand* x, const float* bias, int width) {
    int i = 4 * (blockIdx.y * LINEAR_THREADS + threadIdx.x);
    if (i >= width) return;
    operand* row = x + (size_t)blockIdx.x * width;
    Quad quad = load_quad(row, i, width), b = load_quad(bias, i, width);
    for (int j = 0; j < 4; j++) quad.x[j] += b.x[j];
    store_operands(row, i, width, quad);
}

// x = x + bias, rounded as it is stored; out = gelu(x), rounded.
extern "C" __global__ void __launch_bounds__(LINEAR_THREADS)
bias_gelu(operand* x, const float* bias, operand* out, int width) {
    int i = 4 * (blockIdx.y * LINEAR_THREADS + threadIdx.x);
    if (i >= width) return;
    operand* row = x + (size_t)blockIdx.x * width;
    Quad quad = load_quad(row, i, width), b = load_quad(bias, i, width);
    for (int j = 0; j < 4; j++) quad.x[j] = as_stored(quad.x[j] + b.x[j]);
    store_plain(row, i, width, quad);
    for (int j = 0; j < 4; j++) quad.x[j] = gelu(quad.x[j]).value;
    store_operands(out + (size_t)blockIdx.x * width, i, width, quad);
}

// out = gelu(x), rounded.
extern "C" __global__ void __launch_bounds__(LINEAR_THREADS)
gelu_again(const operand* x, operand* out, int width) {
    int i = 4 * (blockIdx.y * LINEAR_THREADS + threadIdx.x);
    if (i >= width) return;
    Quad quad = load_quad(x + (size_t)blockIdx.x * width, i, width);
    for (int j = 0; j < 4; j++) quad.x[j] = gelu(quad.x[j]).value;
    store_operands(out + (size_t)blockIdx.x * width, i, width, quad);
}

// dx = dx * gelu'(x), rounded.
extern "C" __global__ void __launch_bounds__(LINEAR_THREADS)
gelu_slope(operand* dx, const operand* x, int width) {
    int i = 4 * (blockIdx.y * LINEAR_THREADS + threadIdx.x);
    if (i >= width) return;
    operand* row = dx + (size_t)blockIdx.x * width;
    Quad quad = load_quad(row, i, width), fc = load_quad(x + (size_t)blockIdx.x * width, i, width);
    for (int j = 0; j < 4; j++) quad.x[j] *= gelu(fc.x[j]).slope;
    store_operands(row, i, width, quad);
}

// Partial sums of columns: block (part, slice) has 32 columns and `per_slice` rows, and writes
// partials[slice][column].
extern "C" __global__ void __launch_bounds__(COLUMN_WARPS* WARP)
column_sums(const operand* x, float* partials, int rows, int width, int per_slice) {
    __shared__ float sums[COLUMN_WARPS][WARP];
    int lane = threadIdx.x % WARP, warp = threadIdx.x / WARP, column = blockIdx.x * WARP + lane;
    int first = blockIdx.y * per_slice, end = min(first + per_slice, rows);
    float sum = 0.0f;
    if (column < width) {
        for (int row = first + warp; row < end; row += COLUMN_WARPS) sum += to_float(x[(size_t)row * width + column]);
    }
    sums[warp][lane] = sum;
    __syncthreads();
    if (warp == 0 && column < width) {
        sum = 0.0f;
        for (int i = 0; i < COLUMN_WARPS; i++) sum += sums[i][lane];
        partials[(size_t)blockIdx.y * width + column] = sum;
    }
}
