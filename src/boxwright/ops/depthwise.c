// An activation and a depthwise convolution after it, forward and backward, of maps with channels last: float32
// [batch, height, width, channels].
//
// The input is scaled and shifted before the activation, as by batch normalization. The activated map is never written:
// a few of its rows at a time stay in the cache. Called from depthwise.py, which says what the arguments are.

#include <omp.h>

#include "pointwise.h"

// Of a row, as many channels are computed at once as a vector has lanes; a processor with shorter ones uses several.
enum { LANES = 16, MOST = 5, TAPS = MOST * MOST };
typedef float Lanes __attribute__((vector_size(4 * LANES), aligned(4)));

typedef struct {
    long batch, height, width, channels, out_height, out_width;
    int side, stride, top, left; // of the kernel; pixels of padding
    int threads, parts, kind;
    float low, high; // of CLAMP; infinite where there is no bound
} Shape;

// The last channels may be fewer than the lanes; `count` is a constant wherever that is frequent.
INLINE Lanes get(const float *from, long count) {
    Lanes value = {0};
    memcpy(&value, from, count * sizeof(float));
    return value;
}

INLINE void put(float *to, Lanes value, long count) { memcpy(to, &value, count * sizeof(float)); }

static long lanes_from(const Shape *shape, long channel) {
    return shape->channels - channel < LANES ? shape->channels - channel : LANES;
}

// Pixels of a row with its padding, and those that the last window reads ahead.
static long padded(const Shape *shape) {
    long read = shape->out_width * shape->stride + shape->side, row = shape->left + shape->width;
    return read < row ? row : read;
}

// Chooses the version of a function whose kind, side, stride and lanes are constants.
#define OF_KIND(shape, count, call)                                                                                    \
    do {                                                                                                               \
        if ((shape)->kind == SWISH && (count) == LANES)                                                                \
            call(SWISH, LANES);                                                                                        \
        else if ((shape)->kind == SWISH)                                                                               \
            call(SWISH, count);                                                                                        \
        else if ((count) == LANES)                                                                                     \
            call(CLAMP, LANES);                                                                                        \
        else                                                                                                           \
            call(CLAMP, count);                                                                                        \
    } while (0)
#define OF_WINDOW(shape, count, call)                                                                                  \
    do {                                                                                                               \
        if ((shape)->side == 3 && (shape)->stride == 1 && (count) == LANES)                                            \
            call(3, 1, LANES);                                                                                         \
        else if ((shape)->side == 3 && (shape)->stride == 2 && (count) == LANES)                                       \
            call(3, 2, LANES);                                                                                         \
        else if ((shape)->side == 5 && (shape)->stride == 1 && (count) == LANES)                                       \
            call(5, 1, LANES);                                                                                         \
        else if ((shape)->side == 5 && (shape)->stride == 2 && (count) == LANES)                                       \
            call(5, 2, LANES);                                                                                         \
        else                                                                                                           \
            call((shape)->side, (shape)->stride, count);                                                               \
    } while (0)

// The activated row of some channels, pixel by pixel: y [width][LANES].
INLINE void activate_lanes(int kind, const Shape *shape, long count, const float *restrict x,
                           const float *restrict scale, const float *restrict offset, float *restrict y) {
    Lanes gain = get(scale, count), shift = get(offset, count);
    for (long pixel = 0; pixel < shape->width; pixel++, x += shape->channels, y += LANES) {
        Lanes value = get(x, count) * gain + shift;
        for (int k = 0; k < LANES; k++) value[k] = activated(kind, shape->low, shape->high, value[k]);
        put(y, value, LANES);
    }
}

ROWS activate(const Shape *shape, long count, const float *x, const float *scale, const float *offset, float *y) {
#define CALL(kind, count) activate_lanes(kind, shape, count, x, scale, offset, y)
    OF_KIND(shape, count, CALL);
#undef CALL
}

// A row of the output: windows of the lines that the kernel covers move over them by the stride.
INLINE void convolve_lanes(int side, int stride, const Shape *shape, long count, const float *const *lines,
                           const Lanes *taps, float *restrict y) {
    Lanes tap[TAPS], window[TAPS];
    for (int t = 0; t < side * side; t++) tap[t] = taps[t];
    for (int t = 0; t < side * side; t++) window[t] = get(lines[t / side] + t % side * LANES, LANES);
    for (long pixel = 0; pixel < shape->out_width; pixel++, y += shape->channels) {
        Lanes sum = {0};
        for (int t = 0; t < side * side; t++) sum += window[t] * tap[t];
        put(y, sum, count);
        for (int t = 0; t < side * side; t++)
            window[t] = t % side < side - stride
                            ? window[t + stride]
                            : get(lines[t / side] + ((pixel + 1) * stride + t % side) * LANES, LANES);
    }
}

ROWS convolve(const Shape *shape, long count, const float *const *lines, const Lanes *taps, float *y) {
#define CALL(side, stride, count) convolve_lanes(side, stride, shape, count, lines, taps, y)
    OF_WINDOW(shape, count, CALL);
#undef CALL
}

// One line of the kernel: adds to the gradients of an activated row x, and of the line's taps.
INLINE void back_lanes(int side, int stride, const Shape *shape, long count, const float *restrict gradient,
                       const float *restrict x, const Lanes *taps, float *restrict to_x, Lanes *to_taps) {
    Lanes tap[MOST], sum[MOST], from[MOST], to[MOST];
    for (int k = 0; k < side; k++) {
        tap[k] = taps[k], sum[k] = to_taps[k];
        from[k] = get(x + k * LANES, LANES), to[k] = get(to_x + k * LANES, LANES);
    }
    for (long pixel = 0; pixel < shape->out_width; pixel++, gradient += shape->channels) {
        Lanes value = get(gradient, count);
        for (int k = 0; k < side; k++) to[k] += tap[k] * value, sum[k] += from[k] * value;
        for (int k = 0; k < stride; k++) put(to_x + k * LANES, to[k], LANES);
        x += stride * LANES, to_x += stride * LANES;
        for (int k = 0; k < side; k++) {
            int kept = k < side - stride;
            from[k] = kept ? from[k + stride] : get(x + k * LANES, LANES);
            to[k] = kept ? to[k + stride] : get(to_x + k * LANES, LANES);
        }
    }
    for (int k = 0; k < side - stride; k++) put(to_x + k * LANES, to[k], LANES);
    for (int k = 0; k < side; k++) to_taps[k] = sum[k];
}

ROWS back(const Shape *shape, long count, const float *gradient, const float *x, const Lanes *taps, float *to_x,
          Lanes *to_taps) {
#define CALL(side, stride, count) back_lanes(side, stride, shape, count, gradient, x, taps, to_x, to_taps)
    OF_WINDOW(shape, count, CALL);
#undef CALL
}

// The gradient of the scaled and shifted row from the activated one's, [width][LANES]; sums of it and of it times
// x - mean.
INLINE void pass_lanes(int kind, const Shape *shape, long count, const float *restrict gradient,
                       const float *restrict x, const float *restrict scale, const float *restrict offset,
                       const float *restrict mean, Lanes *sums, float *restrict to_x) {
    Lanes gain = get(scale, count), shift = get(offset, count), center = get(mean, count), one = {0}, two = {0};
    for (long pixel = 0; pixel < shape->width; pixel++, x += shape->channels, to_x += shape->channels) {
        Lanes given = get(x, count), value = given * gain + shift, slope = get(gradient + pixel * LANES, LANES);
        for (int k = 0; k < LANES; k++) slope[k] = passed(kind, shape->low, shape->high, value[k], slope[k]);
        one += slope;
        two += slope * (given - center);
        put(to_x, slope, count);
    }
    sums[0] = one, sums[1] = two;
}

ROWS pass(const Shape *shape, long count, const float *gradient, const float *x, const float *scale,
          const float *offset, const float *mean, Lanes *sums, float *to_x) {
#define CALL(kind, count) pass_lanes(kind, shape, count, gradient, x, scale, offset, mean, sums, to_x)
    OF_KIND(shape, count, CALL);
#undef CALL
}

// The activated rows that the kernel covers at a row of the output; the last is zeros, as above and below the map.
typedef struct {
    float *rows; // [side + 1][channels / LANES][padded][LANES]
    long size, held[MOST];
} Ring;

// The place of a row in the ring, where it is computed unless an earlier row of the output has read it.
static const float *activated_row(Ring *ring, const Shape *shape, long row, const float *x, const float *scale,
                                  const float *offset) {
    int slot = row % shape->side;
    float *to = ring->rows + slot * ring->size;
    if (ring->held[slot] != row)
        for (long channel = 0; channel < shape->channels; channel += LANES)
            activate(shape, lanes_from(shape, channel), x + row * shape->width * shape->channels + channel,
                     scale + channel, offset + channel, to + channel * padded(shape) + shape->left * LANES);
    ring->held[slot] = row;
    return to;
}

static void convolve_row(Ring *ring, const Shape *shape, long row, const float *x, const float *scale,
                         const float *offset, const float *taps, float *y) {
    long channels = shape->channels, image = row / shape->out_height * shape->height;
    long first = row % shape->out_height * shape->stride - shape->top;
    const float *lines[MOST];
    for (int k = 0; k < shape->side; k++) {
        int outside = first + k < 0 || first + k >= shape->height;
        lines[k] = outside ? ring->rows + shape->side * ring->size
                           : activated_row(ring, shape, image + first + k, x, scale, offset);
    }
    for (long channel = 0; channel < channels; channel += LANES) {
        long count = lanes_from(shape, channel);
        Lanes tap[TAPS];
        for (int t = 0; t < shape->side * shape->side; t++) tap[t] = get(taps + t * channels + channel, count);
        convolve(shape, count, lines, tap, y + row * shape->out_width * channels + channel);
        for (int k = 0; k < shape->side; k++) lines[k] += padded(shape) * LANES;
    }
}

// The convolved map of the activated x × scale + offset; taps [side × side][channels].
// scratch: zeros [threads][side + 1][channels / LANES][padded][LANES].
void depthwise_forward(const Shape *shape, const float *x, const float *scale, const float *offset, const float *taps,
                       float *scratch, float *y) {
    long rows = shape->batch * shape->out_height;
    long size = (shape->channels + LANES - 1) / LANES * padded(shape) * LANES;
    #pragma omp parallel for num_threads(shape->threads) schedule(static)
    for (int part = 0; part < shape->parts; part++) {
        Ring ring = {scratch + omp_get_thread_num() * (shape->side + 1) * size, size, {-1, -1, -1, -1, -1}};
        long end = bound(rows, shape->parts, part + 1);
        for (long row = bound(rows, shape->parts, part); row < end; row++)
            convolve_row(&ring, shape, row, x, scale, offset, taps, y);
    }
}

// Of one row of the input and some channels: the gradient, and what it adds to the sums of its part.
static void back_row(const Shape *shape, long row, long channel, const float *gradient, const float *x,
                     const float *scale, const float *offset, const float *mean, const float *taps, float *scratch,
                     float *to_x, double *sums) {
    long channels = shape->channels, count = lanes_from(shape, channel), at = row * shape->width * channels + channel;
    long image = row / shape->height * shape->out_height, size = padded(shape) * LANES;
    int side = shape->side;
    float *active = scratch, *slope = scratch + size;
    Lanes sum[TAPS + 2];
    memset(sum, 0, sizeof sum);
    memset(slope, 0, size * sizeof(float));
    activate(shape, count, x + at, scale + channel, offset + channel, active + shape->left * LANES);
    for (int line = 0; line < side; line++) {
        long from = row % shape->height + shape->top - line;
        if (from < 0 || from % shape->stride || from / shape->stride >= shape->out_height) continue;
        long out = (image + from / shape->stride) * shape->out_width * channels + channel;
        Lanes tap[MOST];
        for (int k = 0; k < side; k++) tap[k] = get(taps + (line * side + k) * channels + channel, count);
        back(shape, count, gradient + out, active, tap, slope, sum + line * side);
    }
    pass(shape, count, slope + shape->left * LANES, x + at, scale + channel, offset + channel, mean + channel,
         sum + side * side, to_x + at);
    for (int t = 0; t < side * side + 2; t++)
        for (int k = 0; k < count; k++) sums[t * channels + channel + k] += sum[t][k];
}

// The gradient of x × scale + offset. Of each part: the sums of the taps' gradients, of that gradient, and of it times
// x - mean, [parts][side × side + 2][channels].
// scratch: zeros [threads][2][padded][LANES].
void depthwise_back(const Shape *shape, const float *gradient, const float *x, const float *scale, const float *offset,
                    const float *mean, const float *taps, float *scratch, float *to_x, double *sums) {
    long rows = shape->batch * shape->height, channels = shape->channels;
    long size = (shape->side * shape->side + 2) * channels;
    #pragma omp parallel for num_threads(shape->threads) schedule(static)
    for (int part = 0; part < shape->parts; part++) {
        float *own = scratch + omp_get_thread_num() * 2 * padded(shape) * LANES;
        memset(sums + part * size, 0, size * sizeof(double));
        long end = bound(rows, shape->parts, part + 1);
        for (long row = bound(rows, shape->parts, part); row < end; row++)
            for (long channel = 0; channel < channels; channel += LANES)
                back_row(shape, row, channel, gradient, x, scale, offset, mean, taps, own, to_x, sums + part * size);
    }
}
