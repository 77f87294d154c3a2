// What the kernels share: activations of single values with their gradients, and the parts that sums are taken of.

#pragma once

#include <math.h>
#include <string.h>

enum { CLAMP = 0, SWISH = 1 };

// Work on rows is in functions of their own: inside of a parallel loop the compiler forgets what `restrict` says, and
// computes one value at a time. `kind` is a constant where they are called, so that each has a version for each kind.
#define ROWS static __attribute__((noinline)) void
#define INLINE static inline __attribute__((always_inline))

// The first row of a part. Sums are taken of as many parts, whatever number of threads there is, so that results do not
// depend on it.
static long bound(long rows, int parts, int part) {
    long each = (rows + parts - 1) / parts;
    return each * part < rows ? each * part : rows;
}

// exp(v) to 2e-7 of itself, between exp(-87) and exp(87): a polynomial on half a power of two (Cody and Waite, 1980),
// which unlike the library's is computed for many values at once.
static inline float exponential(float v) {
    // By size and sign: compilers turn two comparisons into a path for the bound, and compute it for all values of a
    // vector. There exp(-87) times a small one is a denormal number, which took ten times as long.
    float size = fabsf(v), z = copysignf(size > 87.0f ? 87.0f : size, v);
    float whole = (z * 1.44269504f + 12582912.0f) - 12582912.0f; // rounds
    float rest = (z - whole * 0.693359375f) + whole * 2.12194440e-4f;
    float e = 1.9875691500e-4f;
    e = e * rest + 1.3981999507e-3f;
    e = e * rest + 8.3334519073e-3f;
    e = e * rest + 4.1665795894e-2f;
    e = e * rest + 1.6666665459e-1f;
    e = e * rest + 5.0000001201e-1f;
    e = e * rest * rest + rest + 1.0f;
    union {
        int bits;
        float value;
    } power = {((int)whole + 127) << 23};
    return e * power.value;
}

static inline float sigmoid(float v) { return 1.0f / (1.0f + exponential(-v)); }

// Comparisons are written so that NaN stays NaN.
static inline float activated(int kind, float low, float high, float v) {
    if (kind == SWISH) return v * sigmoid(v);
    v = v < low ? low : v;
    return v > high ? high : v;
}

static inline float passed(int kind, float low, float high, float v, float gradient) {
    if (kind == SWISH) {
        float s = sigmoid(v);
        return gradient * (s * (1.0f + v * (1.0f - s)));
    }
    return (v > low) & (v < high) ? gradient : 0.0f;
}
