// The kernels that read or write the gradient of the residual stream, for one in halves. Nothing is dropped there.
#include "embedding/embedding.cuh"
#include "halves/halves.cuh"
#include "layernorm/layernorm.cuh"

extern "C" __global__ void __launch_bounds__(NORM_THREADS)
layernorm_backward_halves(const operand* dout, const float* x, const float* lacks, const float* weight,
                          const float* stats, u16* rest, int accumulate, operand* first, float* dweight, float* dbias,
                          float* dx_sums, int rows, int c, int per_slice, int stride, const u32* of_batch, int site,
                          int cols) {
    normalize_backward(dout, x, lacks, weight, stats, Halves{first, rest}, accumulate, nullptr, dweight, dbias, dx_sums,
                       rows, c, per_slice, stride, NOTHING_DROPPED, NO_POSITIONS);
}

extern "C" __global__ void __launch_bounds__(NORM_THREADS)
layernorm_backward_positions(const operand* dout, const float* x, const float* lacks, const float* weight,
                             const float* stats, u16* rest, int accumulate, operand* first, float* dweight,
                             float* dbias, float* dx_sums, int rows, int c, int per_slice, int stride,
                             const u32* of_batch, int site, int cols, float* dwpe, int sequences) {
    normalize_backward(dout, x, lacks, weight, stats, Halves{first, rest}, accumulate, nullptr, dweight, dbias, nullptr,
                       rows, c, per_slice, stride, NOTHING_DROPPED, Positions{dwpe, sequences, cols});
}

extern "C" __global__ void __launch_bounds__(EMBED_THREADS)
embed_backward_tokens_halves(const int* tokens, const int* distinct, const int* order, const int* begins,
                             operand* first, u16* rest, float* dwte, int c) {
    sum_token(tokens, distinct, order, begins, Halves{first, rest}, dwte, c);
}

extern "C" __global__ void __launch_bounds__(EMBED_THREADS)
embed_backward_positions_halves(operand* first, u16* rest, float* dwpe, int rows, int cols, int c) {
    sum_position(Halves{first, rest}, dwpe, rows, cols, c);
}
