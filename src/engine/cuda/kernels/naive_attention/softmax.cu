// The softmax between the two products of attention with stored probabilities, and its gradient. Each warp
// has one row of scores.
#include "dropout/draws.cuh"

constexpr int SOFTMAX_ROWS = SOFTMAX_THREADS / WARP;

// probabilities[h][t] = softmax(scores[h][t][0..t]), rounded, zero after t; there are `rows` = n_head * cols
// rows of `cols` columns.
extern "C" __global__ void __launch_bounds__(SOFTMAX_THREADS)
causal_softmax(const float* scores, operand* probabilities, int rows, int cols) {
    size_t row = (size_t)blockIdx.x * SOFTMAX_ROWS + threadIdx.x / WARP;
    if (row >= rows) return;
    constexpr float LOG2_E = 1.44269504f;
    int lane = threadIdx.x % WARP, seen = row % cols + 1;
    scores += row * cols;
    probabilities += row * cols;
    float highest = -INFINITY, total = 0.0f;
    for (int i = lane; i < seen; i += WARP) highest = fmaxf(highest, scores[i]);
    highest = warp_max(highest);
    for (int i = lane; i < seen; i += WARP) total += exp2_fast((scores[i] - highest) * LOG2_E);
    total = warp_sum(total);
    for (int i = lane; i < cols; i += WARP) {
        float p = i < seen ? exp2_fast((scores[i] - highest) * LOG2_E) / total : 0.0f;
        probabilities[i] = to_operand(p);
    }
}

// dscores = p * (g - sum(p * g)) * scale with g = drop(dp), rounded, zero for later keys; of one row of the batch. With
// dropout, g takes the place of dp.
extern "C" __global__ void __launch_bounds__(SOFTMAX_THREADS)
causal_softmax_backward(const operand* probabilities, float* dp, operand* dscores, int rows, int cols, float scale,
                        const u32* of_batch, int site, int of_row) {
    size_t row = (size_t)blockIdx.x * SOFTMAX_ROWS + threadIdx.x / WARP;
    if (row >= rows) return;
    int lane = threadIdx.x % WARP, query = row % cols, seen = query + 1;
    Draws draws{of_batch, site};
    probabilities += row * cols;
    dp += row * cols;
    dscores += row * cols;
    float dot = 0.0f;
    for (int i = lane; i < seen; i += WARP) {
        float g = dp[i];
        if (draws.act()) dp[i] = g *= draws.of_probability(query, i, of_row, (int)(row / cols));
        dot += to_float(probabilities[i]) * g;
    }
    dot = warp_sum(dot);
    for (int i = lane; i < cols; i += WARP) {
        float ds = i < seen ? to_float(probabilities[i]) * (dp[i] - dot) * scale : 0.0f;
        dscores[i] = to_operand(ds);
    }
}
