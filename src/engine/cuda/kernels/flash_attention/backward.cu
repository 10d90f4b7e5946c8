// The gradient of causal attention (Dao, 2023, FlashAttention-2, algorithm 2). Scores are recomputed from the
// stored log-sum-exp.
//
// One kernel computes the gradients of keys and values, block by block of keys; another those of queries,
// block by block of queries. Both compute the scores, which costs two of seven products. In return no result
// depends on the order of blocks, as it would if all blocks added to the queries' gradient.
#include "flash_attention/tile.cuh"

namespace flash {

constexpr int BACKWARD_RESIDENT = WARPS * ROWS;
// Wide heads need so many sums that the streamed tile has to be shorter.
constexpr int BACKWARD_STREAMED = (sizeof(operand) == 2 ? 64 : 32) / (WIDTH <= 64 ? 1 : 2);
// Log-sum-exp and delta of a query, which are streamed along with it.
constexpr int STATISTICS_BYTES = 2 * sizeof(float);
constexpr int KEYS_VALUES_STAGES = stages(tile_bytes(2 * BACKWARD_RESIDENT),
                                          tile_bytes(2 * BACKWARD_STREAMED) + BACKWARD_STREAMED * STATISTICS_BYTES);
constexpr int QUERIES_STAGES = stages(tile_bytes(2 * BACKWARD_RESIDENT), tile_bytes(2 * BACKWARD_STREAMED));

// Turns a score and the gradient of its probability into the probability and the gradient of the score before
// scaling.
__device__ __forceinline__ void through_softmax(float& score, float& dscore, float scale, float lse, float delta) {
    score = exp2_fast(score * (scale * LOG2_E) - lse * LOG2_E);
    dscore = score * (dscore - delta) * scale;
}

}  // namespace flash

// delta [rows, n_head, cols]: the sum of dout * out of each query, which the gradient of its softmax
// subtracts (Dao et al., 2022, eq. 4). One warp per query. Grid: 4 queries, heads, rows.
extern "C" __global__ void __launch_bounds__(flash::THREADS, flash::BLOCKS)
flash_delta(const operand* __restrict__ out, const operand* __restrict__ dout, float* __restrict__ delta, int cols,
            int n_head) {
    int lane = threadIdx.x % WARP, query = blockIdx.x * flash::WARPS + threadIdx.x / WARP;
    int head = blockIdx.y, row = blockIdx.z;
    if (query >= cols) return;
    i64 first = (((i64)row * cols + query) * n_head + head) * HEAD_SIZE;
    float sum = 0.0f;
#pragma unroll
    for (int i = 0; i < ceil_div(HEAD_SIZE, WARP); i++) {
        int column = lane + i * WARP;
        if (column < HEAD_SIZE) sum += to_float(out[first + column]) * to_float(dout[first + column]);
    }
    sum = warp_sum(sum);
    if (lane == 0) delta[((i64)row * n_head + head) * cols + query] = sum;
}

// Writes the columns of dqkv for keys and values. Grid: tiles of keys, heads, rows.
extern "C" __global__ void __launch_bounds__(flash::THREADS, flash::BLOCKS)
flash_backward_keys_values(const operand* __restrict__ qkv, const operand* __restrict__ dout,
                           const float* __restrict__ lse, const float* __restrict__ delta, operand* __restrict__ dqkv,
                           int cols, int n_head, float scale) {
    using namespace flash;
    constexpr int KEYS = BACKWARD_RESIDENT, QUERIES = BACKWARD_STREAMED, STAGES = KEYS_VALUES_STAGES;
    DYNAMIC_SHARED(operand, shared);
    operand* keys = shared;
    operand* values = keys + KEYS * STRIDE;
    operand* queries = values + KEYS * STRIDE;
    operand* douts = queries + STAGES * QUERIES * STRIDE;
    float* lses = reinterpret_cast<float*>(douts + STAGES * QUERIES * STRIDE);
    float* deltas = lses + STAGES * QUERIES;

    int first_key = blockIdx.x * KEYS, head = blockIdx.y, row = blockIdx.z;
    int width = n_head * HEAD_SIZE, pitch = 3 * width;
    i64 first_token = (i64)row * cols, statistics = ((i64)row * n_head + head) * cols;
    const operand* source = qkv + first_token * pitch + head * HEAD_SIZE;
    const operand* dout_source = dout + first_token * width + head * HEAD_SIZE;
    int query_tiles = ceil_div(cols, QUERIES);
    auto fetch_queries = [&](int tile) {
        if (tile < query_tiles) {
            int first = tile * QUERIES, stage = tile % STAGES * QUERIES;
            fetch<QUERIES>(queries + stage * STRIDE, source + (i64)first * pitch, pitch, cols - first);
            fetch<QUERIES>(douts + stage * STRIDE, dout_source + (i64)first * width, width, cols - first);
            // queries that do not exist are zeros, so they add zeros
            int i = threadIdx.x;
            if (i < QUERIES) {
                i64 from = statistics + min(first + i, cols - 1);
                copy_async_word(lses + stage + i, lse + from, first + i < cols);
                copy_async_word(deltas + stage + i, delta + from, first + i < cols);
            }
        }
        copy_async_commit();
    };
    const operand* key_source = source + (i64)first_key * pitch + width;
    fetch<KEYS>(keys, key_source, pitch, cols - first_key);
    fetch<KEYS>(values, key_source + width, pitch, cols - first_key);
    // earlier queries see none of these keys
    int first_tile = first_key / QUERIES;
    fetch_queries(first_tile);

    Position position;
    int own = threadIdx.x / WARP * ROWS, first_own = first_key + own;
    Accumulator<1, WIDTH> dkeys, dvalues;
    dkeys.clear();
    dvalues.clear();
    for (int tile = first_tile; tile < query_tiles; tile++) {
        if (STAGES == 2) fetch_queries(tile + 1);
        copy_async_wait<STAGES - 1>();
        __syncthreads();
        int first_query = tile * QUERIES, stage = tile % STAGES * QUERIES;
        if (first_own < first_query + QUERIES) {
            // transposed: one row for each key
            Accumulator<1, QUERIES> scores, dscores;
            scores.clear();
            dscores.clear();
            add_product_transposed(scores, keys + own * STRIDE, queries + stage * STRIDE);
            add_product_transposed(dscores, values + own * STRIDE, douts + stage * STRIDE);
            hide_later_keys<true>(scores, first_own, first_query);
#pragma unroll
            for (int n = 0; n < scores.COLUMNS; n++) {
#pragma unroll
                for (int e = 0; e < 4; e++) {
                    int query = stage + n * 8 + position.column + e % 2;
                    through_softmax(scores.at[0][n][e], dscores.at[0][n][e], scale, lses[query], deltas[query]);
                }
            }
            add_product(dvalues, scores, douts + stage * STRIDE);
            add_product(dkeys, dscores, queries + stage * STRIDE);
        }
        __syncthreads();
        if (STAGES == 1) fetch_queries(tile + 1);
    }

    const float as_they_are[1][2] = {{1.0f, 1.0f}};
    operand* target = dqkv + (first_token + first_own) * pitch + head * HEAD_SIZE + width;
    store(target, pitch, cols - first_own, dkeys, as_they_are);
    store(target + width, pitch, cols - first_own, dvalues, as_they_are);
}

// Writes the columns of dqkv for queries. Grid: tiles of queries, heads, rows.
extern "C" __global__ void __launch_bounds__(flash::THREADS, flash::BLOCKS)
flash_backward_queries(const operand* __restrict__ qkv, const operand* __restrict__ dout,
                       const float* __restrict__ lse, const float* __restrict__ delta, operand* __restrict__ dqkv,
                       int cols, int n_head, float scale) {
    using namespace flash;
    constexpr int QUERIES = BACKWARD_RESIDENT, KEYS = BACKWARD_STREAMED, STAGES = QUERIES_STAGES;
    DYNAMIC_SHARED(operand, shared);
    operand* queries = shared;
    operand* douts = queries + QUERIES * STRIDE;
    operand* keys = douts + QUERIES * STRIDE;
    operand* values = keys + STAGES * KEYS * STRIDE;

    // the tiles with the most keys begin first, because they take longest
    int first_query = (gridDim.x - 1 - blockIdx.x) * QUERIES, head = blockIdx.y, row = blockIdx.z;
    int width = n_head * HEAD_SIZE, pitch = 3 * width;
    i64 first_token = (i64)row * cols, statistics = ((i64)row * n_head + head) * cols;
    const operand* source = qkv + first_token * pitch + head * HEAD_SIZE;
    const operand* dout_source = dout + (first_token + first_query) * width + head * HEAD_SIZE;
    int key_tiles = ceil_div(min(first_query + QUERIES, cols), KEYS);
    auto fetch_keys = [&](int tile) {
        if (tile < key_tiles) {
            int first = tile * KEYS, stage = tile % STAGES * KEYS * STRIDE;
            const operand* from = source + (i64)first * pitch;
            fetch<KEYS>(keys + stage, from + width, pitch, cols - first);
            fetch<KEYS>(values + stage, from + 2 * width, pitch, cols - first);
        }
        copy_async_commit();
    };
    fetch<QUERIES>(queries, source + (i64)first_query * pitch, pitch, cols - first_query);
    fetch<QUERIES>(douts, dout_source, width, cols - first_query);
    fetch_keys(0);

    Position position;
    int own = threadIdx.x / WARP * ROWS, first_own = first_query + own;
    float row_lse[2], row_delta[2];
#pragma unroll
    for (int half = 0; half < 2; half++) {
        int query = first_own + half * 8 + position.row;
        row_lse[half] = query < cols ? lse[statistics + query] : 0.0f;
        row_delta[half] = query < cols ? delta[statistics + query] : 0.0f;
    }
    Accumulator<1, WIDTH> dqueries;
    dqueries.clear();
    for (int tile = 0; tile < key_tiles; tile++) {
        if (STAGES == 2) fetch_keys(tile + 1);
        copy_async_wait<STAGES - 1>();
        __syncthreads();
        int first_key = tile * KEYS, stage = tile % STAGES * KEYS * STRIDE;
        if (first_key < first_own + ROWS) {
            Accumulator<1, KEYS> scores, dscores;
            scores.clear();
            dscores.clear();
            add_product_transposed(scores, queries + own * STRIDE, keys + stage);
            add_product_transposed(dscores, douts + own * STRIDE, values + stage);
            hide_later_keys<false>(scores, first_own, first_key);
#pragma unroll
            for (int n = 0; n < scores.COLUMNS; n++) {
#pragma unroll
                for (int e = 0; e < 4; e++) {
                    through_softmax(scores.at[0][n][e], dscores.at[0][n][e], scale, row_lse[e / 2], row_delta[e / 2]);
                }
            }
            add_product(dqueries, dscores, keys + stage);
        }
        __syncthreads();
        if (STAGES == 1) fetch_keys(tile + 1);
    }

    const float as_they_are[1][2] = {{1.0f, 1.0f}};
    operand* target = dqkv + (first_token + first_own) * pitch + head * HEAD_SIZE;
    store(target, pitch, cols - first_own, dqueries, as_they_are);
}
