// Kernels for the emulator's own tests: what it must compute, and what it must refuse.
#include "common.cuh"
#include "tensor_core.cuh"

extern "C" __global__ void types(int* out, int a, long long b, float c, double d) {
    if (blockIdx.x == 0 && threadIdx.x == 0) *out = a + (int)b + (int)c + (int)d;
}

extern "C" __global__ void convert(const float* in, operand* out, float* back, int count) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= count) return;
    out[i] = to_operand(in[i]);
    back[i] = to_float(out[i]);
}

// The sum and the maximum of each block's elements, and a vote.
extern "C" __global__ void reduce(const float* in, float* out) {
    __shared__ float scratch[32];
    float x = in[blockIdx.x * blockDim.x + threadIdx.x];
    float sum = block_sum(x, scratch), largest = block_max(x, scratch);
    unsigned positive = __ballot_sync(ALL_LANES, x > 0.0f);
    if (threadIdx.x == 0) {
        out[3 * blockIdx.x] = sum;
        out[3 * blockIdx.x + 1] = largest;
        out[3 * blockIdx.x + 2] = (float)positive;
    }
}

// Reverses the elements of a block through shared memory; with `wait` zero, without the barrier that this
// needs.
extern "C" __global__ void reverse(const float* in, float* out, int wait) {
    DYNAMIC_SHARED(float, shared);
    shared[threadIdx.x] = in[threadIdx.x];
    if (wait) __syncthreads();
    out[threadIdx.x] = shared[blockDim.x - 1 - threadIdx.x];
}

// A race without any NaN: which warp was the last?
extern "C" __global__ void last_one(int* out) {
    if (threadIdx.x % WARP == 0) *out = threadIdx.x / WARP;
}

// Copies a block's elements asynchronously; `waits`: 0 never, 1 too late, 2 in time.
extern "C" __global__ void copy(const float* in, float* out, int waits) {
    __shared__ __align__(16) float shared[128];
    copy_async(shared + 4 * threadIdx.x, in + 4 * threadIdx.x, threadIdx.x < 31);
    copy_async_commit();
    if (waits == 2) copy_async_wait<0>();
    for (int i = 0; i < 4; i++) out[4 * threadIdx.x + i] = shared[4 * threadIdx.x + i];
    if (waits == 1) copy_async_wait<0>();
}

// Fills static and dynamic shared memory in the first block, and stores what the second block finds there.
extern "C" __global__ void leak(float* out) {
    __shared__ float fixed[32];
    DYNAMIC_SHARED(float, dynamic);
    if (blockIdx.x == 0) fixed[threadIdx.x] = dynamic[threadIdx.x] = 1.0f;
    if (blockIdx.x == 1) out[threadIdx.x] = fixed[threadIdx.x] + dynamic[threadIdx.x];
}

extern "C" __global__ void overflow_shared() {
    DYNAMIC_SHARED(float, shared);
    shared[threadIdx.x] = 1.0f;
}

extern "C" __global__ void misaligned(const float* in) {
    __shared__ __align__(16) float shared[8];
    copy_async(shared + 1, in, true);
}

// The first half of a warp goes to a shuffle, the second half to a vote.
extern "C" __global__ void diverge() {
    if (threadIdx.x < 16) {
        warp_sum(1.0f);
    } else {
        __any_sync(ALL_LANES, 1);
    }
}

// One warp leaves while the other waits for it.
extern "C" __global__ void leave() {
    if (threadIdx.x < 32) return;
    __syncthreads();
}

// One lane leaves while the others add.
extern "C" __global__ void leave_warp(float* out) {
    if (threadIdx.x == 5) return;
    out[threadIdx.x] = warp_sum(1.0f);
}

extern "C" __global__ void out_of_bounds(float* out, int count) { out[count + threadIdx.x] = 1.0f; }

extern "C" __global__ void read_thrice(const float* in, float* out) {
    float sum = in[threadIdx.x] + in[(threadIdx.x + 1) % 64];
    __syncthreads();
    sum += in[(threadIdx.x + 2) % 64];
    sum = warp_sum(sum);
    if (threadIdx.x == 0) out[0] = sum;
}

extern "C" __global__ void write_then_read(float* out) {
    volatile float* at = out + threadIdx.x;
    *at = 1.0f;
    *at = *at + 1.0f;
}
