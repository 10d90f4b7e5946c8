// GELU in its tanh approximation (Hendrycks and Gimpel, 2016; `torch.nn.functional.gelu(approximate="tanh")`).
#ifndef GELU_CUH
#define GELU_CUH

#include "common.cuh"

struct Gelu {
    float value, slope;
};

// x * sigmoid(2u) with u = sqrt(2/pi) * (x + 0.044715 x^3), which is x/2 * (1 + tanh(u)), and its derivative.
__device__ __forceinline__ Gelu gelu(float x) {
    constexpr float A = 2.0f * 0.79788456f, B = 0.044715f, LOG2_E = 1.44269504f;
    float square = x * x;
    float sigmoid = 1.0f / (1.0f + exp2_fast(-A * LOG2_E * x * (1.0f + B * square)));
    float slope = A * (1.0f + 3.0f * B * square);
    // where the sigmoid is 0 or 1, x * (1 - sigmoid) * slope may overflow although the product is 0
    float curve = sigmoid == 0.0f || sigmoid == 1.0f ? 0.0f : x * (1.0f - sigmoid) * slope;
    return {x * sigmoid, sigmoid * (1.0f + curve)};
}

#endif
