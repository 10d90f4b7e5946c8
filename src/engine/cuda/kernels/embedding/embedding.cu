// The kernels of embedding.cuh, for residual streams in fp32 and of operands.
#include "embedding/embedding.cuh"

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
