// LayerNorm (Ba et al., 2016; eps 1e-5) with the residual sum before it. Each thread of a block has four neighbouring
// columns, and a few rows of them in registers at a time, so that each row is read once. The residual stream is of
// type R.
//
// The stream may be stored without the biases of the projections that were added to it, so that a matrix product alone
// can add to it. `lacks` is then their sum, which is added where the stream is read; otherwise it is null.
#ifndef LAYERNORM_CUH
#define LAYERNORM_CUH

#include "dropout/draws.cuh"
#include "numbers.cuh"

constexpr int NORM_WARPS = NORM_THREADS / WARP;
// Rows at a time in the backward pass: the numbers of two do not fit into the registers of so many threads.
constexpr int BACKWARD_ROWS = 1;
constexpr float NORM_EPS = 1e-5f;

// The number as a tensor of the type of `place` holds it.
__device__ __forceinline__ float as_in(const float* place, float x) { return x; }
#ifdef OPERAND_16_BIT
__device__ __forceinline__ float as_in(const operand* place, float x) { return as_stored(x); }
#endif

// Sums of COUNT numbers over a block, in a fixed order; every thread receives them. Between two uses of the same
// scratch there has to be a barrier.
template <int COUNT>
__device__ __forceinline__ void block_sums(Numbers<COUNT>& numbers, Numbers<COUNT>* scratch) {
    int lane = threadIdx.x % WARP, warp = threadIdx.x / WARP, warps = blockDim.x / WARP;
#pragma unroll
    for (int k = 0; k < COUNT; k++) numbers.x[k] = warp_sum(numbers.x[k]);
    if (lane == 0) scratch[warp] = numbers;
    __syncthreads();
    numbers = scratch[0];
    for (int other = 1; other < warps; other++) {
        Numbers<COUNT> more = scratch[other];
#pragma unroll
        for (int k = 0; k < COUNT; k++) numbers.x[k] += more.x[k];
    }
}

// out = (x - mean) * rstd * weight + bias, as operands.
__device__ __forceinline__ void store_normalized(operand* __restrict__ out, Quad x, float mean, float rstd,
                                                 const float* __restrict__ weight, const float* __restrict__ bias,
                                                 int i, int c) {
    Quad w = load<4>(weight, i, c), b = load<4>(bias, i, c);
#pragma unroll
    for (int j = 0; j < 4; j++) x.x[j] = (x.x[j] - mean) * rstd * w.x[j] + b.x[j];
    store_operands(out, i, c, x);
}

// Dropout at a site, for sequences of `cols` tokens.
struct Dropped {
    Draws draws;
    int cols;
};
#define NOTHING_DROPPED Dropped{{nullptr, -1}, 1}

// What these columns of the stream lack.
__device__ __forceinline__ Quad lacking(const float* __restrict__ lacks, int i, int c) {
    Quad none = {};
    return lacks && i < c ? load<4>(lacks, i, c) : none;
}

__device__ __forceinline__ void add(Quad& row, const Quad& more) {
#pragma unroll
    for (int j = 0; j < 4; j++) row.x[j] += more.x[j];
}

// Rows of the stream as they are stored.
template <class R>
struct Stored {
    const R* __restrict__ x;

    __device__ __forceinline__ Quad row(i64 row, int i, int c) const { return load<4, LATE>(x + row * c, i, c); }
};

// Rows of the stream before the first block: the sums of two embeddings.
struct Embedded {
    const int* __restrict__ tokens;
    const float* __restrict__ wte;
    const float* __restrict__ wpe;
    int cols;

    __device__ __forceinline__ Quad row(i64 row, int i, int c) const {
        Quad sum = load<4>(wte + (size_t)tokens[row] * c, i, c);
        add(sum, load<4>(wpe + row % cols * c, i, c));
        return sum;
    }
};

// What is added to the rows before they are normalized.
enum Added { NOTHING, EMBEDDING, PROJECTION };

// Statistics and output of ROWS rows from `first` on. Of a PROJECTION, total = x + drop(delta + delta_bias) comes
// first, and the rows are those of total; without a bias, total lacks it. Of an EMBEDDING, total = x.
template <Added ADDED, int ROWS, class R, class Source>
__device__ __forceinline__ void normalize_rows(i64 first, Source x, const operand* __restrict__ delta,
                                               const float* __restrict__ delta_bias, R* __restrict__ total,
                                               const float* __restrict__ lacks, const float* __restrict__ weight,
                                               const float* __restrict__ bias,
                                               float* __restrict__ stats, operand* __restrict__ out, int rows, int c,
                                               Dropped dropped) {
    __shared__ Numbers<ROWS> scratch[2][NORM_WARPS];
    int i = 4 * threadIdx.x;
    Quad values[ROWS], lacked = lacking(lacks, i, c);
    Numbers<ROWS> means = {}, squares = {};
#pragma unroll
    for (int r = 0; r < ROWS; r++) {
        i64 at = (first + r) * c;
        Quad value = {};
        if (first + r < rows && i < c) {
            value = x.row(first + r, i, c);
            if (ADDED == PROJECTION) {
                Quad d = load<4, LATE>(delta + at, i, c), b = {};
                if (delta_bias) b = load<4>(delta_bias, i, c);
                float factors[4] = {1.0f, 1.0f, 1.0f, 1.0f};
                if (dropped.draws.act()) dropped.draws.of_channels(factors, first + r, i, dropped.cols);
#pragma unroll
                for (int j = 0; j < 4; j++) {
                    float sum = d.x[j] + b.x[j];
                    if (DROPOUT) sum *= factors[j];
                    value.x[j] = as_in(total, value.x[j] + sum);
                }
            }
            if (ADDED == EMBEDDING) {
#pragma unroll
                for (int j = 0; j < 4; j++) value.x[j] = as_in(total, value.x[j]);
            }
            if (ADDED != NOTHING) store<LATE>(total + at, i, c, value);
            add(value, lacked);
        }
#pragma unroll
        for (int j = 0; j < 4; j++) means.x[r] += value.x[j];
        values[r] = value;
    }
    block_sums(means, scratch[0]);
#pragma unroll
    for (int r = 0; r < ROWS; r++) {
        means.x[r] /= c;
#pragma unroll
        for (int j = 0; j < 4; j++) {
            float off = i + j < c ? values[r].x[j] - means.x[r] : 0.0f;
            squares.x[r] += off * off;
        }
    }
    block_sums(squares, scratch[1]);
#pragma unroll
    for (int r = 0; r < ROWS; r++) {
        i64 row = first + r;
        if (row >= rows) continue;
        float mean = means.x[r], rstd = 1.0f / sqrtf(squares.x[r] / c + NORM_EPS);
        if (threadIdx.x == 0) {
            stats[2 * row] = mean;
            stats[2 * row + 1] = rstd;
        }
        if (i < c) store_normalized(out + row * c, values[r], mean, rstd, weight, bias, i, c);
    }
}

// The FORWARD_ROWS rows of a block: all at once, or half of them where numbers or sums take more registers. Between two
// uses of the same scratch is the barrier of the other one.
template <Added ADDED, class R, class Source>
__device__ __forceinline__ void normalize(Source x, const operand* __restrict__ delta,
                                          const float* __restrict__ delta_bias, R* __restrict__ total,
                                          const float* __restrict__ lacks, const float* __restrict__ weight,
                                          const float* __restrict__ bias, float* __restrict__ stats,
                                          operand* __restrict__ out, int rows, int c, Dropped dropped) {
    constexpr int ROWS = sizeof(operand) == 2 && ADDED == NOTHING ? FORWARD_ROWS : FORWARD_ROWS / 2;
    i64 first = (i64)blockIdx.x * FORWARD_ROWS;
#pragma unroll 1
    for (int part = 0; part < FORWARD_ROWS; part += ROWS) {
        normalize_rows<ADDED, ROWS>(first + part, x, delta, delta_bias, total, lacks, weight, bias, stats, out, rows,
                                       c, dropped);
    }
}

// The output of FORWARD_ROWS rows again, from stored statistics.
template <class R>
__device__ __forceinline__ void normalize_again(const R* __restrict__ x, const float* __restrict__ lacks,
                                                const float* __restrict__ weight, const float* __restrict__ bias,
                                                const float* __restrict__ stats, operand* __restrict__ out, int rows,
                                                int c) {
    int i = 4 * threadIdx.x;
    if (i >= c) return;
    Quad lacked = lacking(lacks, i, c);
#pragma unroll
    for (int r = 0; r < FORWARD_ROWS; r++) {
        i64 row = (i64)blockIdx.x * FORWARD_ROWS + r;
        if (row >= rows) continue;
        float mean = stats[2 * row], rstd = stats[2 * row + 1];
        Quad value = load<4, LATE>(x + row * c, i, c);
        add(value, lacked);
        store_normalized(out + row * c, value, mean, rstd, weight, bias, i, c);
    }
}

// Where the gradient of the embeddings is written, which that of the position embeddings is the sum of: rows then come
// by position, all sequences of one after the other, and a slice has all rows of its positions.
struct Positions {
    float* dwpe;
    int sequences;
    int cols;

    __device__ __forceinline__ i64 row(int turn) const {
        return dwpe ? (i64)(turn % sequences) * cols + turn / sequences : turn;
    }
};
#define NO_POSITIONS Positions{nullptr, 1, 1}

// With g = dout * weight and h = (x - mean) * rstd: dx (+)= rstd * (g - mean(g) - h * mean(g * h)), for the rows of a
// slice. `dx` points to numbers, or is Halves. If `low` is not null, drop(dx) is also stored there as an operand.
// Partial sums of columns over the slice: of dout * h to dweight[slice], of dout to dbias[slice], and of drop(dx) to
// dx_sums[slice] where that is not null; their rows are `stride` elements apart. Sums of dx over sequences are added to
// those of the positions.
template <class R, class Gradient>
__device__ __forceinline__ void normalize_backward(const operand* __restrict__ dout, const R* __restrict__ x,
                                                   const float* __restrict__ lacks, const float* __restrict__ weight,
                                                   const float* __restrict__ stats, Gradient dx, int accumulate,
                                                   operand* __restrict__ low, float* __restrict__ dweight,
                                                   float* __restrict__ dbias, float* __restrict__ dx_sums, int rows,
                                                   int c, int per_slice, int stride, Dropped dropped,
                                                   Positions positions) {
    constexpr int ROWS = BACKWARD_ROWS;
    __shared__ Numbers<2 * ROWS> scratch[2][NORM_WARPS];
    int begin = blockIdx.x * per_slice, end = min(begin + per_slice, rows), turn = 0, i = 4 * threadIdx.x;
    Quad w = {}, sum_gh = {}, sum_g = {}, sum_dx = {}, sum_at = {}, lacked = lacking(lacks, i, c);
    if (i < c) w = load<4>(weight, i, c);
    for (int first = begin; first < end; first += ROWS, turn ^= 1) {
        Quad g[ROWS], h[ROWS], old[ROWS];
        float rstd[ROWS];
        Numbers<2 * ROWS> sums = {};
#pragma unroll
        for (int r = 0; r < ROWS; r++) {
            g[r] = h[r] = old[r] = Quad{};
            rstd[r] = 0.0f;
            if (first + r >= end || i >= c) continue;
            i64 row = positions.row(first + r);
            g[r] = load<4, LATE>(dout + row * c, i, c);
            h[r] = load<4, LATE>(x + row * c, i, c);
            if (accumulate) old[r] = load<4>(dx + row * c, i, c);
            add(h[r], lacked);
            float mean = stats[2 * row];
            rstd[r] = stats[2 * row + 1];
#pragma unroll
            for (int j = 0; j < 4; j++) {
                h[r].x[j] = (h[r].x[j] - mean) * rstd[r];
                sum_gh.x[j] += g[r].x[j] * h[r].x[j];
                sum_g.x[j] += g[r].x[j];
                g[r].x[j] *= w.x[j];
                sums.x[2 * r] += g[r].x[j];
                sums.x[2 * r + 1] += g[r].x[j] * h[r].x[j];
            }
        }
        // of two turns, each has scratch of its own, so one barrier is between two uses of it
        block_sums(sums, scratch[turn]);
#pragma unroll
        for (int r = 0; r < ROWS; r++) {
            if (first + r >= end || i >= c) continue;
            i64 row = positions.row(first + r);
            float mean_g = sums.x[2 * r] / c, mean_gh = sums.x[2 * r + 1] / c;
#pragma unroll
            for (int j = 0; j < 4; j++) {
                old[r].x[j] += (g[r].x[j] - mean_g - h[r].x[j] * mean_gh) * rstd[r];
            }
            store(dx + row * c, i, c, old[r]);
            if (positions.dwpe) {
                add(sum_at, old[r]);
                if ((first + r + 1) % positions.sequences == 0) {
                    float* at = positions.dwpe + (i64)((first + r) / positions.sequences) * c;
                    add(sum_at, load<4>(at, i, c));
                    store(at, i, c, sum_at);
                    sum_at = Quad{};
                }
            }
            if (dropped.draws.act()) {
                float factors[4];
                dropped.draws.of_channels(factors, row, i, dropped.cols);
#pragma unroll
                for (int j = 0; j < 4; j++) old[r].x[j] *= factors[j];
            }
#pragma unroll
            for (int j = 0; j < 4; j++) sum_dx.x[j] += old[r].x[j];
            if (low) store_operands(low + row * c, i, c, old[r]);
        }
    }
    if (i >= c) return;
    i64 slice = (i64)blockIdx.x * stride;
    store(dweight + slice, i, c, sum_gh);
    store(dbias + slice, i, c, sum_g);
    if (dx_sums) store(dx_sums + slice, i, c, sum_dx);
}

#endif
