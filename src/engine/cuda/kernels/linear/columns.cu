// Sums of columns, which are gradients of biases. Rows are cut into slices with a partial sum each, so that the order
// of additions is that of the rows.
#include "linear/gelu.cuh"
#include "numbers.cuh"

constexpr int COLUMN_THREADS = COLUMN_WARPS * WARP;

// Partial sums of the columns of x: block (part, slice) has 32 PACK columns and `per_slice` rows, and writes
// partials[slice][column]; rows of partials are `stride` elements apart. With a SLOPE, x = x * gelu'(fc) first,
// rounded.
template <bool SLOPE>
__device__ __forceinline__ void sum_columns(operand* __restrict__ x, const operand* __restrict__ fc,
                                            float* __restrict__ partials, int rows, int width, int per_slice,
                                            int stride) {
    __shared__ float sums[COLUMN_WARPS][WARP * PACK];
    int lane = threadIdx.x % WARP, warp = threadIdx.x / WARP;
    int first_column = blockIdx.x * WARP * PACK, i = first_column + PACK * lane;
    int first = blockIdx.y * per_slice, end = min(first + per_slice, rows);
    Pack sum = {};
    if (i < width) {
#pragma unroll 4
        for (int row = first + warp; row < end; row += COLUMN_WARPS) {
            operand* at = x + (size_t)row * width;
            Pack value = load<PACK>(at, i, width);
            if (SLOPE) {
                Pack input = load<PACK, LATE>(fc + (size_t)row * width, i, width);
#pragma unroll
                for (int j = 0; j < PACK; j++) {
                    value.x[j] = to_float(to_operand(value.x[j] * gelu(input.x[j]).slope));
                }
                store_operands(at, i, width, value);
            }
#pragma unroll
            for (int j = 0; j < PACK; j++) sum.x[j] += value.x[j];
        }
    }
#pragma unroll
    for (int j = 0; j < PACK; j++) sums[warp][PACK * lane + j] = sum.x[j];
    __syncthreads();
    for (int column = threadIdx.x; column < WARP * PACK; column += COLUMN_THREADS) {
        float total = 0.0f;
        for (int other = 0; other < COLUMN_WARPS; other++) total += sums[other][column];
        if (first_column + column < width) partials[(size_t)blockIdx.y * stride + first_column + column] = total;
    }
}

// Partial sums of the columns of x.
extern "C" __global__ void __launch_bounds__(COLUMN_THREADS)
column_sums(operand* x, float* partials, int rows, int width, int per_slice, int stride) {
    sum_columns<false>(x, nullptr, partials, rows, width, per_slice, stride);
}

// x = x * gelu'(fc), rounded, and partial sums of its columns.
extern "C" __global__ void __launch_bounds__(COLUMN_THREADS)
gelu_slope_sums(operand* x, const operand* fc, float* partials, int rows, int width, int per_slice, int stride) {
    sum_columns<true>(x, fc, partials, rows, width, per_slice, stride);
}

// out[i] += the sum of partials[i] over `count` rows, which are `stride` elements apart. Columns from `first` on have
// their sum in `sums` instead, which has `summed` elements: a matrix product has left it there. Those from
// `other_first` on have `other_count` partial sums in `others`, whose rows have `other_width` elements.
extern "C" __global__ void __launch_bounds__(COLUMN_THREADS)
add_partials(const float* __restrict__ partials, float* __restrict__ out, int count, int stride, int width,
             const operand* __restrict__ sums, int first, int summed, const float* __restrict__ others,
             int other_first, int other_count, int other_width) {
    __shared__ float parts[COLUMN_WARPS][WARP];
    int lane = threadIdx.x % WARP, warp = threadIdx.x / WARP, i = blockIdx.x * WARP + lane;
    bool is_summed = i >= first && i < first + summed;
    const float* column = partials + i;
    if (i >= other_first && i < other_first + other_width) {
        column = others + (i - other_first);
        count = other_count;
        stride = other_width;
    }
    float sum = 0.0f;
    if (i < width && !is_summed) {
#pragma unroll 8
        for (int slice = warp; slice < count; slice += COLUMN_WARPS) sum += column[(size_t)slice * stride];
    }
    parts[warp][lane] = sum;
    __syncthreads();
    if (warp != 0 || i >= width) return;
    sum = 0.0f;
    for (int other = 0; other < COLUMN_WARPS; other++) sum += parts[other][lane];
    out[i] += is_summed ? to_float(sums[i - first]) : sum;
}
