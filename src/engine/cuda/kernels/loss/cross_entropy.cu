// Cross-entropy over the vocabulary and its gradient, one block for each row of logits.
#include "common.cuh"

constexpr int LOSS_THREADS = 512;

// losses[n] = -log softmax(logits[n])[target] over the first `vocab_size` of `width` columns. Where `dlogits` is not null,
// dlogits[n] = weight * (softmax - onehot), rounded, zero in the padding; it may be the logits themselves.
extern "C" __global__ void __launch_bounds__(LOSS_THREADS)
cross_entropy(const float* logits, const int* targets, const float* weight, float* losses, operand* dlogits,
              int vocab_size, int width) {
    __shared__ float scratch[WARP];
    constexpr float LOG2_E = 1.44269504f;
    size_t row = blockIdx.x;
    int target = targets[row];
    logits += row * width;
    float highest = -INFINITY, total = 0.0f;
    bool lost = false;
    for (int i = threadIdx.x; i < vocab_size; i += LOSS_THREADS) {
        float x = logits[i];
        highest = fmaxf(highest, x);
        // the largest of numbers leaves out what is none
        lost = lost || x != x;
    }
    highest = block_max(highest, scratch);
    for (int i = threadIdx.x; i < vocab_size; i += LOSS_THREADS) total += exp2_fast((logits[i] - highest) * LOG2_E);
    total = block_sum(lost ? __uint_as_float(0x7fc00000u) : total, scratch);
    float score = logits[target] - highest;
    if (threadIdx.x == 0) losses[row] = logf(total) - score;
    if (!dlogits) return;
    // everybody has read the target's logit before it is overwritten
    __syncthreads();
    float factor = *weight / total;
    dlogits += row * width;
    for (int i = threadIdx.x; i < width; i += LOSS_THREADS) {
        float gradient = 0.0f;
        if (i < vocab_size) gradient = factor * exp2_fast((logits[i] - highest) * LOG2_E);
        if (i == target) gradient -= *weight;
        dlogits[i] = to_operand(gradient);
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

// *to = value, for numbers that change between two replays of a recording.
extern "C" __global__ void __launch_bounds__(WARP) set_float(float* to, float value) {
    if (threadIdx.x == 0) *to = value;
}
