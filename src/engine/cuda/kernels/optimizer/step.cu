// What a step needs whatever its rule: the gradient norm, the decision whether to update, and the parameters as
// operands. The sum of squares and the operands are one pass over the flat buffers each. Nothing goes through the host.
#include "numbers.cuh"

// partials[block] = the sum of squares of the block's share of x; those of the `count` that no block has are zero.
extern "C" __global__ void __launch_bounds__(SQUARE_THREADS)
sum_of_squares(const float* x, double* partials, int count, i64 len) {
    __shared__ double scratch[WARP];
    double sum = 0.0;
    i64 step = (i64)gridDim.x * SQUARE_THREADS * 4;
    for (i64 i = ((i64)blockIdx.x * SQUARE_THREADS + threadIdx.x) * 4; i < len; i += step) {
        // buffers are padded to a multiple of four
        Quad quad = *reinterpret_cast<const Quad*>(x + i);
        for (int j = 0; j < 4; j++) sum += (double)quad.x[j] * quad.x[j];
    }
    sum = block_sum(sum, scratch);
    if (threadIdx.x == 0) partials[blockIdx.x] = sum;
    int rest = gridDim.x + blockIdx.x * SQUARE_THREADS + threadIdx.x;
    for (; rest < count; rest += gridDim.x * SQUARE_THREADS) partials[rest] = 0.0;
}

// Computes sums[1..5] = {loss, squares, applied, scale} from sums[0], the step's loss, and the partial sums
// of squares. The update is applied if loss and norm are finite. The scale is the factor of the gradients,
// which unscales and clips them (`torch.nn.utils.clip_grad_norm_`). Resets the loss to zero. One block.
extern "C" __global__ void __launch_bounds__(DECIDE_THREADS)
decide_update(const double* partials, int count, double* sums, double loss_scale, double clip_norm) {
    __shared__ double scratch[WARP];
    double squares = 0.0;
    for (int i = threadIdx.x; i < count; i += DECIDE_THREADS) squares += partials[i];
    squares = block_sum(squares, scratch);
    if (threadIdx.x != 0) return;
    double norm = sqrt(squares) / loss_scale;
    double clip = clip_norm > 0.0 && norm > clip_norm ? clip_norm / (norm + 1e-6) : 1.0;
    double loss = sums[0];
    // x - x is 0 only for finite x
    bool applied = norm - norm == 0.0 && loss - loss == 0.0;
    sums[0] = 0.0;
    sums[1] = loss;
    sums[2] = squares;
    sums[3] = applied;
    sums[4] = clip / loss_scale;
}

// Ends a step without an update: sums[1..5] = {loss, 0, not applied, 0}. The loss begins anew. One block.
extern "C" __global__ void __launch_bounds__(WARP) discard_update(double* sums) {
    if (threadIdx.x != 0) return;
    sums[1] = sums[0];
    for (int i = 2; i < 5; i++) sums[i] = 0.0;
    sums[0] = 0.0;
}

// low = p as operands.
extern "C" __global__ void __launch_bounds__(ROUND_THREADS) round_parameters(const float* p, operand* low, i64 len) {
    i64 i = ((i64)blockIdx.x * ROUND_THREADS + threadIdx.x) * 4;
    if (i < len) store_operands(low + i, 0, 4, *reinterpret_cast<const Quad*>(p + i));
}
