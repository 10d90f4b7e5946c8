// What generating text needs beside the kernels of a forward pass: the next token of each of some sequences, whose
// keys and values are kept.
#include "numbers.cuh"

// The residual stream is of type R.
template <class R>
__device__ __forceinline__ void embed_next_row(const int* __restrict__ tokens, const int* __restrict__ positions,
                                               const float* __restrict__ wte, const float* __restrict__ wpe,
                                               R* __restrict__ out, int c) {
    size_t row = blockIdx.x;
    const float* token = wte + (size_t)tokens[row] * c;
    const float* position = wpe + (size_t)positions[row] * c;
    for (int i = 4 * threadIdx.x; i < c; i += 4 * NEXT_THREADS) {
        Quad a = load<4>(token, i, c), b = load<4>(position, i, c);
#pragma unroll
        for (int j = 0; j < 4; j++) a.x[j] += b.x[j];
        store(out + row * c, i, c, a);
    }
}

// out[row] = wte[tokens[row]] + wpe[positions[row]]; one block for each row, `c` wide.
extern "C" __global__ void __launch_bounds__(NEXT_THREADS)
embed_next(const int* tokens, const int* positions, const float* wte, const float* wpe, float* out, int c) {
    embed_next_row(tokens, positions, wte, wpe, out, c);
}

// The same for a residual stream of operands.
extern "C" __global__ void __launch_bounds__(NEXT_THREADS)
embed_next_low(const int* tokens, const int* positions, const float* wte, const float* wpe, operand* out, int c) {
    embed_next_row(tokens, positions, wte, wpe, out, c);
}

// out[row] = from[numbers[row]]; one block for each row, `width` wide.
extern "C" __global__ void __launch_bounds__(NEXT_THREADS)
gather_rows(const int* numbers, const operand* from, operand* out, int width) {
    size_t row = blockIdx.x;
    const operand* source = from + (size_t)numbers[row] * width;
    for (int i = threadIdx.x; i < width; i += NEXT_THREADS) out[row * width + i] = source[i];
}

constexpr int NEXT_WARPS = NEXT_THREADS / WARP;
// Elements of a head that each lane has.
constexpr int NEXT_PARTS = (HEAD_SIZE + WARP - 1) / WARP;

// Attention of the token at positions[row] of sequence sequences[row] to itself and all before it. `qkv` has the new
// tokens' queries, keys and values, [rows, 3c]; `kept` those of every token, [sequences, block_size, 3c], to which keys
// and values are added. Block (row, head); its warps take keys in turn, each with a running maximum and sum.
extern "C" __global__ void __launch_bounds__(NEXT_THREADS)
attention_next(const int* sequences, const int* positions, const operand* qkv, operand* kept, operand* out,
               int block_size, int c, float scale) {
    __shared__ float highests[NEXT_WARPS], totals[NEXT_WARPS], parts[NEXT_WARPS][WARP];
    size_t row = blockIdx.x, width = 3 * (size_t)c;
    int lane = threadIdx.x % WARP, warp = threadIdx.x / WARP, seen = positions[row] + 1;
    const operand* own = qkv + row * width + blockIdx.y * HEAD_SIZE;
    operand* first = kept + sequences[row] * (block_size * width) + blockIdx.y * HEAD_SIZE;
    operand* last = first + (seen - 1) * width;
    for (int i = threadIdx.x; i < HEAD_SIZE; i += NEXT_THREADS) {
        last[c + i] = own[c + i];
        last[2 * c + i] = own[2 * c + i];
    }
    __syncthreads();
    float query[NEXT_PARTS], sums[NEXT_PARTS];
#pragma unroll
    for (int part = 0; part < NEXT_PARTS; part++) {
        int i = part * WARP + lane;
        query[part] = i < HEAD_SIZE ? to_float(own[i]) : 0.0f;
        sums[part] = 0.0f;
    }
    constexpr float LOG2_E = 1.44269504f;
    float highest = -INFINITY, total = 0.0f;
    for (int key = warp; key < seen; key += NEXT_WARPS) {
        const operand* keys = first + key * width + c;
        const operand* values = keys + c;
        float score = 0.0f;
#pragma unroll
        for (int part = 0; part < NEXT_PARTS; part++) {
            int i = part * WARP + lane;
            if (i < HEAD_SIZE) score += query[part] * to_float(keys[i]);
        }
        score = warp_sum(score) * (scale * LOG2_E);
        float higher = fmaxf(highest, score);
        float correction = exp2_fast(highest - higher), p = exp2_fast(score - higher);
        highest = higher;
        total = total * correction + p;
#pragma unroll
        for (int part = 0; part < NEXT_PARTS; part++) {
            int i = part * WARP + lane;
            if (i < HEAD_SIZE) sums[part] = sums[part] * correction + p * to_float(values[i]);
        }
    }
    if (lane == 0) {
        highests[warp] = highest;
        totals[warp] = total;
    }
    __syncthreads();
    // every warp has a key that is higher than nothing, or counts for nothing: the first one has key 0
    float top = highests[0], whole = 0.0f;
    for (int other = 1; other < NEXT_WARPS; other++) top = fmaxf(top, highests[other]);
    for (int other = 0; other < NEXT_WARPS; other++) whole += totals[other] * exp2_fast(highests[other] - top);
    float share = exp2_fast(highest - top) / whole;
#pragma unroll
    for (int part = 0; part < NEXT_PARTS; part++) {
        parts[warp][lane] = sums[part] * share;
        __syncthreads();
        int i = part * WARP + lane;
        if (warp == 0 && i < HEAD_SIZE) {
            float sum = 0.0f;
            for (int other = 0; other < NEXT_WARPS; other++) sum += parts[other][lane];
            out[row * c + blockIdx.y * HEAD_SIZE + i] = to_operand(sum);
        }
        __syncthreads();
    }
}
