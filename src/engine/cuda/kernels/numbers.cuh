// Access to N neighbouring numbers of a row at a time, which uses the full memory bandwidth.
//
// A row whose width is a multiple of N is aligned and accessed in vectors of 16 bytes; other rows are accessed number
// by number. Beyond the end of a row, reading gives zeros and writing does nothing.
#ifndef NUMBERS_CUH
#define NUMBERS_CUH

#include "common.cuh"

template <int N>
struct __align__(16) Numbers {
    float x[N];
};

// Four numbers: 16 bytes of fp32, and 8 of a 16-bit format, so that rows of both have one arrangement.
typedef Numbers<4> Quad;

// Operands in 16 bytes, for kernels that work on nothing else.
constexpr int PACK = 16 / sizeof(operand);
typedef Numbers<PACK> Pack;

// Whether memory is used again soon. What is not leaves the cache first, for such tensors are larger than it.
enum Use { SOON, LATE };

template <Use USE, class Word>
__device__ __forceinline__ Word load_word(const void* at) {
    const Word* word = reinterpret_cast<const Word*>(at);
    return USE == LATE ? __ldcs(word) : *word;
}

template <Use USE, class Word>
__device__ __forceinline__ void store_word(void* at, const Word& value) {
    Word* word = reinterpret_cast<Word*>(at);
    if (USE == LATE) {
        __stcs(word, value);
    } else {
        *word = value;
    }
}

template <int N, Use USE = SOON>
__device__ __forceinline__ Numbers<N> load(const float* row, int i, int width) {
    static_assert(N % 4 == 0, "whole vectors");
    Numbers<N> numbers;
    if (width % N == 0) {
#pragma unroll
        for (int j = 0; j < N; j += 4) {
            float4 four = load_word<USE, float4>(row + i + j);
            numbers.x[j] = four.x;
            numbers.x[j + 1] = four.y;
            numbers.x[j + 2] = four.z;
            numbers.x[j + 3] = four.w;
        }
    } else {
#pragma unroll
        for (int j = 0; j < N; j++) numbers.x[j] = i + j < width ? row[i + j] : 0.0f;
    }
    return numbers;
}

template <Use USE = SOON, int N>
__device__ __forceinline__ void store(float* row, int i, int width, const Numbers<N>& numbers) {
    const float* x = numbers.x;
    if (width % N == 0) {
#pragma unroll
        for (int j = 0; j < N; j += 4) {
            store_word<USE>(row + i + j, make_float4(x[j], x[j + 1], x[j + 2], x[j + 3]));
        }
    } else {
#pragma unroll
        for (int j = 0; j < N; j++) {
            if (i + j < width) row[i + j] = x[j];
        }
    }
}

#ifdef OPERAND_16_BIT
__device__ __forceinline__ void unpack(u32 word, float* x) {
    x[0] = to_float(operand{(u16)(word & 0xffff)});
    x[1] = to_float(operand{(u16)(word >> 16)});
}

template <int N, Use USE = SOON>
__device__ __forceinline__ Numbers<N> load(const operand* row, int i, int width) {
    static_assert(N == 4 || N == 8, "8 or 16 bytes");
    Numbers<N> numbers;
    if (width % N != 0) {
#pragma unroll
        for (int j = 0; j < N; j++) numbers.x[j] = i + j < width ? to_float(row[i + j]) : 0.0f;
    } else if constexpr (N == 8) {
        uint4 words = load_word<USE, uint4>(row + i);
        unpack(words.x, numbers.x);
        unpack(words.y, numbers.x + 2);
        unpack(words.z, numbers.x + 4);
        unpack(words.w, numbers.x + 6);
    } else {
        uint2 words = load_word<USE, uint2>(row + i);
        unpack(words.x, numbers.x);
        unpack(words.y, numbers.x + 2);
    }
    return numbers;
}

// Rounds to the operand type and stores.
template <Use USE = SOON, int N>
__device__ __forceinline__ void store(operand* row, int i, int width, const Numbers<N>& numbers) {
    static_assert(N == 4 || N == 8, "8 or 16 bytes");
    const float* x = numbers.x;
    if (width % N != 0) {
#pragma unroll
        for (int j = 0; j < N; j++) {
            if (i + j < width) row[i + j] = to_operand(x[j]);
        }
    } else if constexpr (N == 8) {
        store_word<USE>(row + i, make_uint4(pack(x[0], x[1]), pack(x[2], x[3]), pack(x[4], x[5]), pack(x[6], x[7])));
    } else {
        store_word<USE>(row + i, make_uint2(pack(x[0], x[1]), pack(x[2], x[3])));
    }
}
#endif

// Rounds to the operand type and stores. Numbers that are no operands yet are stored by `store`, which rounds to 16
// bits, but not to tf32: tf32 is fp32 in memory.
template <Use USE = SOON, int N>
__device__ __forceinline__ void store_operands(operand* row, int i, int width, const Numbers<N>& numbers) {
#ifdef OPERAND_16_BIT
    store<USE>(row, i, width, numbers);
#else
    Numbers<N> rounded;
#pragma unroll
    for (int j = 0; j < N; j++) rounded.x[j] = to_operand(numbers.x[j]);
    store<USE>(row, i, width, rounded);
#endif
}

// The value after storing it as an operand and loading it again. Only 16-bit operands differ from their source.
__device__ __forceinline__ float as_stored(float x) {
#ifdef OPERAND_16_BIT
    return to_float(to_operand(x));
#else
    return x;
#endif
}

#endif
