// fp32 numbers in two halves, of which the first is an operand of matrix products: such a tensor and its rounded copy
// take 4 bytes together instead of 6.
#ifndef HALVES_CUH
#define HALVES_CUH

#include "numbers.cuh"

// `first` has the numbers rounded to bf16, and `rest` what the bits of each are further on. Together they are the
// number, but for one in the middle between two operands, which may lose its last bit.
struct Halves {
    operand* first;
    u16* rest;

    static __device__ __forceinline__ float whole(u16 first, u16 rest) {
        return __uint_as_float(((u32)first << 16) + (u32)(int)(short)rest);
    }

    static __device__ __forceinline__ u16 rest_of(float x, u16 first) {
        return (u16)min((int)(__float_as_uint(x) - ((u32)first << 16)), 0x7fff);
    }

    __device__ __forceinline__ Halves operator+(i64 i) const { return Halves{first + i, rest + i}; }
    __device__ __forceinline__ float operator[](i64 i) const { return whole(first[i].bits, rest[i]); }
};

template <int N, Use USE = SOON>
__device__ __forceinline__ Quad load(Halves row, int i, int width) {
    static_assert(N == 4, "as many as a thread has");
    Quad numbers;
    if (width % N != 0) {
#pragma unroll
        for (int j = 0; j < N; j++) numbers.x[j] = i + j < width ? row[i + j] : 0.0f;
        return numbers;
    }
    uint2 first = load_word<USE, uint2>(row.first + i), rest = load_word<USE, uint2>(row.rest + i);
    u32 firsts[2] = {first.x, first.y}, rests[2] = {rest.x, rest.y};
#pragma unroll
    for (int j = 0; j < N; j++) {
        numbers.x[j] = Halves::whole((u16)(firsts[j / 2] >> j % 2 * 16), (u16)(rests[j / 2] >> j % 2 * 16));
    }
    return numbers;
}

template <Use USE = SOON>
__device__ __forceinline__ void store(Halves row, int i, int width, const Quad& numbers) {
    const float* x = numbers.x;
    if (width % 4 != 0) {
#pragma unroll
        for (int j = 0; j < 4; j++) {
            if (i + j >= width) continue;
            row.first[i + j] = to_operand(x[j]);
            row.rest[i + j] = Halves::rest_of(x[j], row.first[i + j].bits);
        }
        return;
    }
    u32 firsts[2] = {pack(x[0], x[1]), pack(x[2], x[3])}, rests[2] = {};
#pragma unroll
    for (int j = 0; j < 4; j++) {
        rests[j / 2] |= (u32)Halves::rest_of(x[j], (u16)(firsts[j / 2] >> j % 2 * 16)) << j % 2 * 16;
    }
    store_word<USE>(row.first + i, make_uint2(firsts[0], firsts[1]));
    store_word<USE>(row.rest + i, make_uint2(rests[0], rests[1]));
}

#endif
