// The instructions that feed tensor cores, one function each: asynchronous copies into shared memory, loading
// fragments of matrices from there, and products of fragments; and what saves registers beside them. All 32
// lanes of a warp take part in a fragment.
//
// Layouts are those of the PTX ISA, "Warp level matrix instructions", with group = lane / 4 and t = lane % 4:
//   accumulator 16 x 8   {0, 1}: row group, columns 2t and 2t + 1; {2, 3}: those columns of row group + 8
//   left 16 x 16, 16 bit {0}: row group, columns 2t and 2t + 1; {1}: row group + 8; {2, 3}: those columns + 8
//   right 16 x 8, 16 bit {0}: rows 2t and 2t + 1, column group; {1}: those rows + 8
//   left 16 x 8, tf32    {0}: row group, column t; {1}: row group + 8; {2, 3}: column t + 4
//   right 8 x 8, tf32    {0}: row t, column group; {1}: row t + 4
//
// emulator/tensor_core.h has the host's versions of these functions.
#ifndef TENSOR_CORE_CUH
#define TENSOR_CORE_CUH

#include "common.cuh"

#ifndef CUDA_EMULATOR

__device__ __forceinline__ u32 shared_address(const void* shared) { return (u32)__cvta_generic_to_shared(shared); }

// threadIdx.x, read anew at each call. What is computed from it inside a loop is computed each time, where the
// compiler would keep it in registers that the loop needs.
__device__ __forceinline__ int thread_read_again() {
    int thread;
    asm volatile("mov.u32 %0, %%tid.x;" : "=r"(thread));
    return thread;
}

// Starts a copy of 16 bytes from global to shared memory, both aligned to 16 bytes. If `whole` is false,
// nothing is read and zeros are written.
__device__ __forceinline__ void copy_async(void* shared, const void* global, bool whole) {
    int bytes = whole ? 16 : 0;
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(shared_address(shared)), "l"(global), "r"(bytes)
                 : "memory");
}

// Starts a copy of 4 bytes from global to shared memory, both aligned to 4 bytes. If `whole` is false,
// nothing is read and zeros are written.
__device__ __forceinline__ void copy_async_word(void* shared, const void* global, bool whole) {
    int bytes = whole ? 4 : 0;
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" ::"r"(shared_address(shared)), "l"(global), "r"(bytes)
                 : "memory");
}

// Ends a group of this thread's copies. A group may be empty.
__device__ __forceinline__ void copy_async_commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }

// Waits until at most PENDING groups of this thread's copies are under way. Copies of other threads also need
// a barrier.
template <int PENDING>
__device__ __forceinline__ void copy_async_wait() {
    asm volatile("cp.async.wait_group %0;" ::"n"(PENDING) : "memory");
}

// Loads four 8 x 8 matrices of 16-bit elements. Lane 8i + r gives the address of row r of matrix i, aligned
// to 16 bytes; each lane receives in fragment[i] two elements of matrix i: row lane / 4, columns 2 (lane % 4)
// and the next.
__device__ __forceinline__ void load_matrices(u32 (&fragment)[4], const void* row) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(fragment[0]), "=r"(fragment[1]), "=r"(fragment[2]), "=r"(fragment[3])
                 : "r"(shared_address(row))
                 : "memory");
}

// Loads four 8 x 8 matrices as load_matrices does, each transposed.
__device__ __forceinline__ void load_matrices_transposed(u32 (&fragment)[4], const void* row) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(fragment[0]), "=r"(fragment[1]), "=r"(fragment[2]), "=r"(fragment[3])
                 : "r"(shared_address(row))
                 : "memory");
}

#if defined(OPERAND_16_BIT)
// sum[16 x 8] += left[16 x 16] right[16 x 8]
#if defined(OPERAND_BF16)
#define MULTIPLY_ADD "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32"
#else
#define MULTIPLY_ADD "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32"
#endif
__device__ __forceinline__ void multiply_add(float (&sum)[4], const u32 (&left)[4], u32 right0, u32 right1) {
    asm(MULTIPLY_ADD " {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
                 : "+f"(sum[0]), "+f"(sum[1]), "+f"(sum[2]), "+f"(sum[3])
                 : "r"(left[0]), "r"(left[1]), "r"(left[2]), "r"(left[3]), "r"(right0), "r"(right1));
}
#undef MULTIPLY_ADD
#elif defined(OPERAND_TF32)
// sum[16 x 8] += left[16 x 8] right[8 x 8]; both factors are rounded already
__device__ __forceinline__ void multiply_add(float (&sum)[4], const float (&left)[4], float right0, float right1) {
    asm("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 "
                 "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
                 : "+f"(sum[0]), "+f"(sum[1]), "+f"(sum[2]), "+f"(sum[3])
                 : "r"(__float_as_uint(left[0])), "r"(__float_as_uint(left[1])), "r"(__float_as_uint(left[2])),
                   "r"(__float_as_uint(left[3])), "r"(__float_as_uint(right0)), "r"(__float_as_uint(right1)));
}
#endif

#endif
#endif
