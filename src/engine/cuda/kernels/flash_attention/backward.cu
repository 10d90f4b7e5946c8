// The gradient of causal attention (Dao, 2023, FlashAttention-2, algorithm 2) with its five products. Scores are
// recomputed from the stored log-sum-exp.
//
// Every tile of keys adds to the gradient of every later query. FlashAttention-2 gives each tile of keys a block
// and adds with atomics, in whatever order the blocks run. Here one block walks through the tiles of keys of a
// head in order, and keeps the sums of its queries between tiles in global memory that no other block touches:
// equal inputs give equal bits, and nothing waits for another block. A sum is stored in the layout of
// accumulators, so each thread reads exactly what it has written, 16 bytes at a time, mostly from the L2 cache.
//
// What else sums over queries or keys is done where the numbers are at hand: delta of a query when a block sees the
// query for the first time, and the sums of dqkv's columns, which are the gradient of a bias.
//
// Few heads do not fill a device. Then several blocks, the parts, share the tiles of a head, each with sums of
// its own, and flash_backward_sum adds those up in the order of the parts. Parts take the tiles back and forth,
// 0 1 2 3 3 2 1 0 and so on, so that each sees about as many pairs of queries and keys.
#include "flash_attention/tile.cuh"

namespace flash {

constexpr int BACKWARD_WARPS = FLASH_BACKWARD_WARPS;
constexpr int BACKWARD_KEYS = FLASH_BACKWARD_KEYS;
constexpr int BACKWARD_QUERIES = FLASH_BACKWARD_QUERIES;
// Fragments of 16 keys that a warp holds: each fragment of queries is used that many times.
constexpr int BACKWARD_M = BACKWARD_KEYS / (BACKWARD_WARPS * ROWS);
static_assert(BACKWARD_M * BACKWARD_WARPS * ROWS == BACKWARD_KEYS, "each warp holds whole fragments");
static_assert(BACKWARD_QUERIES % (BACKWARD_M * ROWS) == 0 && BACKWARD_KEYS % BACKWARD_QUERIES == 0,
              "a tile of queries sees all or none of the keys of a warp, but for those on the diagonal");

// Queries for which a warp computes gradients of scores at a time: fewer where its sums take many registers.
constexpr int SPAN = BACKWARD_QUERIES / BACKWARD_M;

// Elements from one key to the next in the gradients of scores [keys, queries].
constexpr int DSCORES_STRIDE = BACKWARD_QUERIES + CHUNK;

// The queries' gradient of a tile is cut into strips of 16 columns, which warps take in turn.
constexpr int STRIP = 16;
constexpr int STRIPS = WIDTH / STRIP;
constexpr int STRIPS_PER_WARP = ceil_div(STRIPS, BACKWARD_WARPS);
using StripSum = Accumulator<BACKWARD_QUERIES / ROWS, STRIP>;
// Elements that all lanes of a strip keep.
constexpr int STRIP_ELEMENTS = BACKWARD_QUERIES * STRIP;

// A thread's share of a strip in global memory, in pieces of 16 bytes.
__device__ __forceinline__ void load_strip(StripSum& sum, const float* from) {
    const float4* pieces = reinterpret_cast<const float4*>(from) + threadIdx.x % WARP;
#pragma unroll
    for (int i = 0; i < BACKWARD_QUERIES / ROWS * 2; i++) {
        float4 piece = pieces[i * WARP];
        float(&to)[4] = sum.at[i / 2][i % 2];
        to[0] = piece.x, to[1] = piece.y, to[2] = piece.z, to[3] = piece.w;
    }
}

__device__ __forceinline__ void store_strip(float* to, const StripSum& sum) {
    float4* pieces = reinterpret_cast<float4*>(to) + threadIdx.x % WARP;
#pragma unroll
    for (int i = 0; i < BACKWARD_QUERIES / ROWS * 2; i++) {
        const float(&from)[4] = sum.at[i / 2][i % 2];
        pieces[i * WARP] = make_float4(from[0], from[1], from[2], from[3]);
    }
}

// Scales and stores, past the cache, in which the sums of queries are to stay.
template <int M, int N>
__device__ __forceinline__ void store_scaled(operand* target, int pitch, int present, int first_column,
                                             const Accumulator<M, N>& values, float scale) {
    float factors[M][2];
#pragma unroll
    for (int m = 0; m < M; m++) factors[m][0] = factors[m][1] = scale;
    store<true>(target, pitch, present, first_column, values, factors);
}

// Whether a probability was marked by its sign. One that is 0 is marked too, as -0.
__device__ __forceinline__ bool is_left_out(float p) { return __float_as_uint(p) >> 31; }

// sum += the probabilities that are not left out, times `scale`, rounded, times rows of a tile; 16 queries at a time,
// for registers are short.
template <int M, int N>
__device__ __forceinline__ void add_kept(Accumulator<M, WIDTH>& sum, const Accumulator<M, N>& p, const operand* right,
                                         float scale) {
#pragma unroll
    for (int n = 0; n < N; n += 16) {
        Accumulator<M, 16> kept;
#pragma unroll
        for (int m = 0; m < M; m++) {
#pragma unroll
            for (int i = 0; i < 2; i++) {
#pragma unroll
                for (int e = 0; e < 4; e++) {
                    float x = p.at[m][n / 8 + i][e];
                    kept.at[m][i][e] = is_left_out(x) ? 0.0f : x * scale;
                }
            }
        }
        add_product(sum, kept, right + n * STRIDE);
    }
}

// The sum of the products of two chunks.
__device__ __forceinline__ float dot(const uint4& a, const uint4& b) {
    const u32 left[4] = {a.x, a.y, a.z, a.w}, right[4] = {b.x, b.y, b.z, b.w};
    float sum = 0.0f;
#pragma unroll
    for (int i = 0; i < 4; i++) {
#ifdef OPERAND_16_BIT
        sum += to_float(operand{(u16)left[i]}) * to_float(operand{(u16)right[i]});
        sum += to_float(operand{(u16)(left[i] >> 16)}) * to_float(operand{(u16)(right[i] >> 16)});
#else
        sum += __uint_as_float(left[i]) * __uint_as_float(right[i]);
#endif
    }
    return sum;
}

// A thread's share of a tile's rows of `out`, for delta: the sum of dout * out of each query, which the gradient of its
// softmax subtracts (Dao et al., 2022, eq. 4). Neighbouring lanes share a query.
struct Outputs {
    static constexpr int LANES = BACKWARD_WARPS * WARP / BACKWARD_QUERIES;
    static constexpr bool WHOLE = HEAD_SIZE % CHUNK == 0;
    static constexpr int CHUNKS = WHOLE ? HEAD_SIZE / CHUNK : 1;
    static constexpr int EACH = ceil_div(CHUNKS, LANES);
    static_assert(LANES * BACKWARD_QUERIES == BACKWARD_WARPS * WARP && WARP % LANES == 0, "whole lanes for a query");
    uint4 chunks[EACH];

    // Rows from `present` on are zeros. Rows that do not consist of whole chunks stay where they are.
    __device__ __forceinline__ void fetch(const operand* source, int pitch, int present) {
        int thread = thread_read_again(), query = thread / LANES, lane = thread % LANES;
#pragma unroll
        for (int i = 0; i < EACH; i++) {
            int chunk = lane + i * LANES;
            chunks[i] = make_uint4(0, 0, 0, 0);
            if (WHOLE && query < present && chunk < CHUNKS) {
                chunks[i] = __ldcs(reinterpret_cast<const uint4*>(source + (i64)query * pitch) + chunk);
            }
        }
    }

    // Delta of the thread's query; `douts` is the tile of dout.
    __device__ __forceinline__ float times(const operand* douts, const operand* source, int pitch, int present) const {
        int thread = thread_read_again(), query = thread / LANES, lane = thread % LANES;
        const operand* dout = douts + query * STRIDE;
        float sum = 0.0f;
        if constexpr (WHOLE) {
#pragma unroll
            for (int i = 0; i < EACH; i++) {
                int chunk = lane + i * LANES;
                if (chunk < CHUNKS) sum += dot(chunks[i], reinterpret_cast<const uint4*>(dout)[chunk]);
            }
        } else if (query < present) {
            const operand* out = source + (i64)query * pitch;
            for (int i = lane; i < HEAD_SIZE; i += LANES) sum += to_float(out[i]) * to_float(dout[i]);
        }
        for (int distance = LANES / 2; distance > 0; distance /= 2) sum += __shfl_xor_sync(ALL_LANES, sum, distance);
        return sum;
    }
};

// The sum of numbers of all lanes that hold the same column of an accumulator.
__device__ __forceinline__ float sum_of_rows(float x) {
    // fp32's registers hold numbers twice as wide, and have no room for several of these sums at a time
    constexpr int AT_ONCE = sizeof(operand) == 2 ? 3 : 1;
#pragma unroll AT_ONCE
    for (int distance = 4; distance < WARP; distance *= 2) x += __shfl_xor_sync(ALL_LANES, x, distance);
    return x;
}

// The sums of a warp's columns, scaled.
template <int M, int N>
__device__ __forceinline__ void sum_columns(float* sums, const Accumulator<M, N>& values, float scale) {
    Position position;
#pragma unroll
    for (int n = 0; n < values.COLUMNS; n++) {
#pragma unroll
        for (int e = 0; e < 2; e++) {
            float sum = 0.0f;
#pragma unroll
            for (int m = 0; m < M; m++) sum += values.at[m][n][e] + values.at[m][n][e + 2];
            sum = sum_of_rows(sum);
            if (position.row == 0) sums[n * 8 + position.column + e] = sum * scale;
        }
    }
}

}  // namespace flash

// Writes the columns of dqkv for keys and values and, if a head has one block, for queries; otherwise the sums of
// each part into `sums` [rows, n_head, parts, tiles of queries, STRIPS, STRIP_ELEMENTS]. Each part keeps delta in
// `kept_deltas` [rows, n_head, parts, cols], and adds up the columns of its share of dqkv, before rounding, in
// `columns` [rows, parts, 3, n_head, HEAD_SIZE]. Grid: parts, heads, rows.
extern "C" __global__ void __launch_bounds__(FLASH_BACKWARD_WARPS * WARP, FLASH_BACKWARD_BLOCKS)
flash_backward(const operand* __restrict__ qkv, const operand* __restrict__ out, const operand* __restrict__ dout,
               const float* __restrict__ lse, operand* __restrict__ dqkv, float* __restrict__ sums,
               float* __restrict__ kept_deltas, float* __restrict__ columns, int cols, int n_head, float scale,
               const u32* __restrict__ of_batch, int site) {
    using namespace flash;
    constexpr int KEYS = BACKWARD_KEYS, QUERIES = BACKWARD_QUERIES, WARPS = BACKWARD_WARPS, M = BACKWARD_M;
    constexpr int STAGES = FLASH_BACKWARD_STAGES;
    // fetches what delta needs before the wait, where registers are left for it
    constexpr bool AHEAD = sizeof(operand) == 2;
    DYNAMIC_SHARED(operand, shared);
    operand* keys = shared;
    operand* values = keys + KEYS * STRIDE;
    operand* queries = values + KEYS * STRIDE;
    operand* douts = queries + STAGES * QUERIES * STRIDE;
    operand* dscores_tile = douts + STAGES * QUERIES * STRIDE;
    float* lses = reinterpret_cast<float*>(dscores_tile + KEYS * DSCORES_STRIDE);
    float* deltas = lses + STAGES * QUERIES;

    int part = blockIdx.x, parts = gridDim.x, head = blockIdx.y, row = blockIdx.z;
    int width = n_head * HEAD_SIZE, pitch = 3 * width;
    i64 first_token = (i64)row * cols, task = (i64)row * n_head + head;
    const operand* source = qkv + first_token * pitch + head * HEAD_SIZE;
    const operand* dout_source = dout + first_token * width + head * HEAD_SIZE;
    operand* target = dqkv + first_token * pitch + head * HEAD_SIZE;
    int query_tiles = ceil_div(cols, QUERIES), key_tiles = ceil_div(cols, KEYS);
    int warp = threadIdx.x / WARP, own = warp * ROWS * M;
    float* own_sums = sums + ((task * parts + part) * query_tiles * STRIPS + warp) * STRIP_ELEMENTS;
    // computed where they are used, for registers are short
    auto own_deltas = [&] { return kept_deltas + (task * parts + part) * cols; };
    auto own_columns = [&] { return columns + ((i64)row * parts + part) * pitch + head * HEAD_SIZE; };
    Position position;
    int round = 0;
    // of the strips of the queries' gradient that this warp adds to
    float column_sums[STRIPS_PER_WARP][4] = {};

    auto fetch_queries = [&](int tile) {
        if (tile < query_tiles) {
            int first = tile * QUERIES, stage = tile % STAGES * QUERIES;
            fetch<QUERIES, WARPS>(queries + stage * STRIDE, source + (i64)first * pitch, pitch, cols - first);
            fetch<QUERIES, WARPS>(douts + stage * STRIDE, dout_source + (i64)first * width, width, cols - first);
            // queries that do not exist are zeros, so they add zeros
            int i = thread_read_again();
            if (i < QUERIES) {
                i64 from = task * cols + min(first + i, cols - 1);
                copy_async_word(lses + stage + i, lse + from, first + i < cols);
                if (round > 0) {
                    copy_async_word(deltas + stage + i, own_deltas() + min(first + i, cols - 1), first + i < cols);
                }
            }
        }
        copy_async_commit();
    };

    for (;; round++) {
        int key_tile = round * parts + (round % 2 ? parts - 1 - part : part);
        if (key_tile >= key_tiles) break;
        int first_key = key_tile * KEYS, first_own = first_key + own;
        // every warp is done with the previous keys
        if (round > 0) __syncthreads();
        const operand* key_source = source + (i64)first_key * pitch + width;
        fetch<KEYS, WARPS>(keys, key_source, pitch, cols - first_key);
        fetch<KEYS, WARPS>(values, key_source + width, pitch, cols - first_key);
        // earlier queries see none of these keys
        int first_tile = first_key / QUERIES;
        fetch_queries(first_tile);

        Accumulator<M, WIDTH> dkeys, dvalues;
        dkeys.clear();
        dvalues.clear();
        for (int tile = first_tile; tile < query_tiles; tile++) {
            int first_query = tile * QUERIES, stage = tile % STAGES * QUERIES;
            const operand* out_source = out + (first_token + first_query) * width + head * HEAD_SIZE;
            Outputs outputs;
            if (AHEAD && round == 0) outputs.fetch(out_source, width, cols - first_query);
            copy_async_wait<0>();
            __syncthreads();
            if (STAGES == 2) fetch_queries(tile + 1);
            if (round == 0) {
                if (!AHEAD) outputs.fetch(out_source, width, cols - first_query);
                float delta = outputs.times(douts + stage * STRIDE, out_source, width, cols - first_query);
                int thread = thread_read_again(), query = thread / Outputs::LANES;
                if (thread % Outputs::LANES == 0) {
                    deltas[stage + query] = delta;
                    if (first_query + query < cols) own_deltas()[first_query + query] = delta;
                }
                __syncthreads();
            }
            // the keys from here on come after all of these queries
            int visible = min(KEYS, first_query + QUERIES - first_key);
            if (own < visible) {
                // transposed: one row for each key
                Accumulator<M, QUERIES> scores;
                scores.clear();
                add_product_transposed(scores, keys + own * STRIDE, queries + stage * STRIDE);
                hide_later_keys<true>(scores, first_own, first_query);
#pragma unroll
                for (int n = 0; n < scores.COLUMNS; n++) {
                    float2 of_query = *reinterpret_cast<const float2*>(lses + stage + n * 8 + position.column);
#pragma unroll
                    for (int m = 0; m < M; m++) {
#pragma unroll
                        for (int e = 0; e < 4; e++) {
                            float& score = scores.at[m][n][e];
                            score = exp2_fast(score * (scale * LOG2_E) - (e % 2 ? of_query.y : of_query.x));
                        }
                    }
                }
                Draws draws{of_batch, site};
                if (draws.act()) {
                    // a probability that is left out is remembered by its sign
                    for_dropout<true>(scores, first_own, first_query, draws, row, head,
                                      [](float& p, float factor) { p = factor == 0.0f ? -p : p; });
                    add_kept(dvalues, scores, douts + stage * STRIDE, draws.scale());
                } else {
                    add_product(dvalues, scores, douts + stage * STRIDE);
                }
#pragma unroll
                for (int q = 0; q < QUERIES; q += SPAN) {
                    // the gradient of a score is its probability times (that of the probability - delta), before
                    // scaling, which the sums of these undergo at last
                    Accumulator<M, SPAN> dscores;
#pragma unroll
                    for (int n = 0; n < dscores.COLUMNS; n++) {
                        int query = stage + q + n * 8 + position.column;
                        float2 of_query = *reinterpret_cast<const float2*>(deltas + query);
#pragma unroll
                        for (int m = 0; m < M; m++) {
#pragma unroll
                            for (int e = 0; e < 4; e++) dscores.at[m][n][e] = e % 2 ? -of_query.y : -of_query.x;
                        }
                    }
                    if (draws.act()) dscores.clear();
                    add_product_transposed(dscores, values + own * STRIDE, douts + (stage + q) * STRIDE);
#pragma unroll
                    for (int n = 0; n < dscores.COLUMNS; n++) {
                        float2 of_query = make_float2(0.0f, 0.0f);
                        if (draws.act()) {
                            int query = stage + q + n * 8 + position.column;
                            of_query = *reinterpret_cast<const float2*>(deltas + query);
                        }
#pragma unroll
                        for (int m = 0; m < M; m++) {
#pragma unroll
                            for (int e = 0; e < 4; e++) {
                                float p = scores.at[m][q / 8 + n][e];
                                float& ds = dscores.at[m][n][e];
                                if (draws.act()) {
                                    float through = is_left_out(p) ? 0.0f : ds * draws.scale();
                                    ds = through - (e % 2 ? of_query.y : of_query.x);
                                    p = fabsf(p);
                                }
                                ds *= p;
                            }
                        }
                    }
                    keep<DSCORES_STRIDE>(dscores_tile + own * DSCORES_STRIDE + q, dscores);
                    add_product(dkeys, dscores, queries + (stage + q) * STRIDE);
                }
            }
            // what earlier tiles of keys have added, on its way while the warp waits for the others
            float* kept = own_sums + (i64)tile * STRIPS * STRIP_ELEMENTS;
            StripSum before[STRIPS_PER_WARP];
#pragma unroll
            for (int i = 0; i < STRIPS_PER_WARP; i++) {
                before[i].clear();
                if (round > 0 && warp + i * WARPS < STRIPS) load_strip(before[i], kept + i * WARPS * STRIP_ELEMENTS);
            }
            __syncthreads();
            if (STAGES == 1) fetch_queries(tile + 1);
            bool last = parts == 1 && first_query + QUERIES <= first_key + KEYS;
#pragma unroll
            for (int i = 0; i < STRIPS_PER_WARP; i++) {
                int strip = warp + i * WARPS;
                if (strip >= STRIPS) break;
                StripSum sum;
                sum.clear();
                const operand* right = keys + strip * STRIP;
                if (visible == KEYS) {
                    add_product_of_columns<KEYS, DSCORES_STRIDE>(sum, dscores_tile, right);
                } else {
                    for (int k = 0; k < visible; k += ROWS) {
                        add_product_of_columns<ROWS, DSCORES_STRIDE>(sum, dscores_tile + k * DSCORES_STRIDE,
                                                                     right + k * STRIDE);
                    }
                }
#pragma unroll
                for (int e = 0; e < 4; e++) {
#pragma unroll
                    for (int m = 0; m < QUERIES / ROWS; m++) {
                        column_sums[i][e] += sum.at[m][e / 2][e % 2] + sum.at[m][e / 2][e % 2 + 2];
                    }
                }
                sum.add(before[i]);
                if (last) {
                    operand* to = target + (i64)first_query * pitch;
                    store_scaled(to, pitch, cols - first_query, strip * STRIP, sum, scale);
                } else {
                    store_strip(kept + i * WARPS * STRIP_ELEMENTS, sum);
                }
            }
        }
        operand* key_target = target + (i64)first_own * pitch + width;
        // all warps are done with the last queries: the sums of their columns take this place
        float* of_warps = reinterpret_cast<float*>(queries);
        static_assert(WARPS * 2 * WIDTH * sizeof(float) <= STAGES * 2 * QUERIES * STRIDE * sizeof(operand), "no room");
        // one after the other, for registers are short
        store_scaled(key_target, pitch, cols - first_own, 0, dkeys, scale);
        sum_columns(of_warps + warp * 2 * WIDTH, dkeys, scale);
        store_scaled(key_target + width, pitch, cols - first_own, 0, dvalues, 1.0f);
        sum_columns(of_warps + warp * 2 * WIDTH + WIDTH, dvalues, 1.0f);
        __syncthreads();
        for (int i = threadIdx.x; i < 2 * WIDTH; i += WARPS * WARP) {
            float sum = 0.0f;
#pragma unroll
            for (int other = 0; other < WARPS; other++) sum += of_warps[other * 2 * WIDTH + i];
            float* to = own_columns() + (1 + i / WIDTH) * width + i % WIDTH;
            if (i % WIDTH < HEAD_SIZE) *to = round > 0 ? *to + sum : sum;
        }
    }
#pragma unroll
    for (int i = 0; i < STRIPS_PER_WARP; i++) {
#pragma unroll
        for (int e = 0; e < 4; e++) {
            float sum = sum_of_rows(column_sums[i][e]) * scale;
            int column = (warp + i * WARPS) * STRIP + e / 2 * 8 + position.column + e % 2;
            if (position.row == 0 && column < HEAD_SIZE) own_columns()[column] = sum;
        }
    }
}

// Writes the columns of dqkv for queries: the sums of all parts. Grid: tiles of queries, heads, rows.
extern "C" __global__ void __launch_bounds__(FLASH_BACKWARD_WARPS * WARP, 1)
flash_backward_sum(const float* __restrict__ sums, operand* __restrict__ dqkv, int cols, int n_head, int parts,
                   float scale) {
    using namespace flash;
    constexpr int QUERIES = BACKWARD_QUERIES;
    int tile = blockIdx.x, tiles = gridDim.x, head = blockIdx.y, row = blockIdx.z;
    int pitch = 3 * n_head * HEAD_SIZE, first_query = tile * QUERIES;
    // a part begins at the tile of keys with its number: later parts have not seen these queries
    int seen = min(parts, first_query / BACKWARD_KEYS + 1);
    const float* first = sums + (((i64)row * n_head + head) * parts * tiles + tile) * STRIPS * STRIP_ELEMENTS;
    for (int strip = threadIdx.x / WARP; strip < STRIPS; strip += BACKWARD_WARPS) {
        StripSum sum;
        sum.clear();
        for (int part = 0; part < seen; part++) {
            StripSum more;
            load_strip(more, first + ((i64)part * tiles * STRIPS + strip) * STRIP_ELEMENTS);
            sum.add(more);
        }
        operand* target = dqkv + ((i64)row * cols + first_query) * pitch + head * HEAD_SIZE;
        store_scaled(target, pitch, cols - first_query, strip * STRIP, sum, scale);
    }
}
