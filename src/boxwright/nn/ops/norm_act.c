// Batch normalization with its activation, forward and backward, of maps with channels last: float32 [rows, channels].
//
// Each function reads its maps once. Called from norm_act.py, which says what the arguments are.

#include "pointwise.h"

enum { PARTS = 16, BLOCK = 64 };

typedef struct {
    long rows, channels;
    int threads, kind;
    float low, high; // of CLAMP; infinite where there is no bound
} Shape;

// Sums over rows of a map: `parts` of them, each [of_part][channels].
typedef struct {
    long rows, channels;
    int parts, of_part;
    double epsilon;
} Sums;

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

ROWS add(float low, float high, long rows, long channels, const float *restrict x, const float *restrict scale,
         const float *restrict offset, const float *restrict other, float *restrict y) {
    for (long row = 0; row < rows; row++, x += channels, other += channels, y += channels)
        for (long k = 0; k < channels; k++)
            y[k] = activated(CLAMP, low, high, x[k] * scale[k] + offset[k] + other[k]);
}

ROWS add_sum(float low, float high, long rows, long channels, const float *restrict gradient, const float *restrict y,
             const float *restrict x, const float *restrict mean, float *restrict to_sum, float *restrict one,
             float *restrict two) {
    for (long row = 0; row < rows; row++, x += channels, y += channels, gradient += channels, to_sum += channels)
        for (long k = 0; k < channels; k++) {
            float g = passed(CLAMP, low, high, y[k], gradient[k]);
            to_sum[k] = g;
            one[k] += g;
            two[k] += g * (x[k] - mean[k]);
        }
}

ROWS affine(float low, float high, float gain, float shift, long rows, long channels, const float *restrict x,
            const float *restrict scale, const float *restrict offset, float *restrict y) {
    for (long row = 0; row < rows; row++, x += channels, y += channels)
        for (long k = 0; k < channels; k++)
            y[k] = activated(CLAMP, low, high, x[k] * scale[k] + offset[k]) * gain + shift;
}

ROWS affine_sum(float low, float high, long rows, long channels, const float *restrict gradient,
                const float *restrict x, const float *restrict scale, const float *restrict offset,
                const float *restrict mean, float *restrict one, float *restrict two, float *restrict three,
                float *restrict four) {
    for (long row = 0; row < rows; row++, x += channels, gradient += channels)
        for (long k = 0; k < channels; k++) {
            float v = x[k] * scale[k] + offset[k], g = passed(CLAMP, low, high, v, gradient[k]);
            one[k] += g;
            two[k] += g * (x[k] - mean[k]);
            three[k] += gradient[k] * activated(CLAMP, low, high, v);
            four[k] += gradient[k];
        }
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
          const float *restrict mean, const float *restrict factor, const float *restrict level,
          const float *restrict slope, float *restrict to_x) {
    for (long row = 0; row < rows; row++, x += channels, gradient += channels, to_x += channels)
        for (long k = 0; k < channels; k++) {
            float g = passed(kind, low, high, x[k] * scale[k] + offset[k], gradient[k]);
            to_x[k] = factor[k] * g - level[k] - (x[k] - mean[k]) * slope[k];
        }
}

ROWS center(long rows, long channels, const float *restrict x, const float *restrict scale, const float *restrict mean,
            const float *restrict level, const float *restrict slope, float *restrict gradient) {
    for (long row = 0; row < rows; row++, x += channels, gradient += channels)
        for (long k = 0; k < channels; k++)
            gradient[k] = scale[k] * gradient[k] - level[k] - (x[k] - mean[k]) * slope[k];
}

// Of each part: sums over rows of x - x[0] and of its square, [PARTS][2][channels].
void norm_act_moments(const Shape *shape, const float *x, double *sums) {
    long rows = shape->rows, channels = shape->channels;
    #pragma omp parallel for num_threads(shape->threads) schedule(static)
    for (int part = 0; part < PARTS; part++) {
        double *total = sums + 2 * channels * part;
        float block[2 * channels];
        memset(total, 0, sizeof(double) * 2 * channels);
        for (long row = bound(rows, PARTS, part), end = bound(rows, PARTS, part + 1), count; row < end; row += count) {
            count = end - row < BLOCK ? end - row : BLOCK;
            memset(block, 0, sizeof block);
            moments(count, channels, x + row * channels, x, block, block + channels);
            for (long k = 0; k < 2 * channels; k++) total[k] += block[k];
        }
    }
}

static double total(const Sums *about, const double *sums, int which, long channel) {
    double found = 0;
    for (int part = 0; part < about->parts; part++)
        found += sums[(part * about->of_part + which) * about->channels + channel];
    return found;
}

// A product that is rounded before it is added to something, as PyTorch's operators do: resumed runs keep their bits.
static double rounded(double product) {
    volatile double one = product;
    return one;
}

// What the sums of norm_act_moments say of a batch, float [5][channels]: scale and offset of y = x × scale + offset,
// mean, inverse deviation and variance.
void norm_act_scale(const Sums *about, const double *sums, const float *x, const float *gain, const float *bias,
                    float *vectors) {
    long channels = about->channels;
    for (long k = 0; k < channels; k++) {
        // Of differences from the first row's values: a mean of squares loses digits where the mean is large.
        double first = total(about, sums, 0, k) / about->rows, second = total(about, sums, 1, k) / about->rows;
        double mean = x[k] + first, variance = second - rounded(first * first);
        double inverse = 1 / sqrt(variance + about->epsilon), scale = gain[k] * inverse;
        vectors[k] = scale;
        vectors[channels + k] = bias[k] - rounded(mean * scale);
        vectors[2 * channels + k] = mean;
        vectors[3 * channels + k] = inverse;
        vectors[4 * channels + k] = variance;
    }
}

// From the sums of norm_act_sums, times a factor, float [4][channels]: the gradients of gain and bias, and what
// normalization takes from the gradient of its outputs: the mean (level), and the slope along the inputs.
void norm_act_slopes(const Sums *about, const double *sums, const float *factor, const float *scale,
                     const float *inverse, float *vectors) {
    long channels = about->channels;
    for (long k = 0; k < channels; k++) {
        double to_bias = *factor * total(about, sums, 0, k);
        double to_gain = *factor * total(about, sums, 1, k) * inverse[k];
        float both = scale[k] * inverse[k];
        vectors[k] = to_gain;
        vectors[channels + k] = to_bias;
        vectors[2 * channels + k] = scale[k] * to_bias / about->rows;
        vectors[3 * channels + k] = both * to_gain / about->rows;
    }
}

// The normalized and activated map: y = activation(x × scale + offset).
void norm_act_apply(const Shape *shape, const float *x, const float *scale, const float *offset, float *y) {
    long rows = shape->rows, channels = shape->channels;
    #pragma omp parallel for num_threads(shape->threads) schedule(static)
    for (int part = 0; part < PARTS; part++) {
        long row = bound(rows, PARTS, part), count = bound(rows, PARTS, part + 1) - row, at = row * channels;
        if (shape->kind == SWISH)
            apply(SWISH, 0, 0, count, channels, x + at, scale, offset, y + at);
        else
            apply(CLAMP, shape->low, shape->high, count, channels, x + at, scale, offset, y + at);
    }
}

// Of each part: sums over rows of the gradient of the normalized map, and of it times x - mean, [PARTS][2][channels].
void norm_act_sums(const Shape *shape, const float *gradient, const float *x, const float *scale, const float *offset,
                   const float *mean, double *sums) {
    long rows = shape->rows, channels = shape->channels;
    #pragma omp parallel for num_threads(shape->threads) schedule(static)
    for (int part = 0; part < PARTS; part++) {
        double *total = sums + 2 * channels * part;
        float block[2 * channels];
        memset(total, 0, sizeof(double) * 2 * channels);
        for (long row = bound(rows, PARTS, part), end = bound(rows, PARTS, part + 1), count; row < end; row += count) {
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

// The gradient of x: factor × the activation's, less its mean (level) and its part along x (slope).
void norm_act_back(const Shape *shape, const float *gradient, const float *x, const float *scale, const float *offset,
                   const float *mean, const float *factor, const float *level, const float *slope, float *to_x) {
    long rows = shape->rows, channels = shape->channels;
    #pragma omp parallel for num_threads(shape->threads) schedule(static)
    for (int part = 0; part < PARTS; part++) {
        long row = bound(rows, PARTS, part), count = bound(rows, PARTS, part + 1) - row, at = row * channels;
        if (shape->kind == SWISH)
            back(SWISH, 0, 0, count, channels, gradient + at, x + at, scale, offset, mean, factor, level, slope,
                 to_x + at);
        else
            back(CLAMP, shape->low, shape->high, count, channels, gradient + at, x + at, scale, offset, mean, factor,
                 level, slope, to_x + at);
    }
}

// The same where the gradient of the normalized map is known, in place of that.
void norm_act_center(const Shape *shape, const float *x, const float *scale, const float *mean, const float *level,
                     const float *slope, float *gradient) {
    long rows = shape->rows, channels = shape->channels;
    #pragma omp parallel for num_threads(shape->threads) schedule(static)
    for (int part = 0; part < PARTS; part++) {
        long row = bound(rows, PARTS, part), count = bound(rows, PARTS, part + 1) - row, at = row * channels;
        center(count, channels, x + at, scale, mean, level, slope, gradient + at);
    }
}

// A map normalized, added to another and clamped: y = clamp(x × scale + offset + other).
void norm_act_add(const Shape *shape, const float *x, const float *scale, const float *offset, const float *other,
                  float *y) {
    long rows = shape->rows, channels = shape->channels;
    #pragma omp parallel for num_threads(shape->threads) schedule(static)
    for (int part = 0; part < PARTS; part++) {
        long row = bound(rows, PARTS, part), count = bound(rows, PARTS, part + 1) - row, at = row * channels;
        add(shape->low, shape->high, count, channels, x + at, scale, offset, other + at, y + at);
    }
}

// The gradient of the sum, and the sums of norm_act_sums of it. What the clamp has let pass is seen in y.
void norm_act_add_sums(const Shape *shape, const float *gradient, const float *y, const float *x, const float *mean,
                       float *to_sum, double *sums) {
    long rows = shape->rows, channels = shape->channels;
    #pragma omp parallel for num_threads(shape->threads) schedule(static)
    for (int part = 0; part < PARTS; part++) {
        double *total = sums + 2 * channels * part;
        float block[2 * channels];
        memset(total, 0, sizeof(double) * 2 * channels);
        for (long row = bound(rows, PARTS, part), end = bound(rows, PARTS, part + 1), count; row < end; row += count) {
            count = end - row < BLOCK ? end - row : BLOCK;
            long at = row * channels;
            memset(block, 0, sizeof block);
            add_sum(shape->low, shape->high, count, channels, gradient + at, y + at, x + at, mean, to_sum + at, block,
                    block + channels);
            for (long k = 0; k < 2 * channels; k++) total[k] += block[k];
        }
    }
}

// A map normalized, clamped, then scaled and shifted as a whole: y = gain × clamp(x × scale + offset) + shift.
void norm_act_affine(const Shape *shape, const float *x, const float *scale, const float *offset, const float *gain,
                     const float *shift, float *y) {
    long rows = shape->rows, channels = shape->channels;
    #pragma omp parallel for num_threads(shape->threads) schedule(static)
    for (int part = 0; part < PARTS; part++) {
        long row = bound(rows, PARTS, part), count = bound(rows, PARTS, part + 1) - row, at = row * channels;
        affine(shape->low, shape->high, *gain, *shift, count, channels, x + at, scale, offset, y + at);
    }
}

// Of each part, [PARTS][4][channels]: norm_act_sums for a gain of 1; sums of the gradient times the clamped map, and of
// the gradient.
void norm_act_affine_sums(const Shape *shape, const float *gradient, const float *x, const float *scale,
                          const float *offset, const float *mean, double *sums) {
    long rows = shape->rows, channels = shape->channels;
    #pragma omp parallel for num_threads(shape->threads) schedule(static)
    for (int part = 0; part < PARTS; part++) {
        double *total = sums + 4 * channels * part;
        float block[4 * channels];
        memset(total, 0, sizeof(double) * 4 * channels);
        for (long row = bound(rows, PARTS, part), end = bound(rows, PARTS, part + 1), count; row < end; row += count) {
            count = end - row < BLOCK ? end - row : BLOCK;
            long at = row * channels;
            memset(block, 0, sizeof block);
            affine_sum(shape->low, shape->high, count, channels, gradient + at, x + at, scale, offset, mean, block,
                       block + channels, block + 2 * channels, block + 3 * channels);
            for (long k = 0; k < 4 * channels; k++) total[k] += block[k];
        }
    }
}
