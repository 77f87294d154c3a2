// Batch normalization, an optional shortcut and an activation, forward and backward, of maps with channels last: float32
// [rows, channels]. Each pass reads its maps once. Called from ops/native.py.

#include <math.h>
#include <string.h>

#include "lanes.h"

// Sums are taken over as many parts whatever the number of threads, so that results do not depend on it. Within a part
// they are float32 for BLOCK rows and float64 beyond.
enum { PARTS = 16, BLOCK = 64 };

enum { CLAMP = 0, SWISH = 1 };

// Loops over rows are functions of their own: inside a parallel loop the compiler forgets `restrict` and computes one
// value at a time. `kind` is a constant where they are called, so that each kind gets a version.
#define ROWS static __attribute__((noinline)) void

typedef struct {
    long rows, channels;
    int threads, kind;
    float low, high; // bounds of CLAMP, infinite where there is none
    double epsilon;
    const float *maps, *gain, *bias, *shortcut; // the shortcut may be null
    double *sums;                               // scratch, [PARTS][2][channels]
    float *statistics;                          // [5][channels]: scale, offset, mean, inverse deviation, variance
    float *outputs;
} Forward;

typedef struct {
    long rows, channels;
    int threads, kind;
    float low, high;
    const float *gradient, *maps, *statistics;
    const float *outputs; // null without a shortcut
    double *sums;
    float *slopes;        // scratch, [2][channels]
    float *to_parameters; // [2][channels]: the gradients of gain and bias
    float *to_maps, *to_shortcut;
} Backward;

// The first row of a part.
static long bound(long rows, int part) {
    long each = (rows + PARTS - 1) / PARTS;
    return each * part < rows ? each * part : rows;
}

// exp(v) to 2e-7 of itself, between exp(-87) and exp(87): a polynomial on half a power of two (Cody and Waite, 1980),
// which unlike the library's is computed for many values at once.
INLINE float exponential(float v) {
    // The bound is by size and sign: compilers turn two comparisons into a branch for it, and then compute both for all
    // lanes. There exp(-87) times a small number is denormal, which took ten times as long.
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

INLINE float sigmoid(float v) { return 1.0f / (1.0f + exponential(-v)); }

// Comparisons are written so that NaN stays NaN and passes its gradient, as PyTorch's do.
INLINE float activated(int kind, float low, float high, float v) {
    if (kind == SWISH) return v * sigmoid(v);
    v = v < low ? low : v;
    return v > high ? high : v;
}

INLINE float passed(int kind, float low, float high, float v, float gradient) {
    if (kind == SWISH) {
        float s = sigmoid(v);
        return gradient * (s * (1.0f + v * (1.0f - s)));
    }
    return (v <= low) | (v >= high) ? 0.0f : gradient;
}

ROWS moments(long rows, long channels, const float *restrict x, const float *restrict first, float *restrict one,
             float *restrict two) {
    for (long row = 0; row < rows; row++, x += channels)
        for (long k = 0; k < channels; k++) {
            float d = x[k] - first[k];
            one[k] += d;
            two[k] += d * d;
        }
}

ROWS apply(int kind, float low, float high, long rows, long channels, const float *restrict x,
           const float *restrict scale, const float *restrict offset, float *restrict y) {
    for (long row = 0; row < rows; row++, x += channels, y += channels)
        for (long k = 0; k < channels; k++) y[k] = activated(kind, low, high, x[k] * scale[k] + offset[k]);
}

ROWS apply_added(float low, float high, long rows, long channels, const float *restrict x,
                 const float *restrict scale, const float *restrict offset, const float *restrict shortcut,
                 float *restrict y) {
    for (long row = 0; row < rows; row++, x += channels, shortcut += channels, y += channels)
        for (long k = 0; k < channels; k++)
            y[k] = activated(CLAMP, low, high, x[k] * scale[k] + offset[k] + shortcut[k]);
}

ROWS sum(int kind, float low, float high, long rows, long channels, const float *restrict gradient,
         const float *restrict x, const float *restrict scale, const float *restrict offset,
         const float *restrict mean, float *restrict one, float *restrict two) {
    for (long row = 0; row < rows; row++, x += channels, gradient += channels)
        for (long k = 0; k < channels; k++) {
            float g = passed(kind, low, high, x[k] * scale[k] + offset[k], gradient[k]);
            one[k] += g;
            two[k] += g * (x[k] - mean[k]);
        }
}

// What the clamp has let pass is seen in y.
ROWS sum_added(float low, float high, long rows, long channels, const float *restrict gradient,
               const float *restrict y, const float *restrict x, const float *restrict mean,
               float *restrict to_shortcut, float *restrict one, float *restrict two) {
    for (long row = 0; row < rows; row++, x += channels, y += channels, gradient += channels, to_shortcut += channels)
        for (long k = 0; k < channels; k++) {
            float g = passed(CLAMP, low, high, y[k], gradient[k]);
            to_shortcut[k] = g;
            one[k] += g;
            two[k] += g * (x[k] - mean[k]);
        }
}

ROWS back(int kind, float low, float high, long rows, long channels, const float *restrict gradient,
          const float *restrict x, const float *restrict scale, const float *restrict offset,
          const float *restrict mean, const float *restrict level, const float *restrict slope,
          float *restrict to_x) {
    for (long row = 0; row < rows; row++, x += channels, gradient += channels, to_x += channels)
        for (long k = 0; k < channels; k++) {
            float g = passed(kind, low, high, x[k] * scale[k] + offset[k], gradient[k]);
            to_x[k] = scale[k] * g - level[k] - (x[k] - mean[k]) * slope[k];
        }
}

// Sums over rows, of each part: of x - x[0] and its square.
static void sum_moments(const Forward *f) {
    long channels = f->channels;
    #pragma omp parallel for num_threads(f->threads) schedule(static)
    for (int part = 0; part < PARTS; part++) {
        double *total = f->sums + 2 * channels * part;
        float block[2 * channels];
        memset(total, 0, sizeof(double) * 2 * channels);
        for (long row = bound(f->rows, part), end = bound(f->rows, part + 1), count; row < end; row += count) {
            count = end - row < BLOCK ? end - row : BLOCK;
            memset(block, 0, sizeof block);
            moments(count, channels, f->maps + row * channels, f->maps, block, block + channels);
            for (long k = 0; k < 2 * channels; k++) total[k] += block[k];
        }
    }
}

static double total(const double *sums, long channels, int which, long channel) {
    double sum = 0;
    for (int part = 0; part < PARTS; part++) sum += sums[(part * 2 + which) * channels + channel];
    return sum;
}

static void compute_statistics(const Forward *f) {
    long channels = f->channels;
    float *scale = f->statistics, *offset = scale + channels, *average = offset + channels;
    float *deviation = average + channels, *spread = deviation + channels;
    for (long k = 0; k < channels; k++) {
        // Differences from the first row's values: a mean of squares loses digits where the mean is large.
        double first = total(f->sums, channels, 0, k) / f->rows, second = total(f->sums, channels, 1, k) / f->rows;
        double mean = f->maps[k] + first, variance = second - first * first;
        double inverse = 1 / sqrt(variance + f->epsilon);
        scale[k] = f->gain[k] * inverse;
        offset[k] = f->bias[k] - mean * (f->gain[k] * inverse);
        average[k] = mean;
        deviation[k] = inverse;
        spread[k] = variance;
    }
}

// y = activation((x - mean) / deviation × gain + bias + shortcut), by the statistics of all rows.
EXPORTED(norm_act)(const Forward *f) {
    long rows = f->rows, channels = f->channels;
    const float *scale = f->statistics, *offset = scale + channels;
    sum_moments(f);
    compute_statistics(f);
    #pragma omp parallel for num_threads(f->threads) schedule(static)
    for (int part = 0; part < PARTS; part++) {
        long row = bound(rows, part), count = bound(rows, part + 1) - row, at = row * channels;
        if (f->shortcut)
            apply_added(f->low, f->high, count, channels, f->maps + at, scale, offset, f->shortcut + at,
                        f->outputs + at);
        else if (f->kind == SWISH)
            apply(SWISH, 0, 0, count, channels, f->maps + at, scale, offset, f->outputs + at);
        else
            apply(CLAMP, f->low, f->high, count, channels, f->maps + at, scale, offset, f->outputs + at);
    }
}

// Sums over rows, of each part: of the gradient of the normalized map, and of it times x - mean. With a shortcut that
// gradient is written too.
static void sum_gradients(const Backward *b) {
    long channels = b->channels;
    const float *scale = b->statistics, *offset = scale + channels, *mean = offset + channels;
    #pragma omp parallel for num_threads(b->threads) schedule(static)
    for (int part = 0; part < PARTS; part++) {
        double *total = b->sums + 2 * channels * part;
        float block[2 * channels], *one = block, *two = block + channels;
        memset(total, 0, sizeof(double) * 2 * channels);
        for (long row = bound(b->rows, part), end = bound(b->rows, part + 1), count; row < end; row += count) {
            count = end - row < BLOCK ? end - row : BLOCK;
            const float *gradient = b->gradient + row * channels, *x = b->maps + row * channels;
            memset(block, 0, sizeof block);
            if (b->outputs)
                sum_added(b->low, b->high, count, channels, gradient, b->outputs + row * channels, x, mean,
                          b->to_shortcut + row * channels, one, two);
            else if (b->kind == SWISH)
                sum(SWISH, 0, 0, count, channels, gradient, x, scale, offset, mean, one, two);
            else
                sum(CLAMP, b->low, b->high, count, channels, gradient, x, scale, offset, mean, one, two);
            for (long k = 0; k < 2 * channels; k++) total[k] += block[k];
        }
    }
}

// The gradients of gain and bias, and what normalization takes from a gradient: its mean, and its slope along the maps.
static void compute_slopes(const Backward *b) {
    long channels = b->channels;
    const float *scale = b->statistics, *inverse = b->statistics + 3 * channels;
    for (long k = 0; k < channels; k++) {
        double to_bias = total(b->sums, channels, 0, k), to_gain = total(b->sums, channels, 1, k) * inverse[k];
        b->to_parameters[k] = to_gain;
        b->to_parameters[channels + k] = to_bias;
        b->slopes[k] = scale[k] * to_bias / b->rows;
        b->slopes[channels + k] = (double)scale[k] * inverse[k] * to_gain / b->rows;
    }
}

EXPORTED(norm_act_backward)(const Backward *b) {
    long rows = b->rows, channels = b->channels;
    const float *scale = b->statistics, *offset = scale + channels, *mean = offset + channels;
    const float *level = b->slopes, *slope = level + channels;
    sum_gradients(b);
    compute_slopes(b);
    #pragma omp parallel for num_threads(b->threads) schedule(static)
    for (int part = 0; part < PARTS; part++) {
        long row = bound(rows, part), count = bound(rows, part + 1) - row, at = row * channels;
        if (b->outputs) // the activation is passed already
            back(CLAMP, -INFINITY, INFINITY, count, channels, b->to_shortcut + at, b->maps + at, scale, offset, mean,
                 level, slope, b->to_maps + at);
        else if (b->kind == SWISH)
            back(SWISH, 0, 0, count, channels, b->gradient + at, b->maps + at, scale, offset, mean, level, slope,
                 b->to_maps + at);
        else
            back(CLAMP, b->low, b->high, count, channels, b->gradient + at, b->maps + at, scale, offset, mean, level,
                 slope, b->to_maps + at);
    }
}
