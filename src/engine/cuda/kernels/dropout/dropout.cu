// Dropout of the residual stream and of its gradient, in place.
#include "dropout/draws.cuh"
#include "numbers.cuh"

// x[n] *= factors, for four neighbouring columns of one row a thread; the stream is of type R.
template <class R>
__device__ __forceinline__ void drop_row(R* __restrict__ x, int c, const Draws& draws, int cols) {
    i64 n = blockIdx.x;
    R* row = x + n * c;
    for (int i = 4 * threadIdx.x; i < c; i += 4 * DROP_THREADS) {
        Quad value = load<4>(row, i, c);
        float factors[4];
        draws.of_channels(factors, n, i, cols);
#pragma unroll
        for (int j = 0; j < 4; j++) value.x[j] *= factors[j];
        store(row, i, c, value);
    }
}

extern "C" __global__ void __launch_bounds__(DROP_THREADS)
drop_out(float* x, int c, const u32* of_batch, int site, int cols) {
    drop_row(x, c, Draws{of_batch, site}, cols);
}

// The same kernel for a residual stream of operands.
extern "C" __global__ void __launch_bounds__(DROP_THREADS)
drop_out_low(operand* x, int c, const u32* of_batch, int site, int cols) {
    drop_row(x, c, Draws{of_batch, site}, cols);
}

// dropped[h][t] = probabilities[h][t] * factors, as operands, for one row of the batch; one block for each of n_head *
// cols rows of `cols` columns. Probabilities of later keys are zeros.
extern "C" __global__ void __launch_bounds__(DROP_THREADS)
drop_probabilities(const operand* probabilities, operand* dropped, int cols, const u32* of_batch, int site, int row) {
    i64 at = (i64)blockIdx.x * cols;
    int head = blockIdx.x / cols, query = blockIdx.x % cols;
    Draws draws{of_batch, site};
    for (int key = threadIdx.x; key < cols; key += DROP_THREADS) {
        float factor = draws.of_probability(query, key, row, head);
        dropped[at + key] = to_operand(to_float(probabilities[at + key]) * factor);
    }
}
