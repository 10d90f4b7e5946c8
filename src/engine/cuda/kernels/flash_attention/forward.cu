// Causal attention in tiles with an online softmax (Dao, 2023, FlashAttention-2, algorithm 1): memory linear
// in T.
//
// One block computes a tile of queries of one head; keys and values are streamed in tiles, fetched one ahead
// into the second of two places.
// The hardware's exponential has base 2, so scores are multiplied by scale log2 e, in the instruction that
// subtracts their maximum.
#include "flash_attention/tile.cuh"

namespace flash {

constexpr int FORWARD_WARPS = FLASH_FORWARD_WARPS;
constexpr int FORWARD_KEYS = FLASH_FORWARD_KEYS;
// Fragments of 16 queries that a warp holds: each fragment of keys and values is used that many times.
constexpr int FORWARD_M = FLASH_FORWARD_QUERIES / (FORWARD_WARPS * ROWS);
static_assert(FORWARD_M * FORWARD_WARPS * ROWS == FLASH_FORWARD_QUERIES, "each warp holds whole fragments");

// Maximum of the scores and sum of the exponentials of a thread's rows. The sum covers the thread's own
// columns only.
template <int M>
struct RunningSoftmax {
    float max[M][2], sum[M][2];

    __device__ __forceinline__ RunningSoftmax() {
#pragma unroll
        for (int m = 0; m < M; m++) {
#pragma unroll
            for (int half = 0; half < 2; half++) {
                max[m][half] = -INFINITY;
                sum[m][half] = 0.0f;
            }
        }
    }

    // Turns scores into 2^(factor (score - running maximum)) and rescales the rows of `out` to the new
    // maximum.
    template <int N>
    __device__ __forceinline__ void update(Accumulator<M, N>& scores, Accumulator<M, WIDTH>& out, float factor) {
#pragma unroll
        for (int m = 0; m < M; m++) {
#pragma unroll
            for (int half = 0; half < 2; half++) {
                float highest = max[m][half];
#pragma unroll
                for (int n = 0; n < scores.COLUMNS; n++) {
#pragma unroll
                    for (int e = 0; e < 2; e++) highest = fmaxf(highest, scores.at[m][n][2 * half + e]);
                }
                // over the four lanes that share the row
                highest = fmaxf(highest, __shfl_xor_sync(ALL_LANES, highest, 1));
                highest = fmaxf(highest, __shfl_xor_sync(ALL_LANES, highest, 2));
                // in the first tile every row sees its first key, so `highest` is a number
                float correction = exp2_fast((max[m][half] - highest) * factor);
                float offset = highest * factor, total = 0.0f;
#pragma unroll
                for (int n = 0; n < scores.COLUMNS; n++) {
#pragma unroll
                    for (int e = 0; e < 2; e++) {
                        float& score = scores.at[m][n][2 * half + e];
                        score = exp2_fast(score * factor - offset);
                        total += score;
                    }
                }
#pragma unroll
                for (int n = 0; n < out.COLUMNS; n++) {
#pragma unroll
                    for (int e = 0; e < 2; e++) out.at[m][n][2 * half + e] *= correction;
                }
                max[m][half] = highest;
                sum[m][half] = sum[m][half] * correction + total;
            }
        }
    }
};

}  // namespace flash

// qkv [rows cols, 3 n_head HEAD_SIZE], out [rows cols, n_head HEAD_SIZE], lse [rows, n_head, cols], the
// logarithm to base 2 of the sum of the exponentials of each query's scores. scale is 1/sqrt(HEAD_SIZE). With a site,
// probabilities are dropped there. Grid: tiles of queries, heads, rows.
extern "C" __global__ void __launch_bounds__(FLASH_FORWARD_WARPS * WARP, FLASH_FORWARD_BLOCKS)
flash_forward(const operand* __restrict__ qkv, operand* __restrict__ out, float* __restrict__ lse, int cols, int n_head,
              float scale, const u32* __restrict__ of_batch, int site) {
    using namespace flash;
    constexpr int M = FORWARD_M, QUERIES = FLASH_FORWARD_QUERIES, KEYS = FORWARD_KEYS;
    DYNAMIC_SHARED(operand, shared);
    operand* queries = shared;
    operand* keys = queries + QUERIES * STRIDE;
    operand* values = keys + 2 * KEYS * STRIDE;

    // the tiles with the most keys begin first, because they take longest
    int first_query = (gridDim.x - 1 - blockIdx.x) * QUERIES;
    int head = blockIdx.y, row = blockIdx.z;
    int width = n_head * HEAD_SIZE, pitch = 3 * width;
    const operand* source = qkv + (i64)row * cols * pitch + head * HEAD_SIZE;
    int key_tiles = ceil_div(min(first_query + QUERIES, cols), KEYS);
    auto fetch_keys = [&](int tile) {
        int first = tile * KEYS, stage = tile % 2 * KEYS * STRIDE;
        const operand* from = source + (i64)first * pitch;
        fetch<KEYS, FORWARD_WARPS>(keys + stage, from + width, pitch, cols - first);
        fetch<KEYS, FORWARD_WARPS>(values + stage, from + 2 * width, pitch, cols - first);
    };
    fetch<QUERIES, FORWARD_WARPS>(queries, source + (i64)first_query * pitch, pitch, cols - first_query);
    fetch_keys(0);
    copy_async_commit();

    int own = threadIdx.x / WARP * ROWS * M;
    RunningSoftmax<M> softmax;
    Accumulator<M, WIDTH> sum;
    sum.clear();
    for (int tile = 0; tile < key_tiles; tile++) {
        copy_async_wait<0>();
        __syncthreads();
        // every warp is done with the previous tile, whose place the next one takes
        if (tile + 1 < key_tiles) fetch_keys(tile + 1);
        copy_async_commit();
        // nothing to do for a warp whose queries all come before these keys
        if (tile * KEYS < first_query + own + ROWS * M) {
            int stage = tile % 2 * KEYS * STRIDE;
            Accumulator<M, KEYS> scores;
            scores.clear();
            add_product_transposed(scores, queries + own * STRIDE, keys + stage);
            hide_later_keys<false>(scores, first_query + own, tile * KEYS);
            softmax.update(scores, sum, scale * LOG2_E);
            if (Draws draws{of_batch, site}; draws.act()) {
                for_dropout<false>(scores, first_query + own, tile * KEYS, draws, row, head,
                                   [](float& p, float factor) { p *= factor; });
            }
            add_product(sum, scores, values + stage);
        }
    }

    Position position;
    float factors[M][2];
    int present = cols - first_query - own;
#pragma unroll
    for (int m = 0; m < M; m++) {
#pragma unroll
        for (int half = 0; half < 2; half++) {
            float total = softmax.sum[m][half];
            total += __shfl_xor_sync(ALL_LANES, total, 1);
            total += __shfl_xor_sync(ALL_LANES, total, 2);
            factors[m][half] = 1.0f / total;
            int query = m * ROWS + half * 8 + position.row;
            if (position.column == 0 && query < present) {
                lse[((i64)row * n_head + head) * cols + first_query + own + query] =
                    softmax.max[m][half] * (scale * LOG2_E) + log2f(total);
            }
        }
    }
    operand* target = out + ((i64)row * cols + first_query + own) * width + head * HEAD_SIZE;
    store<false>(target, width, present, 0, sum, factors);
}
