// CUDA's keywords, built-in variables, types and functions, as far as the kernels use them.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>

#include "machine.h"

#define __global__
#define __device__
#define __host__
#define __constant__
#define __forceinline__ inline
#define __noinline__ __attribute__((noinline))
#define __launch_bounds__(...)
#define __align__(bytes) __attribute__((aligned(bytes)))
// one section for all, so that the machine can poison them before each block
#define __shared__ static __attribute__((section("emulator_shared")))
#define DYNAMIC_SHARED(type, name) type* name = reinterpret_cast<type*>(emulator::machine.dynamic_shared)

#define threadIdx (emulator::machine.current->index)
#define blockIdx (emulator::machine.block_index)
#define blockDim (emulator::machine.block)
#define gridDim (emulator::machine.grid)

#define EMULATOR_VECTOR(name, type) \
    struct alignas(2 * sizeof(type)) name##2 { \
        type x, y; \
    }; \
    struct alignas(4 * sizeof(type)) name##4 { \
        type x, y, z, w; \
    }; \
    inline name##2 make_##name##2(type x, type y) { return {x, y}; } \
    inline name##4 make_##name##4(type x, type y, type z, type w) { return {x, y, z, w}; }
EMULATOR_VECTOR(float, float)
EMULATOR_VECTOR(int, int)
EMULATOR_VECTOR(uint, unsigned)
#undef EMULATOR_VECTOR

namespace emulator {

template <class To, class From>
To bits_as(From from) {
    static_assert(sizeof(To) == sizeof(From), "the same number of bits");
    To to;
    memcpy(&to, &from, sizeof to);
    return to;
}

// What a lane brings to an exchange of values, and what it receives.
template <class T>
struct Exchanged {
    T value;
    unsigned source;
    T result;
};

// Every lane receives the value of its source lane.
template <class T>
T exchange(const char* name, unsigned mask, T value, unsigned source) {
    if (mask != ~0u) machine.fail("%s with mask %#x: only whole warps take part", name, mask);
    Exchanged<T> mine{value, source, value};
    machine.collective(
        name,
        [](void* const* lanes) {
            for (unsigned lane = 0; lane < warp_size; lane++) {
                auto* to = static_cast<Exchanged<T>*>(lanes[lane]);
                to->result = static_cast<Exchanged<T>*>(lanes[to->source])->value;
            }
        },
        &mine);
    return mine.result;
}

// The lanes for which the predicate holds, one bit each.
inline unsigned vote(const char* name, unsigned mask, bool predicate) {
    if (mask != ~0u) machine.fail("%s with mask %#x: only whole warps take part", name, mask);
    unsigned mine = predicate;
    machine.collective(
        name,
        [](void* const* lanes) {
            unsigned all = 0;
            for (unsigned lane = 0; lane < warp_size; lane++) all |= *static_cast<unsigned*>(lanes[lane]) << lane;
            for (unsigned lane = 0; lane < warp_size; lane++) *static_cast<unsigned*>(lanes[lane]) = all;
        },
        &mine);
    return mine;
}

}  // namespace emulator

inline void __syncthreads() { emulator::machine.barrier(); }
inline void __syncwarp(unsigned mask = ~0u) { emulator::vote("__syncwarp", mask, false); }
inline void __threadfence() {}
inline void __threadfence_block() {}

template <class T>
T __shfl_sync(unsigned mask, T value, int lane) {
    return emulator::exchange("__shfl_sync", mask, value, lane & 31);
}
template <class T>
T __shfl_xor_sync(unsigned mask, T value, int distance) {
    return emulator::exchange("__shfl_xor_sync", mask, value, (emulator::machine.current->lane() ^ distance) & 31);
}
template <class T>
T __shfl_down_sync(unsigned mask, T value, unsigned distance) {
    unsigned lane = emulator::machine.current->lane();
    return emulator::exchange("__shfl_down_sync", mask, value, lane + distance < 32 ? lane + distance : lane);
}
template <class T>
T __shfl_up_sync(unsigned mask, T value, unsigned distance) {
    unsigned lane = emulator::machine.current->lane();
    return emulator::exchange("__shfl_up_sync", mask, value, lane >= distance ? lane - distance : lane);
}
inline unsigned __ballot_sync(unsigned mask, int predicate) {
    return emulator::vote("__ballot_sync", mask, predicate != 0);
}
inline int __any_sync(unsigned mask, int predicate) {
    return emulator::vote("__any_sync", mask, predicate != 0) != 0;
}
inline int __all_sync(unsigned mask, int predicate) {
    return emulator::vote("__all_sync", mask, predicate != 0) == ~0u;
}

inline float __uint_as_float(unsigned x) { return emulator::bits_as<float>(x); }
inline float __int_as_float(int x) { return emulator::bits_as<float>(x); }
inline unsigned __float_as_uint(float x) { return emulator::bits_as<unsigned>(x); }
inline int __float_as_int(float x) { return emulator::bits_as<int>(x); }
inline float rsqrtf(float x) { return 1.0f / sqrtf(x); }
inline double rsqrt(double x) { return 1.0 / sqrt(x); }
inline float __expf(float x) { return expf(x); }
inline float __logf(float x) { return logf(x); }
inline float __fdividef(float a, float b) { return a / b; }
template <class T>
T __ldg(const T* at) {
    return *at;
}
template <class T>
T __ldcs(const T* at) {
    return *at;
}
template <class T>
void __stcs(T* at, const T& value) {
    *at = value;
}
inline int min(int a, int b) { return a < b ? a : b; }
inline int max(int a, int b) { return a > b ? a : b; }
inline unsigned min(unsigned a, unsigned b) { return a < b ? a : b; }
inline unsigned max(unsigned a, unsigned b) { return a > b ? a : b; }
inline long long min(long long a, long long b) { return a < b ? a : b; }
inline long long max(long long a, long long b) { return a > b ? a : b; }

// Integers only: sums of floating-point numbers by atomics would depend on the order of the threads.
inline int atomicAdd(int* at, int x) { return std::exchange(*at, *at + x); }
inline unsigned atomicAdd(unsigned* at, unsigned x) { return std::exchange(*at, *at + x); }
inline unsigned atomicOr(unsigned* at, unsigned x) { return std::exchange(*at, *at | x); }
inline int atomicMax(int* at, int x) { return std::exchange(*at, *at > x ? *at : x); }
inline unsigned atomicMax(unsigned* at, unsigned x) { return std::exchange(*at, *at > x ? *at : x); }

// The host's versions of the conversions in common.cuh.

inline uint16_t bf16_bits(float x) {
    uint32_t bits = emulator::bits_as<uint32_t>(x);
    if (x != x) return 0x7fff;
    return (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
}

inline uint16_t fp16_bits(float x) {
    uint32_t bits = emulator::bits_as<uint32_t>(x), sign = bits >> 16 & 0x8000, magnitude = bits & 0x7fffffff;
    if (magnitude > 0x7f800000) return 0x7fff;
    // 65520 and more: infinity
    if (magnitude >= 0x477ff000) return sign | 0x7c00;
    if (magnitude < 0x38800000) {
        // subnormal: the last bit of 0.5 + |x| is worth 2^-24
        float shifted = emulator::bits_as<float>(magnitude) + 0.5f;
        return sign | (emulator::bits_as<uint32_t>(shifted) - 0x3f000000);
    }
    return sign | ((magnitude + 0xfff + (magnitude >> 13 & 1) - (112u << 23)) >> 13);
}

inline uint32_t bf16_pair(float low, float high) { return bf16_bits(low) | uint32_t(bf16_bits(high)) << 16; }
inline uint32_t fp16_pair(float low, float high) { return fp16_bits(low) | uint32_t(fp16_bits(high)) << 16; }

inline float float_of_fp16(uint16_t bits) {
    uint32_t sign = uint32_t(bits & 0x8000) << 16, exponent = bits >> 10 & 31, mantissa = bits & 0x3ff;
    if (exponent == 0) {
        float magnitude = mantissa * 0x1p-24f;
        return sign ? -magnitude : magnitude;
    }
    uint32_t wide = exponent == 31 ? 255 : exponent + 112;
    return emulator::bits_as<float>(sign | wide << 23 | mantissa << 13);
}

inline float round_tf32(float x) {
    if (!(fabsf(x) < INFINITY)) return x;
    return emulator::bits_as<float>((emulator::bits_as<uint32_t>(x) + 0x1000) & ~0x1fffu);
}

inline float exp2_fast(float x) { return exp2f(x); }
