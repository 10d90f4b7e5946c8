// What all kernels use: the operand type of the run, its conversions, and reductions over warps and blocks.
//
// A run's kernels are compiled with exactly one of OPERAND_FP32, OPERAND_TF32, OPERAND_BF16 and OPERAND_FP16,
// and with HEAD_SIZE. NVRTC lacks the headers of CUDA's narrow types, so conversions are PTX instructions
// here. With CUDA_EMULATOR, functions with these names come from emulator/, which is included first.
#ifndef COMMON_CUH
#define COMMON_CUH

#if defined(OPERAND_FP32) + defined(OPERAND_TF32) + defined(OPERAND_BF16) + defined(OPERAND_FP16) != 1
#error "define exactly one of OPERAND_FP32, OPERAND_TF32, OPERAND_BF16 and OPERAND_FP16"
#endif

typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;
typedef long long i64;

constexpr int WARP = 32;
constexpr u32 ALL_LANES = 0xffffffffu;

#ifndef CUDA_EMULATOR

// The dynamic shared memory of a launch, as an array of `type`.
#define DYNAMIC_SHARED(type, name) \
    extern __shared__ __align__(16) unsigned char name##_bytes[]; \
    type* name = reinterpret_cast<type*>(name##_bytes)

#ifndef INFINITY
#define INFINITY __int_as_float(0x7f800000)
#endif

__device__ __forceinline__ u16 bf16_bits(float x) {
    u16 bits;
    asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(bits) : "f"(x));
    return bits;
}

__device__ __forceinline__ u16 fp16_bits(float x) {
    u16 bits;
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(bits) : "f"(x));
    return bits;
}

// Converts two numbers, `low` to the lower half.
__device__ __forceinline__ u32 bf16_pair(float low, float high) {
    u32 pair;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
    return pair;
}

__device__ __forceinline__ u32 fp16_pair(float low, float high) {
    u32 pair;
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
    return pair;
}

__device__ __forceinline__ float float_of_fp16(u16 bits) {
    float x;
    asm("cvt.f32.f16 %0, %1;" : "=f"(x) : "h"(bits));
    return x;
}

// Rounds to 10 mantissa bits, ties away from zero, as tensor cores require of tf32 operands.
__device__ __forceinline__ float round_tf32(float x) {
    u32 bits;
    asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(bits) : "f"(x));
    return __uint_as_float(bits);
}

// 2^x, with 2^-inf = 0.
__device__ __forceinline__ float exp2_fast(float x) {
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

#endif

__device__ __forceinline__ float float_of_bf16(u16 bits) { return __uint_as_float((u32)bits << 16); }

// An operand of a matrix product in memory. The 16-bit formats are wrapped, so that their bits cannot be
// mistaken for a number.
#if defined(OPERAND_BF16) || defined(OPERAND_FP16)
#define OPERAND_16_BIT 1
struct operand {
    u16 bits;
};
#else
typedef float operand;
#endif

#if defined(OPERAND_BF16)
// Two operands in one register, `low` at the lower address.
__device__ __forceinline__ u32 pack(float low, float high) { return bf16_pair(low, high); }
__device__ __forceinline__ float to_float(operand x) { return float_of_bf16(x.bits); }
__device__ __forceinline__ operand to_operand(float x) { return operand{bf16_bits(x)}; }
#elif defined(OPERAND_FP16)
__device__ __forceinline__ u32 pack(float low, float high) { return fp16_pair(low, high); }
__device__ __forceinline__ float to_float(operand x) { return float_of_fp16(x.bits); }
__device__ __forceinline__ operand to_operand(float x) { return operand{fp16_bits(x)}; }
#elif defined(OPERAND_TF32)
__device__ __forceinline__ operand to_operand(float x) { return round_tf32(x); }
#else
__device__ __forceinline__ operand to_operand(float x) { return x; }
#endif

// Numbers that are fp32 in every precision pass unchanged, so that templates accept both.
__device__ __forceinline__ float to_float(float x) { return x; }

__device__ constexpr int ceil_div(int a, int b) { return (a + b - 1) / b; }

// The sum over the 32 lanes, in a fixed order; every lane receives it.
template <class T>
__device__ __forceinline__ T warp_sum(T x) {
    for (int distance = WARP / 2; distance > 0; distance /= 2) x += __shfl_xor_sync(ALL_LANES, x, distance);
    return x;
}

// The maximum over the 32 lanes; every lane receives it.
__device__ __forceinline__ float warp_max(float x) {
    for (int distance = WARP / 2; distance > 0; distance /= 2) {
        x = fmaxf(x, __shfl_xor_sync(ALL_LANES, x, distance));
    }
    return x;
}

// The sum over a block of at most 1024 threads, a multiple of 32, in a fixed order; every thread receives it.
// `scratch` is shared memory for 32 elements, free again when the function returns.
template <class T>
__device__ __forceinline__ T block_sum(T x, T* scratch) {
    int lane = threadIdx.x % WARP, warp = threadIdx.x / WARP, warps = blockDim.x / WARP;
    x = warp_sum(x);
    if (lane == 0) scratch[warp] = x;
    __syncthreads();
    x = warp_sum(lane < warps ? scratch[lane] : T(0));
    __syncthreads();
    return x;
}

// The maximum over a block of at most 1024 threads, a multiple of 32; every thread receives it. `scratch` as
// in block_sum.
__device__ __forceinline__ float block_max(float x, float* scratch) {
    int lane = threadIdx.x % WARP, warp = threadIdx.x / WARP, warps = blockDim.x / WARP;
    x = warp_max(x);
    if (lane == 0) scratch[warp] = x;
    __syncthreads();
    x = warp_max(lane < warps ? scratch[lane] : -INFINITY);
    __syncthreads();
    return x;
}

#endif
