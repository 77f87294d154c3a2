// Batch normalization with its activation, forward and backward, of maps with channels last: float32 [rows, channels].
//
// Each function reads its maps once. Sums are taken of a fixed number of parts, whatever number of threads there is, so
// that results do not depend on it. Called from norm_act.py, which says what the arguments are.

#include <string.h>

enum { PARTS = 16, BLOCK = 64 };
enum { CLAMP = 0, SWISH = 1 };

typedef struct {
    long rows, channels;
    int threads, kind;
    float low, high; // of CLAMP; infinite where there is no bound
} Shape;

#define EACH_PART(shape)                                                                                               \
    _Pragma("omp parallel for num_threads((shape)->threads) schedule(static)") for (int part = 0; part < PARTS; part++)

// Work on rows is in functions of their own: inside of a parallel loop the compiler forgets what `restrict` says, and
// computes one value at a time. `kind` is a constant wherever they are called, so that each has a version for each kind.
#define ROWS static __attribute__((noinline)) void

static long bound(const Shape *shape, int part) {
    long each = (shape->rows + PARTS - 1) / PARTS;
    return each * part < shape->rows ? each * part : shape->rows;
}

// 1 / (1 + exp(-v)), to 2e-7 of itself: exp by a polynomial on half a power of two (Cody and Waite, 1980), which unlike
// the library's is computed for many values at once.
static inline float sigmoid(float v) {
    float z = v < -87.0f ? -87.0f : v;
    z = z > 87.0f ? 87.0f : z;
    float whole = (z * -1.44269504f + 12582912.0f) - 12582912.0f; // rounds
    float rest = whole * 2.12194440e-4f - (z + whole * 0.693359375f);
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
    return 1.0f / (1.0f + e * power.value);
}

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

ROWS moments(long rows, long channels, const float *restrict x, const float *restrict shift, float *restrict one,
             float *restrict two) {
    for (long row = 0; row < rows; row++, x += channels)
        for (long k = 0; k < channels; k++) {
            float d = x[k] - shift[k];
            one[k] += d;
            two[k] += d * d;
        }
}

ROWS apply(int kind, float low, float high, long rows, long channels, const float *restrict x,
           const float *restrict scale, const float *restrict offset, float *restrict y) {
    for (long row = 0; row < rows; row++, x += channels, y += channels)
        for (long k = 0; k < channels; k++) y[k] = activated(kind, low, high, x[k] * scale[k] + offset[k]);
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

ROWS back(int kind, float low, float high, long rows, long channels, const float *restrict gradient,
          const float *restrict x, const float *restrict scale, const float *restrict offset,
          const float *restrict mean, const float *restrict level, const float *restrict slope, float *restrict to_x) {
    for (long row = 0; row < rows; row++, x += channels, gradient += channels, to_x += channels)
        for (long k = 0; k < channels; k++) {
            float g = passed(kind, low, high, x[k] * scale[k] + offset[k], gradient[k]);
            to_x[k] = scale[k] * g - level[k] - (x[k] - mean[k]) * slope[k];
        }
}

// Of each part: sums over rows of x - x[0] and of its square, [PARTS][2][channels].
void norm_act_moments(const Shape *shape, const float *x, double *sums) {
    long channels = shape->channels;
    EACH_PART(shape) {
        double *total = sums + 2 * channels * part;
        float block[2 * channels];
        memset(total, 0, sizeof(double) * 2 * channels);
        for (long row = bound(shape, part), end = bound(shape, part + 1), count; row < end; row += count) {
            count = end - row < BLOCK ? end - row : BLOCK;
            memset(block, 0, sizeof block);
            moments(count, channels, x + row * channels, x, block, block + channels);
            for (long k = 0; k < 2 * channels; k++) total[k] += block[k];
        }
    }
}

// The normalized and activated map: y = activation(x × scale + offset).
void norm_act_apply(const Shape *shape, const float *x, const float *scale, const float *offset, float *y) {
    long channels = shape->channels;
    EACH_PART(shape) {
        long row = bound(shape, part), count = bound(shape, part + 1) - row, at = row * channels;
        if (shape->kind == SWISH)
            apply(SWISH, 0, 0, count, channels, x + at, scale, offset, y + at);
        else
            apply(CLAMP, shape->low, shape->high, count, channels, x + at, scale, offset, y + at);
    }
}

// Of each part: sums over rows of the gradient of the normalized map, and of it times x - mean, [PARTS][2][channels].
void norm_act_sums(const Shape *shape, const float *gradient, const float *x, const float *scale, const float *offset,
                   const float *mean, double *sums) {
    long channels = shape->channels;
    EACH_PART(shape) {
        double *total = sums + 2 * channels * part;
        float block[2 * channels];
        memset(total, 0, sizeof(double) * 2 * channels);
        for (long row = bound(shape, part), end = bound(shape, part + 1), count; row < end; row += count) {
            count = end - row < BLOCK ? end - row : BLOCK;
            long at = row * channels;
            memset(block, 0, sizeof block);
            if (shape->kind == SWISH)
                sum(SWISH, 0, 0, count, channels, gradient + at, x + at, scale, offset, mean, block, block + channels);
            else
                sum(CLAMP, shape->low, shape->high, count, channels, gradient + at, x + at, scale, offset, mean, block,
                    block + channels);
            for (long k = 0; k < 2 * channels; k++) total[k] += block[k];
        }
    }
}

// The gradient of x: scale × the normalized map's, less its mean (level) and its part along x (slope).
void norm_act_back(const Shape *shape, const float *gradient, const float *x, const float *scale, const float *offset,
                   const float *mean, const float *level, const float *slope, float *to_x) {
    long channels = shape->channels;
    EACH_PART(shape) {
        long row = bound(shape, part), count = bound(shape, part + 1) - row, at = row * channels;
        if (shape->kind == SWISH)
            back(SWISH, 0, 0, count, channels, gradient + at, x + at, scale, offset, mean, level, slope, to_x + at);
        else
            back(CLAMP, shape->low, shape->high, count, channels, gradient + at, x + at, scale, offset, mean, level,
                 slope, to_x + at);
    }
}
