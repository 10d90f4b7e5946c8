// Cross-entropy over the vocabulary, and its gradient; one block for each row of logits.
#include "quad.cuh"

// Four logits; those from `vocab_size` on are minus infinity.
__device__ __forceinline__ Quad load_logits(const float* logits, int i, int vocab_size, int width) {
    Quad quad = load_quad(logits, i, width);
    for (int j = 0; j < 4; j++) {
        if (i + j >= vocab_size) quad.x[j] = -INFINITY;
    }
    return quad;
}

// losses[n] = -log softmax(logits[n])[target] over the first `vocab_size` of `width` columns. If `dlogits` is
// not null, dlogits[n] = weight * (softmax - onehot), rounded, zero in the padding; it may be the logits
// themselves. Maximum and sum are found in one pass: the sum is rescaled when the maximum rises (Milakov and
// Gimelshein, 2018, algorithm 3).
extern "C" __global__ void __launch_bounds__(LOSS_THREADS)
cross_entropy(const float* logits, const int* targets, const float* weight, float* losses, operand* dlogits,
              int vocab_size, int width) {
    __shared__ float scratch[WARP];
    constexpr float LOG2_E = 1.44269504f;
    size_t row = blockIdx.x;
    int target = targets[row];
    logits += row * width;
    float highest = -INFINITY, total = 0.0f;
    for (int i = 4 * threadIdx.x; i < vocab_size; i += 4 * LOSS_THREADS) {
        Quad x = load_logits(logits, i, vocab_size, width);
        float most = fmaxf(fmaxf(x.x[0], x.x[1]), fmaxf(x.x[2], x.x[3]));
        if (most > highest) {
            total *= exp2_fast((highest - most) * LOG2_E);
            highest = most;
        }
        // a NaN among the logits makes the sum NaN
        for (int j = 0; j < 4; j++) total += exp2_fast((x.x[j] - highest) * LOG2_E);
    }
    float most = block_max(highest, scratch);
    // a thread without logits has nothing to rescale
    if (highest < most) total *= exp2_fast((highest - most) * LOG2_E);
    total = block_sum(total, scratch);
    float score = logits[target] - most;
    if (threadIdx.x == 0) losses[row] = logf(total) - score;
    if (!dlogits) return;
    // all threads have read the target's logit before it is overwritten
    __syncthreads();
    float factor = *weight / total;
    dlogits += row * width;
    for (int i = 4 * threadIdx.x; i < width; i += 4 * LOSS_THREADS) {
        Quad x = load_logits(logits, i, vocab_size, width);
        for (int j = 0; j < 4; j++) {
            x.x[j] = factor * exp2_fast((x.x[j] - most) * LOG2_E);
            if (i + j == target) x.x[j] -= *weight;
        }
        store_operands(dlogits, i, width, x);
    }
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
