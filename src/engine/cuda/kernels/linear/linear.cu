// Operations after the matrix products of linear layers that the library does not fuse: biases and GELU. Each thread
// has neighbouring elements of a row, 16 bytes of operands.
#include "linear/gelu.cuh"
#include "numbers.cuh"

// x = x + bias, rounded.
extern "C" __global__ void __launch_bounds__(LINEAR_THREADS)
add_bias(operand* __restrict__ x, const float* __restrict__ bias, int width) {
    int i = PACK * (blockIdx.y * LINEAR_THREADS + threadIdx.x);
    if (i >= width) return;
    operand* row = x + (size_t)blockIdx.x * width;
    Pack sum = load<PACK>(row, i, width), b = load<PACK>(bias, i, width);
#pragma unroll
    for (int j = 0; j < PACK; j++) sum.x[j] += b.x[j];
    store_operands(row, i, width, sum);
}

// x = x + bias, rounded as it is stored; out = gelu(x), rounded.
extern "C" __global__ void __launch_bounds__(LINEAR_THREADS)
bias_gelu(operand* __restrict__ x, const float* __restrict__ bias, operand* __restrict__ out, int width) {
    int i = PACK * (blockIdx.y * LINEAR_THREADS + threadIdx.x);
    if (i >= width) return;
    operand* row = x + (size_t)blockIdx.x * width;
    Pack sum = load<PACK>(row, i, width), b = load<PACK>(bias, i, width);
#pragma unroll
    for (int j = 0; j < PACK; j++) sum.x[j] = as_stored(sum.x[j] + b.x[j]);
    // only the backward pass reads it
    store<LATE>(row, i, width, sum);
#pragma unroll
    for (int j = 0; j < PACK; j++) sum.x[j] = gelu(sum.x[j]).value;
    store_operands(out + (size_t)blockIdx.x * width, i, width, sum);
}

// out = gelu(x), rounded.
extern "C" __global__ void __launch_bounds__(LINEAR_THREADS)
gelu_again(const operand* __restrict__ x, operand* __restrict__ out, int width) {
    int i = PACK * (blockIdx.y * LINEAR_THREADS + threadIdx.x);
    if (i >= width) return;
    Pack value = load<PACK>(x + (size_t)blockIdx.x * width, i, width);
#pragma unroll
    for (int j = 0; j < PACK; j++) value.x[j] = gelu(value.x[j]).value;
    store_operands(out + (size_t)blockIdx.x * width, i, width, value);
}
