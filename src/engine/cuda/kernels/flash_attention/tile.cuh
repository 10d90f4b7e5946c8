// The building blocks of flash attention: tiles of queries, keys and values in shared memory, and a warp's
// products of them, in each precision.
//
// Each warp of a block owns 16 or 32 rows of the block's resident tile and holds its share of a result as
// accumulators of 16 x 8 elements, in the layout of tensor cores (tensor_core.cuh). A product's left factor is
// rows or columns of a tile, or another accumulator, so probabilities never leave the registers. In fp32,
// ordinary multiply-adds use the same layout, so each kernel is written once.
//
// The sizes of tiles are macros, FLASH_*, which geometry.rs chooses.
#ifndef FLASH_ATTENTION_TILE_CUH
#define FLASH_ATTENTION_TILE_CUH

#include "common.cuh"
#include "dropout/draws.cuh"
#include "tensor_core.cuh"

static_assert(1 <= HEAD_SIZE && HEAD_SIZE <= 128, "the width of a head is 1 to 128");

namespace flash {

// Rows of one accumulator; also the most keys that one product of fragments sums over.
constexpr int ROWS = 16;
// Columns of a head in shared memory: a multiple of 16, where those beyond HEAD_SIZE are zeros.
constexpr int WIDTH = ceil_div(HEAD_SIZE, 16) * 16;
// Elements that are copied at once, 16 bytes.
constexpr int CHUNK = 16 / sizeof(operand);
// Elements from one row of a tile to the next: one chunk more than the width, so that eight rows are in
// different banks.
constexpr int STRIDE = WIDTH + CHUNK;

constexpr float LOG2_E = 1.4426950408889634f;

// A thread's share of a matrix [16 M, N].
template <int M, int N>
struct Accumulator {
    static_assert(N % 8 == 0, "accumulators are 8 columns wide");
    static constexpr int COLUMNS = N / 8;
    float at[M][COLUMNS][4];

    __device__ __forceinline__ void clear() {
#pragma unroll
        for (int m = 0; m < M; m++) {
#pragma unroll
            for (int n = 0; n < COLUMNS; n++) {
#pragma unroll
                for (int e = 0; e < 4; e++) at[m][n][e] = 0.0f;
            }
        }
    }

    __device__ __forceinline__ void add(const Accumulator& other) {
#pragma unroll
        for (int m = 0; m < M; m++) {
#pragma unroll
            for (int n = 0; n < COLUMNS; n++) {
#pragma unroll
                for (int e = 0; e < 4; e++) at[m][n][e] += other.at[m][n][e];
            }
        }
    }
};

// The position of a thread's elements in an accumulator: `row` for elements 0 and 1, `row + 8` for 2 and 3;
// `column` for 0 and 2, the next column for 1 and 3.
struct Position {
    int row, column;

    __device__ __forceinline__ Position() {
        int lane = threadIdx.x % WARP;
        row = lane / 4;
        column = lane % 4 * 2;
    }
};

// Sets the scores of keys that come after their query to minus infinity. Rows are queries and columns are
// keys, or the reverse if TRANSPOSED. The accumulator begins at `first_row` and `first_column`.
template <bool TRANSPOSED, int M, int N>
__device__ __forceinline__ void hide_later_keys(Accumulator<M, N>& scores, int first_row, int first_column) {
    // in most tiles every query sees every key
    bool any = TRANSPOSED ? first_row + M * ROWS - 1 > first_column : first_column + N - 1 > first_row;
    if (!any) return;
    Position position;
#pragma unroll
    for (int m = 0; m < M; m++) {
#pragma unroll
        for (int n = 0; n < scores.COLUMNS; n++) {
#pragma unroll
            for (int e = 0; e < 4; e++) {
                int row = first_row + m * ROWS + e / 2 * 8 + position.row;
                int column = first_column + n * 8 + e % 2 + position.column;
                if (TRANSPOSED ? row > column : column > row) scores.at[m][n][e] = -INFINITY;
            }
        }
    }
}

// Calls `change(number, factor)` for all probabilities of an accumulator, with the factor of each (dropout). Rows are
// queries and columns are keys, or the reverse if TRANSPOSED. The accumulator begins at `first_row` and `first_column`,
// multiples of 16, and is a multiple of 16 columns wide: a thread holds both rows and both columns that differ in the
// bit of 8, which share a draw.
template <bool TRANSPOSED, int M, int N, class Change>
__device__ __forceinline__ void for_dropout(Accumulator<M, N>& p, int first_row, int first_column, const Draws& draws,
                                            int row, int head, Change change) {
    static_assert(N % 16 == 0, "whole draws");
    Position position;
#pragma unroll
    for (int m = 0; m < M; m++) {
#pragma unroll
        for (int n = 0; n < p.COLUMNS; n += 2) {
#pragma unroll
            for (int e = 0; e < 2; e++) {
                int at_row = first_row + m * ROWS + position.row;
                int at_column = first_column + n * 8 + e + position.column;
                float factors[4];
                if (TRANSPOSED) {
                    draws.of_probabilities(factors, at_column, at_row, row, head);
                } else {
                    draws.of_probabilities(factors, at_row, at_column, row, head);
                }
                change(p.at[m][n][e], factors[0]);
                change(p.at[m][n + 1][e], factors[TRANSPOSED ? 2 : 1]);
                change(p.at[m][n][e + 2], factors[TRANSPOSED ? 1 : 2]);
                change(p.at[m][n + 1][e + 2], factors[3]);
            }
        }
    }
}

// Fetches COUNT rows of a head into a tile with all threads of WARPS warps; rows from `present` on become zeros.
// `source` is the address of row 0 in global memory, `pitch` the number of elements from row to row.
// Asynchronous if rows consist of whole chunks.
template <int COUNT, int WARPS>
__device__ __forceinline__ void fetch(operand* tile, const operand* source, int pitch, int present) {
    constexpr int PER_ROW = WIDTH / CHUNK, THREADS = WARPS * WARP;
    int thread = thread_read_again();
#pragma unroll
    for (int i = 0; i < ceil_div(COUNT * PER_ROW, THREADS); i++) {
        int chunk = thread + i * THREADS;
        if (COUNT * PER_ROW % THREADS != 0 && chunk >= COUNT * PER_ROW) break;
        int row = chunk / PER_ROW, column = chunk % PER_ROW * CHUNK;
        operand* to = tile + row * STRIDE + column;
        const operand* from = source + (row * pitch + column);
        if constexpr (HEAD_SIZE % CHUNK == 0) {
            bool whole = row < present && column < HEAD_SIZE;
            copy_async(to, whole ? from : source, whole);
        } else {
#pragma unroll
            for (int e = 0; e < CHUNK; e++) {
                to[e] = row < present && column + e < HEAD_SIZE ? from[e] : to_operand(0.0f);
            }
        }
    }
}

// Exchanges numbers between lanes whose numbers differ in the bit `distance`: the lane without the bit keeps
// `low` and receives the other lane's `low` as `high`; the lane with it keeps `high` and receives `high` as `low`.
template <class T>
__device__ __forceinline__ void swap_halves(T& low, T& high, int distance) {
    bool upper = threadIdx.x & distance;
    T received = __shfl_xor_sync(ALL_LANES, upper ? low : high, distance);
    if (upper) {
        low = received;
    } else {
        high = received;
    }
}

// Writes 16 bytes. If STREAMING, they leave the cache before others.
template <bool STREAMING>
__device__ __forceinline__ void store_chunk(operand* to, u32 x, u32 y, u32 z, u32 w) {
    uint4* at = reinterpret_cast<uint4*>(to);
    if (STREAMING) {
        __stcs(at, make_uint4(x, y, z, w));
    } else {
        *at = make_uint4(x, y, z, w);
    }
}

// Writes the first `present` rows of an accumulator to rows of a head in global memory, from column
// `first_column` on, each multiplied by its factor. The lanes that share a row exchange their elements, so that
// each writes 16 bytes, where rows consist of whole chunks.
template <bool STREAMING, int M, int N>
__device__ __forceinline__ void store(operand* target, int pitch, int present, int first_column,
                                      const Accumulator<M, N>& values, const float (&factors)[M][2]) {
    Position position;
    int t = threadIdx.x % 4;
#pragma unroll
    for (int m = 0; m < M; m++) {
#pragma unroll
        for (int n = 0; n < values.COLUMNS; n += 2) {
            int row = m * ROWS + position.row, column = first_column + n * 8;
            float x[2][4];
#pragma unroll
            for (int e = 0; e < 8; e++) x[e / 4][e % 4] = values.at[m][n + e / 4][e % 4] * factors[m][e % 4 / 2];
            if constexpr (HEAD_SIZE % CHUNK != 0) {
#pragma unroll
                for (int e = 0; e < 8; e++) {
                    int i = row + e % 4 / 2 * 8, j = column + e / 4 * 8 + position.column + e % 2;
                    if (i < present && j < HEAD_SIZE) target[(i64)i * pitch + j] = to_operand(x[e / 4][e % 4]);
                }
                continue;
            }
#ifdef OPERAND_16_BIT
            // piece i: the chunk of row + i / 2 * 8 in columns of 8 (i % 2); lane t receives piece t
            u32 piece[4];
#pragma unroll
            for (int i = 0; i < 4; i++) piece[i] = pack(x[i % 2][i / 2 * 2], x[i % 2][i / 2 * 2 + 1]);
            swap_halves(piece[0], piece[2], 2);
            swap_halves(piece[1], piece[3], 2);
            swap_halves(piece[0], piece[1], 1);
            swap_halves(piece[2], piece[3], 1);
            row += t / 2 * 8;
            column += t % 2 * 8;
            if (row < present && column < HEAD_SIZE) {
                operand* to = target + (i64)row * pitch + column;
                store_chunk<STREAMING>(to, piece[0], piece[1], piece[2], piece[3]);
            }
#else
            // two lanes share a chunk of row and one of row + 8; the odd lane receives the latter
            row += t % 2 * 8;
#pragma unroll
            for (int half = 0; half < 2; half++) {
                float(&piece)[4] = x[half];
                swap_halves(piece[0], piece[2], 1);
                swap_halves(piece[1], piece[3], 1);
                int at = column + half * 8 + t / 2 * 4;
                if (row < present && at < HEAD_SIZE) {
                    u32 bits[4];
#pragma unroll
                    for (int i = 0; i < 4; i++) bits[i] = __float_as_uint(to_operand(piece[i]));
                    operand* to = target + (i64)row * pitch + at;
                    store_chunk<STREAMING>(to, bits[0], bits[1], bits[2], bits[3]);
                }
            }
#endif
        }
    }
}

// Rounds an accumulator [16 M, N] to operands and writes it to rows of a tile in shared memory that are
// `STRIDE_OF_TILE` elements apart.
template <int STRIDE_OF_TILE, int M, int N>
__device__ __forceinline__ void keep(operand* tile, const Accumulator<M, N>& values) {
    Position position;
    operand* to = tile + position.row * STRIDE_OF_TILE + position.column;
#pragma unroll
    for (int m = 0; m < M; m++) {
#pragma unroll
        for (int n = 0; n < values.COLUMNS; n++) {
#pragma unroll
            for (int half = 0; half < 2; half++) {
                float low = values.at[m][n][2 * half], high = values.at[m][n][2 * half + 1];
                operand* at = to + (m * ROWS + half * 8) * STRIDE_OF_TILE + n * 8;
#ifdef OPERAND_16_BIT
                *reinterpret_cast<u32*>(at) = pack(low, high);
#else
                *reinterpret_cast<float2*>(at) = make_float2(to_operand(low), to_operand(high));
#endif
            }
        }
    }
}

#if defined(OPERAND_16_BIT)

// sum[16 M, N] += left[16 M, WIDTH] right[N, WIDTH]^T, where both factors are rows of tiles.
template <int M, int N>
__device__ __forceinline__ void add_product_transposed(Accumulator<M, N>& sum, const operand* left,
                                                       const operand* right) {
    int lane = threadIdx.x % WARP;
    const operand* left_row = left + lane % 16 * STRIDE + lane / 16 * 8;
    const operand* right_row = right + (lane % 8 + lane / 16 * 8) * STRIDE + lane / 8 % 2 * 8;
#pragma unroll
    for (int k = 0; k < WIDTH; k += 16) {
        u32 a[M][4];
#pragma unroll
        for (int m = 0; m < M; m++) load_matrices(a[m], left_row + m * ROWS * STRIDE + k);
#pragma unroll
        for (int n = 0; n < N; n += 16) {
            u32 b[4];
            load_matrices(b, right_row + n * STRIDE + k);
#pragma unroll
            for (int m = 0; m < M; m++) {
                multiply_add(sum.at[m][n / 8], a[m], b[0], b[1]);
                multiply_add(sum.at[m][n / 8 + 1], a[m], b[2], b[3]);
            }
        }
    }
}

// sum[16 M, WIDTH] += left[16 M, K] right[K, WIDTH]: a rounded accumulator times rows of a tile.
template <int M, int K>
__device__ __forceinline__ void add_product(Accumulator<M, WIDTH>& sum, const Accumulator<M, K>& left,
                                            const operand* right) {
    int lane = threadIdx.x % WARP;
    const operand* right_row = right + lane % 16 * STRIDE + lane / 16 * 8;
#pragma unroll
    for (int k = 0; k < K; k += 16) {
        u32 a[M][4];
#pragma unroll
        for (int m = 0; m < M; m++) {
            // two neighbouring accumulators are a left fragment
            const float(&first)[4] = left.at[m][k / 8];
            const float(&second)[4] = left.at[m][k / 8 + 1];
            a[m][0] = pack(first[0], first[1]);
            a[m][1] = pack(first[2], first[3]);
            a[m][2] = pack(second[0], second[1]);
            a[m][3] = pack(second[2], second[3]);
        }
#pragma unroll
        for (int n = 0; n < WIDTH; n += 16) {
            u32 b[4];
            load_matrices_transposed(b, right_row + k * STRIDE + n);
#pragma unroll
            for (int m = 0; m < M; m++) {
                multiply_add(sum.at[m][n / 8], a[m], b[0], b[1]);
                multiply_add(sum.at[m][n / 8 + 1], a[m], b[2], b[3]);
            }
        }
    }
}

// sum[16 M, N] += left[K, 16 M]^T right[K, N]: columns of a tile whose rows are LEFT_STRIDE elements apart, times
// columns of a tile.
template <int K, int LEFT_STRIDE, int M, int N>
__device__ __forceinline__ void add_product_of_columns(Accumulator<M, N>& sum, const operand* left,
                                                       const operand* right) {
    int lane = threadIdx.x % WARP;
    const operand* left_row = left + (lane % 8 + lane / 16 * 8) * LEFT_STRIDE + lane / 8 % 2 * 8;
    const operand* right_row = right + lane % 16 * STRIDE + lane / 16 * 8;
#pragma unroll
    for (int k = 0; k < K; k += 16) {
        u32 a[M][4];
#pragma unroll
        for (int m = 0; m < M; m++) load_matrices_transposed(a[m], left_row + k * LEFT_STRIDE + m * ROWS);
#pragma unroll
        for (int n = 0; n < N; n += 16) {
            u32 b[4];
            load_matrices_transposed(b, right_row + k * STRIDE + n);
#pragma unroll
            for (int m = 0; m < M; m++) {
                multiply_add(sum.at[m][n / 8], a[m], b[0], b[1]);
                multiply_add(sum.at[m][n / 8 + 1], a[m], b[2], b[3]);
            }
        }
    }
}

#elif defined(OPERAND_TF32)

template <int M, int N>
__device__ __forceinline__ void add_product_transposed(Accumulator<M, N>& sum, const operand* left,
                                                       const operand* right) {
    int lane = threadIdx.x % WARP;
    const operand* left_row = left + lane / 4 * STRIDE + lane % 4;
    const operand* right_row = right + lane / 4 * STRIDE + lane % 4;
#pragma unroll
    for (int k = 0; k < WIDTH; k += 8) {
        float a[M][4];
#pragma unroll
        for (int m = 0; m < M; m++) {
#pragma unroll
            for (int i = 0; i < 4; i++) {
                a[m][i] = to_operand(left_row[(m * ROWS + i % 2 * 8) * STRIDE + k + i / 2 * 4]);
            }
        }
#pragma unroll
        for (int n = 0; n < N; n += 8) {
            float b0 = to_operand(right_row[n * STRIDE + k]), b1 = to_operand(right_row[n * STRIDE + k + 4]);
#pragma unroll
            for (int m = 0; m < M; m++) multiply_add(sum.at[m][n / 8], a[m], b0, b1);
        }
    }
}

// An accumulator holds columns 2t and 2t + 1 where a left fragment needs t and t + 4. The order of a sum does
// not matter here, so the right factor's rows are taken in the accumulator's order.
template <int M, int K>
__device__ __forceinline__ void add_product(Accumulator<M, WIDTH>& sum, const Accumulator<M, K>& left,
                                            const operand* right) {
    int lane = threadIdx.x % WARP;
    const operand* right_row = right + lane % 4 * 2 * STRIDE + lane / 4;
#pragma unroll
    for (int k = 0; k < K; k += 8) {
        float a[M][4];
#pragma unroll
        for (int m = 0; m < M; m++) {
            const float(&from)[4] = left.at[m][k / 8];
            a[m][0] = to_operand(from[0]);
            a[m][1] = to_operand(from[2]);
            a[m][2] = to_operand(from[1]);
            a[m][3] = to_operand(from[3]);
        }
#pragma unroll
        for (int n = 0; n < WIDTH; n += 8) {
            float b0 = to_operand(right_row[k * STRIDE + n]), b1 = to_operand(right_row[(k + 1) * STRIDE + n]);
#pragma unroll
            for (int m = 0; m < M; m++) multiply_add(sum.at[m][n / 8], a[m], b0, b1);
        }
    }
}

// The left tile holds operands that are rounded already. The sum's order does not matter, so rows 2t and 2t + 1
// are taken together, which are in different banks.
template <int K, int LEFT_STRIDE, int M, int N>
__device__ __forceinline__ void add_product_of_columns(Accumulator<M, N>& sum, const operand* left,
                                                       const operand* right) {
    int lane = threadIdx.x % WARP;
    const operand* left_row = left + lane % 4 * 2 * LEFT_STRIDE + lane / 4;
    const operand* right_row = right + lane % 4 * 2 * STRIDE + lane / 4;
#pragma unroll
    for (int k = 0; k < K; k += 8) {
        float a[M][4];
#pragma unroll
        for (int m = 0; m < M; m++) {
#pragma unroll
            for (int i = 0; i < 4; i++) a[m][i] = left_row[(k + i / 2) * LEFT_STRIDE + m * ROWS + i % 2 * 8];
        }
#pragma unroll
        for (int n = 0; n < N; n += 8) {
            float b0 = to_operand(right_row[k * STRIDE + n]), b1 = to_operand(right_row[(k + 1) * STRIDE + n]);
#pragma unroll
            for (int m = 0; m < M; m++) multiply_add(sum.at[m][n / 8], a[m], b0, b1);
        }
    }
}

#else

template <int M, int N>
__device__ __forceinline__ void add_product_transposed(Accumulator<M, N>& sum, const operand* left,
                                                       const operand* right) {
    Position position;
    const operand* left_row = left + position.row * STRIDE;
    const operand* right_row = right + position.column * STRIDE;
    for (int k = 0; k < WIDTH; k += 4) {
        float4 a[M][2];
#pragma unroll
        for (int m = 0; m < M; m++) {
#pragma unroll
            for (int half = 0; half < 2; half++) {
                a[m][half] = *reinterpret_cast<const float4*>(left_row + (m * ROWS + half * 8) * STRIDE + k);
            }
        }
#pragma unroll
        for (int n = 0; n < N; n += 8) {
#pragma unroll
            for (int second = 0; second < 2; second++) {
                float4 b = *reinterpret_cast<const float4*>(right_row + (n + second) * STRIDE + k);
#pragma unroll
                for (int m = 0; m < M; m++) {
#pragma unroll
                    for (int half = 0; half < 2; half++) {
                        float& x = sum.at[m][n / 8][2 * half + second];
                        x += a[m][half].x * b.x;
                        x += a[m][half].y * b.y;
                        x += a[m][half].z * b.z;
                        x += a[m][half].w * b.w;
                    }
                }
            }
        }
    }
}

// Each element of the left factor is in one lane of the four that share its row.
template <int M, int K>
__device__ __forceinline__ void add_product(Accumulator<M, WIDTH>& sum, const Accumulator<M, K>& left,
                                            const operand* right) {
    Position position;
    int first_of_row = threadIdx.x % WARP / 4 * 4;
#pragma unroll
    for (int k = 0; k < K; k++) {
        float a[M][2];
#pragma unroll
        for (int m = 0; m < M; m++) {
#pragma unroll
            for (int half = 0; half < 2; half++) {
                float held = left.at[m][k / 8][2 * half + k % 2];
                a[m][half] = __shfl_sync(ALL_LANES, held, first_of_row + k % 8 / 2);
            }
        }
#pragma unroll
        for (int n = 0; n < WIDTH; n += 8) {
            float2 b = *reinterpret_cast<const float2*>(right + k * STRIDE + n + position.column);
#pragma unroll
            for (int m = 0; m < M; m++) {
#pragma unroll
                for (int half = 0; half < 2; half++) {
                    sum.at[m][n / 8][2 * half] += a[m][half] * b.x;
                    sum.at[m][n / 8][2 * half + 1] += a[m][half] * b.y;
                }
            }
        }
    }
}

template <int K, int LEFT_STRIDE, int M, int N>
__device__ __forceinline__ void add_product_of_columns(Accumulator<M, N>& sum, const operand* left,
                                                       const operand* right) {
    Position position;
    const operand* left_row = left + position.row;
    const operand* right_row = right + position.column;
#pragma unroll 4
    for (int k = 0; k < K; k++) {
        float a[M][2];
#pragma unroll
        for (int m = 0; m < M; m++) {
#pragma unroll
            for (int half = 0; half < 2; half++) a[m][half] = left_row[k * LEFT_STRIDE + m * ROWS + half * 8];
        }
#pragma unroll
        for (int n = 0; n < N; n += 8) {
            float2 b = *reinterpret_cast<const float2*>(right_row + k * STRIDE + n);
#pragma unroll
            for (int m = 0; m < M; m++) {
#pragma unroll
                for (int half = 0; half < 2; half++) {
                    sum.at[m][n / 8][2 * half] += a[m][half] * b.x;
                    sum.at[m][n / 8][2 * half + 1] += a[m][half] * b.y;
                }
            }
        }
    }
}

#endif

}  // namespace flash

#endif
