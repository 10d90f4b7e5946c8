// Access to four neighbouring numbers at a time, which uses the full memory bandwidth.
//
// A row whose width is a multiple of four is aligned and read in vectors; other rows are read number by
// number. Beyond the end of a row, reading gives zeros and writing does nothing.
#ifndef QUAD_CUH
#define QUAD_CUH

#include "common.cuh"

struct __align__(16) Quad {
    float x[4];
};

__device__ __forceinline__ Quad load_quad(const float* row, int i, int width) {
    if (width % 4 == 0) return *reinterpret_cast<const Quad*>(row + i);
    Quad quad;
    for (int j = 0; j < 4; j++) quad.x[j] = i + j < width ? row[i + j] : 0.0f;
    return quad;
}

__device__ __forceinline__ void store_quad(float* row, int i, int width, const Quad& quad) {
    if (width % 4 == 0) {
        *reinterpret_cast<Quad*>(row + i) = quad;
    } else {
        for (int j = 0; j < 4 && i + j < width; j++) row[i + j] = quad.x[j];
    }
}

#ifdef OPERAND_16_BIT
struct __align__(8) OperandQuad {
    operand x[4];
};

__device__ __forceinline__ Quad load_quad(const operand* row, int i, int width) {
    Quad quad;
    if (width % 4 == 0) {
        OperandQuad stored = *reinterpret_cast<const OperandQuad*>(row + i);
        for (int j = 0; j < 4; j++) quad.x[j] = to_float(stored.x[j]);
    } else {
        for (int j = 0; j < 4; j++) quad.x[j] = i + j < width ? to_float(row[i + j]) : 0.0f;
    }
    return quad;
}
#endif

// Rounds to the operand type and stores.
__device__ __forceinline__ void store_operands(operand* row, int i, int width, const Quad& quad) {
#ifdef OPERAND_16_BIT
    OperandQuad stored;
    for (int j = 0; j < 4; j++) stored.x[j] = to_operand(quad.x[j]);
    if (width % 4 == 0) {
        *reinterpret_cast<OperandQuad*>(row + i) = stored;
    } else {
        for (int j = 0; j < 4 && i + j < width; j++) row[i + j] = stored.x[j];
    }
#else
    Quad rounded;
    for (int j = 0; j < 4; j++) rounded.x[j] = to_operand(quad.x[j]);
    store_quad(row, i, width, rounded);
#endif
}

// The value after storing it as an operand and loading it again. Only 16-bit operands differ from their
// source.
__device__ __forceinline__ float as_stored(float x) {
#ifdef OPERAND_16_BIT
    return to_float(to_operand(x));
#else
    return x;
#endif
}

// Stores values that are not operands yet in the operand type, without rounding them to tf32: tf32 is fp32 in
// memory.
__device__ __forceinline__ void store_plain(operand* row, int i, int width, const Quad& quad) {
#ifdef OPERAND_16_BIT
    store_operands(row, i, width, quad);
#else
    store_quad(row, i, width, quad);
#endif
}

#endif
