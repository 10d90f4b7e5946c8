// What dropout draws: the functions of engine/dropout.rs, where they are explained. Kernels that may drop something ask
// `act`: never in a build with DROPOUT 0, and otherwise where the launch names a site.
#ifndef DRAWS_CUH
#define DRAWS_CUH

#include "common.cuh"

// Seven rounds of Philox4x32 (Salmon et al., 2011).
__device__ __forceinline__ void philox(u32 (&counter)[4], u32 left, u32 right) {
#pragma unroll
    for (int round = 0; round < 7; round++) {
        u64 first = (u64)0xd2511f53u * counter[0], second = (u64)0xcd9e8d57u * counter[2];
        u32 b = counter[1], d = counter[3];
        counter[0] = (u32)(second >> 32) ^ b ^ left;
        counter[1] = (u32)second;
        counter[2] = (u32)(first >> 32) ^ d ^ right;
        counter[3] = (u32)first;
        left += 0x9e3779b9u;
        right += 0xbb67ae85u;
    }
}

// What a launch draws at a site, a number of the network's places; none below 0.
struct Draws {
    // of the batch: its first training row, the seed (two words each), the threshold and the factor of what stays
    const u32* of_batch;
    int site;

    __device__ __forceinline__ bool act() const { return DROPOUT && site >= 0; }

    // The factor of what stays.
    __device__ __forceinline__ float scale() const { return __uint_as_float(of_batch[5]); }

    // The factors of four numbers with one counter: `first` and `second` are its first words, `row` is a row of the
    // batch, `head` one of attention's or 0.
    __device__ __forceinline__ void factors(float (&factors)[4], u32 first, u32 second, i64 row, int head) const {
        u64 training_row = (((u64)of_batch[1] << 32) | of_batch[0]) + (u64)row;
        u32 high = ((u32)site << 20) | ((u32)head << 10) | ((u32)(training_row >> 32) & 0x3ffu);
        u32 words[4] = {first, second, (u32)training_row, high};
        philox(words, of_batch[2], of_batch[3]);
        u32 threshold = of_batch[4];
#pragma unroll
        for (int i = 0; i < 4; i++) factors[i] = words[i] < threshold ? 0.0f : scale();
    }

    // The factors of four neighbouring channels of token n of a batch whose rows have `cols` tokens.
    __device__ __forceinline__ void of_channels(float (&of)[4], i64 n, int channel, int cols) const {
        u32 token = (u32)n, tokens = (u32)cols;
        factors(of, token % tokens, (u32)channel / 4, token / tokens, 0);
    }

    // The factors of the probabilities of keys `key` and `key` + 8 for `query`, and then for `query` + 8. Bit 3 of both
    // numbers must be clear.
    __device__ __forceinline__ void of_probabilities(float (&of)[4], int query, int key, i64 row, int head) const {
        factors(of, (u32)query, (u32)key, row, head);
    }

    // The factor of one probability.
    __device__ __forceinline__ float of_probability(int query, int key, i64 row, int head) const {
        float of[4];
        of_probabilities(of, query & ~8, key & ~8, row, head);
        float of_query[2] = {query & 8 ? of[2] : of[0], query & 8 ? of[3] : of[1]};
        return key & 8 ? of_query[1] : of_query[0];
    }
};

#endif
