// The host's versions of the functions in kernels/tensor_core.cuh, carried out once for all lanes of a warp.
#pragma once

#include "language.h"

namespace emulator {

inline void need_alignment(const void* at, unsigned bytes, const char* what) {
    if (reinterpret_cast<uintptr_t>(at) % bytes != 0) machine.fail("%s is not aligned to %u bytes", what, bytes);
}

// What a lane brings to the loading of matrices.
struct LoadMatrices {
    uint32_t* fragment;
    const uint16_t* row;
};

template <bool TRANSPOSED>
void load_matrices(uint32_t (&fragment)[4], const void* row) {
    need_alignment(row, 16, "a row of ldmatrix");
    LoadMatrices mine{fragment, static_cast<const uint16_t*>(row)};
    machine.collective(
        TRANSPOSED ? "ldmatrix.trans" : "ldmatrix",
        [](void* const* lanes) {
            auto row = [&](unsigned i) { return static_cast<LoadMatrices*>(lanes[i])->row; };
            for (unsigned lane = 0; lane < warp_size; lane++) {
                uint32_t* fragment = static_cast<LoadMatrices*>(lanes[lane])->fragment;
                unsigned group = lane / 4, pair = lane % 4 * 2;
                for (unsigned i = 0; i < 4; i++) {
                    uint32_t low = TRANSPOSED ? row(8 * i + pair)[group] : row(8 * i + group)[pair];
                    uint32_t high = TRANSPOSED ? row(8 * i + pair + 1)[group] : row(8 * i + group)[pair + 1];
                    fragment[i] = low | high << 16;
                }
            }
        },
        &mine);
}

// What a lane brings to a product of fragments.
template <class T>
struct MultiplyAdd {
    float* sum;
    const T* left;
    T right[2];
};

// sum[16 x 8] += left[16 x DEPTH] right[DEPTH x 8]
template <unsigned DEPTH>
void multiply(float (&sum)[16][8], const float (&left)[16][DEPTH], const float (&right)[DEPTH][8]) {
    for (unsigned k = 0; k < DEPTH; k++) {
        for (unsigned i = 0; i < 16; i++) {
            for (unsigned j = 0; j < 8; j++) sum[i][j] += left[i][k] * right[k][j];
        }
    }
}

// Computes a product: `spread` puts a lane's fragments into the matrices.
template <unsigned DEPTH, class T, class Spread>
void multiply_lanes(void* const* lanes, Spread spread) {
    float sum[16][8], left[16][DEPTH], right[DEPTH][8];
    auto lane_of = [&](unsigned lane) { return static_cast<MultiplyAdd<T>*>(lanes[lane]); };
    auto each_sum = [&](auto use) {
        for (unsigned lane = 0; lane < warp_size; lane++) {
            for (unsigned e = 0; e < 4; e++) {
                use(lane_of(lane)->sum[e], sum[lane / 4 + e / 2 * 8][lane % 4 * 2 + e % 2]);
            }
        }
    };
    for (unsigned lane = 0; lane < warp_size; lane++) spread(*lane_of(lane), lane / 4, lane % 4, left, right);
    each_sum([](float& theirs, float& ours) { ours = theirs; });
    multiply(sum, left, right);
    each_sum([](float& theirs, float& ours) { theirs = ours; });
}

}  // namespace emulator

inline int thread_read_again() { return threadIdx.x; }
inline void load_matrices(uint32_t (&fragment)[4], const void* row) { emulator::load_matrices<false>(fragment, row); }
inline void load_matrices_transposed(uint32_t (&fragment)[4], const void* row) {
    emulator::load_matrices<true>(fragment, row);
}

#if defined(OPERAND_BF16) || defined(OPERAND_FP16)
inline void multiply_add(float (&sum)[4], const uint32_t (&left)[4], uint32_t right0, uint32_t right1) {
    emulator::MultiplyAdd<uint32_t> mine{sum, left, {right0, right1}};
    emulator::machine.collective(
        "mma.m16n8k16",
        [](void* const* lanes) {
            auto half = [](uint32_t pair, unsigned which) {
                uint16_t bits = pair >> 16 * which;
#ifdef OPERAND_BF16
                return __uint_as_float(uint32_t(bits) << 16);
#else
                return float_of_fp16(bits);
#endif
            };
            auto spread = [&](auto& lane, unsigned group, unsigned t, auto& left, auto& right) {
                for (unsigned i = 0; i < 4; i++) {
                    for (unsigned e = 0; e < 2; e++) {
                        left[group + i % 2 * 8][2 * t + e + i / 2 * 8] = half(lane.left[i], e);
                        if (i < 2) right[2 * t + e + i * 8][group] = half(lane.right[i], e);
                    }
                }
            };
            emulator::multiply_lanes<16, uint32_t>(lanes, spread);
        },
        &mine);
}
#elif defined(OPERAND_TF32)
inline void multiply_add(float (&sum)[4], const float (&left)[4], float right0, float right1) {
    for (float x : {left[0], left[1], left[2], left[3], right0, right1}) {
        if (round_tf32(x) != x && x == x) emulator::machine.fail("a factor of a tf32 product is not rounded");
    }
    emulator::MultiplyAdd<float> mine{sum, left, {right0, right1}};
    emulator::machine.collective(
        "mma.m16n8k8",
        [](void* const* lanes) {
            auto spread = [](auto& lane, unsigned group, unsigned t, auto& left, auto& right) {
                for (unsigned i = 0; i < 4; i++) left[group + i % 2 * 8][t + i / 2 * 4] = lane.left[i];
                for (unsigned i = 0; i < 2; i++) right[t + i * 4][group] = lane.right[i];
            };
            emulator::multiply_lanes<8, float>(lanes, spread);
        },
        &mine);
}
#endif

namespace emulator {

inline void start_copy(void* shared, const void* global, bool whole, unsigned bytes) {
    need_alignment(shared, bytes, "the destination of cp.async");
    need_alignment(global, bytes, "the source of cp.async");
    machine.start_copy(shared, whole ? global : nullptr, bytes);
}

}  // namespace emulator

inline void copy_async(void* shared, const void* global, bool whole) {
    emulator::start_copy(shared, global, whole, 16);
}
inline void copy_async_word(void* shared, const void* global, bool whole) {
    emulator::start_copy(shared, global, whole, 4);
}

inline void copy_async_commit() { emulator::machine.commit_copies(); }

template <int PENDING>
void copy_async_wait() {
    emulator::machine.wait_for_copies(PENDING);
}
