// Token and position embeddings. Tokens repeat, so the backward pass takes them sorted: one block sums all
// rows of a token, in the order of the batch. Atomic additions would make the sum depend on timing.
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

// out[n] = wte[tokens[n]] + wpe[n mod cols]; one block for each row n, `c` wide.
extern "C" __global__ void __launch_bounds__(EMBED_THREADS)
embed(const int* tokens, const float* wte, const float* wpe, float* out, int cols, int c) {
    embed_row(tokens, wte, wpe, out, cols, c);
}

// dwte[token] += the rows of dx at the positions of the token. Block (s, part) has the s-th distinct token
// and EMBED_THREADS columns. `order` lists the positions by token; `begins` has the index in it at which each
// token begins.
extern "C" __global__ void __launch_bounds__(EMBED_THREADS)
embed_backward_tokens(const int* tokens, const int* distinct, const int* order, const int* begins, const float* dx,
                      float* dwte, int c) {
    sum_token(tokens, distinct, order, begins, dx, dwte, c);
}

// dwpe[t] += the rows of dx at position t of each sequence; one block for each position.
extern "C" __global__ void __launch_bounds__(EMBED_THREADS)
embed_backward_positions(const float* dx, float* dwpe, int rows, int cols, int c) {
    sum_position(dx, dwpe, rows, cols, c);
}

// The same kernels for a residual stream of operands.

extern "C" __global__ void __launch_bounds__(EMBED_THREADS)
embed_low(const int* tokens, const float* wte, const float* wpe, operand* out, int cols, int c) {
    embed_row(tokens, wte, wpe, out, cols, c);
}

extern "C" __global__ void __launch_bounds__(EMBED_THREADS)
embed_backward_tokens_low(const int* tokens, const int* distinct, const int* order, const int* begins,
                          const operand* dx, float* dwte, int c) {
    sum_token(tokens, distinct, order, begins, dx, dwte, c);
}

extern "C" __global__ void __launch_bounds__(EMBED_THREADS)
embed_backward_positions_low(const operand* dx, float* dwpe, int rows, int cols, int c) {
    sum_position(dx, dwpe, rows, cols, c);
}
