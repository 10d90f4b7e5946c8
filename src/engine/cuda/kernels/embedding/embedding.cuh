// Token and position embeddings. Tokens repeat, so the backward pass takes them sorted: one block sums all
// rows of a token, in the order of the batch. Atomic additions would make the sum depend on timing.
#ifndef EMBEDDING_CUH
#define EMBEDDING_CUH

#include "numbers.cuh"

// The residual stream is of type R.
template <class R>
__device__ __forceinline__ void embed_row(const int* __restrict__ tokens, const float* __restrict__ wte,
                                          const float* __restrict__ wpe, R* __restrict__ out, int cols, int c) {
    size_t n = blockIdx.x;
    const float* token = wte + (size_t)tokens[n] * c;
    const float* position = wpe + (n % cols) * c;
    for (int i = 4 * threadIdx.x; i < c; i += 4 * EMBED_THREADS) {
        Quad a = load<4>(token, i, c), b = load<4>(position, i, c);
#pragma unroll
        for (int j = 0; j < 4; j++) a.x[j] += b.x[j];
        store(out + n * c, i, c, a);
    }
}

// The gradient of the stream is a pointer to numbers, or Halves.
template <class Gradient>
__device__ __forceinline__ void sum_token(const int* __restrict__ tokens, const int* __restrict__ distinct,
                                          const int* __restrict__ order, const int* __restrict__ begins,
                                          Gradient dx, float* __restrict__ dwte, int c) {
    int segment = blockIdx.x, column = blockIdx.y * EMBED_THREADS + threadIdx.x;
    if (segment >= *distinct || column >= c) return;
    int begin = begins[segment], end = begins[segment + 1];
    float sum = 0.0f;
#pragma unroll 8
    for (int i = begin; i < end; i++) sum += to_float(dx[(i64)order[i] * c + column]);
    dwte[(size_t)tokens[order[begin]] * c + column] += sum;
}

template <class Gradient>
__device__ __forceinline__ void sum_position(Gradient dx, float* __restrict__ dwpe, int rows, int cols, int c) {
    i64 t = blockIdx.x;
    for (int i = threadIdx.x; i < c; i += EMBED_THREADS) {
        float sum = 0.0f;
#pragma unroll 4
        for (int row = 0; row < rows; row++) sum += to_float(dx[(row * (i64)cols + t) * c + i]);
        dwpe[t * c + i] += sum;
    }
}

#endif
