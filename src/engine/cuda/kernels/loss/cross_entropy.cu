// Cross-entropy over the vocabulary, and its gradient in place; one block for each row of logits.
#include "numbers.cuh"

// Neighbouring logits; those from `vocab_size` on are minus infinity.
__device__ __forceinline__ void hide_padding(Pack& logits, int i, int vocab_size) {
#pragma unroll
    for (int j = 0; j < PACK; j++) {
        if (i + j >= vocab_size) logits.x[j] = -INFINITY;
    }
}

// See the kernels below. Maximum and sum are found in one pass: the sum is rescaled when the maximum rises (Milakov and
// Gimelshein, 2018, algorithm 3). If the row is KEPT, it is read from global memory once; each thread finds in `kept`
// what it has put there itself.
template <bool KEPT>
__device__ __forceinline__ void cross_entropy_row(operand* __restrict__ logits, const int* __restrict__ targets,
                                                  const float* __restrict__ weight, float* __restrict__ losses,
                                                  operand* kept, int gradient, int vocab_size, int width) {
    __shared__ float scratch[WARP];
    constexpr float LOG2_E = 1.44269504f;
    size_t row = blockIdx.x;
    int target = targets[row];
    logits += row * width;
    // no thread overwrites it before the barriers of the reductions
    float score = to_float(logits[target]);
    float highest = -INFINITY, total = 0.0f;
#pragma unroll 4
    for (int i = PACK * threadIdx.x; i < vocab_size; i += PACK * LOSS_THREADS) {
        Pack x = load<PACK, KEPT ? LATE : SOON>(logits, i, width);
        if (KEPT) store(kept, i, width, x);
        hide_padding(x, i, vocab_size);
        float most = x.x[0];
#pragma unroll
        for (int j = 1; j < PACK; j++) most = fmaxf(most, x.x[j]);
        if (most > highest) {
            total *= exp2_fast((highest - most) * LOG2_E);
            highest = most;
        }
        // a NaN among the logits makes the sum NaN
#pragma unroll
        for (int j = 0; j < PACK; j++) total += exp2_fast((x.x[j] - highest) * LOG2_E);
    }
    float most = block_max(highest, scratch);
    // a thread without logits has nothing to rescale
    if (highest < most) total *= exp2_fast((highest - most) * LOG2_E);
    total = block_sum(total, scratch);
    if (threadIdx.x == 0) losses[row] = logf(total) - (score - most);
    if (!gradient) return;
    float share = *weight, factor = share / total;
#pragma unroll 4
    for (int i = PACK * threadIdx.x; i < width; i += PACK * LOSS_THREADS) {
        Pack x = {};
        if (i < vocab_size) x = load<PACK>(KEPT ? kept : logits, i, width);
        hide_padding(x, i, vocab_size);
#pragma unroll
        for (int j = 0; j < PACK; j++) {
            x.x[j] = factor * exp2_fast((x.x[j] - most) * LOG2_E);
            if (i + j == target) x.x[j] -= share;
        }
        store_operands(logits, i, width, x);
    }
}

// losses[n] = -log softmax(logits[n])[target] over the first `vocab_size` of `width` columns, in fp32 whatever the
// logits are stored as. If there is to be a `gradient`, then logits[n] = weight * (softmax - onehot), rounded, zero in
// the padding; each row is read twice.
extern "C" __global__ void __launch_bounds__(LOSS_THREADS)
cross_entropy(operand* logits, const int* targets, const float* weight, float* losses, int gradient, int vocab_size,
              int width) {
    cross_entropy_row<false>(logits, targets, weight, losses, nullptr, gradient, vocab_size, width);
}

// The same with a gradient, where a row fits into shared memory: each row is read once.
extern "C" __global__ void __launch_bounds__(LOSS_THREADS)
cross_entropy_kept(operand* logits, const int* targets, const float* weight, float* losses, int vocab_size,
                   int width) {
    DYNAMIC_SHARED(operand, kept);
    cross_entropy_row<true>(logits, targets, weight, losses, kept, 1, vocab_size, width);
}

// *sum += the mean of n losses; one block.
extern "C" __global__ void __launch_bounds__(LOSS_THREADS) add_loss(const float* losses, double* sum, int n) {
    __shared__ double scratch[WARP];
    double total = 0.0;
    for (int i = threadIdx.x; i < n; i += LOSS_THREADS) total += losses[i];
    total = block_sum(total, scratch);
    if (threadIdx.x == 0) *sum += total / n;
}

// *to = value, for numbers that change between two plays of a recording.
extern "C" __global__ void __launch_bounds__(WARP) set_float(float* to, float value) {
    if (threadIdx.x == 0) *to = value;
}
