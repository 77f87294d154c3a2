// An activation and a depthwise convolution after it, forward and backward, of maps with channels last: float32
// [batch, height, width, channels].
//
// The input is scaled and shifted before the activation, as by batch normalization. The activated map is never written:
// a few of its rows at a time stay in the cache. For inference: a depthwise convolution and an activation after it.
// Called from depthwise.py, which says what the arguments are.

#include <omp.h>

#include "lanes.h"
#include "pointwise.h"

// Rows that windows move over are kept by chunks of as many channels as a vector has lanes: [chunks][pixels][LANES].
// BLOCK pixels are summed at once, each in a register; kernels have at most MOST taps a side.
enum { BLOCK = 8, MOST = 5, TAPS = MOST * MOST };

typedef struct {
    long batch, height, width, channels, out_height, out_width;
    int side, stride, top, left; // of the kernel; pixels of padding
    int threads, parts, kind;
    float low, high; // of CLAMP; infinite where there is no bound
} Shape;

static long lanes_from(const Shape *shape, long channel) {
    return shape->channels - channel < LANES ? shape->channels - channel : LANES;
}

static long chunks(const Shape *shape) { return (shape->channels + LANES - 1) / LANES; }

// Pixels of a row with its padding, and those that the last window reads ahead.
static long padded(const Shape *shape) {
    long read = shape->out_width * shape->stride + shape->side, row = shape->left + shape->width;
    return read < row ? row : read;
}

// Pixels of a row of the output with zeros around it, as many as windows on it read: side - 1 of them are before it.
static long framed(const Shape *shape) {
    long read = (shape->left + shape->width - 1) / shape->stride + 1;
    return shape->side - 1 + (read < shape->out_width ? shape->out_width : read);
}

// Chooses the version of a function whose kernel's side and stride are constants.
#define OF_WINDOW(shape, call)                                                                                         \
    do {                                                                                                               \
        if ((shape)->side == 3 && (shape)->stride == 1)                                                                \
            call(3, 1);                                                                                                \
        else if ((shape)->side == 3)                                                                                   \
            call(3, 2);                                                                                                \
        else if ((shape)->stride == 1)                                                                                 \
            call(5, 1);                                                                                                \
        else                                                                                                           \
            call(5, 2);                                                                                                \
    } while (0)

// One pixel's activated channels y, and for Swish its slope there.
INLINE void activate_pixel(int kind, int sloped, const Shape *shape, const float *x, const float *scale,
                           const float *offset, long count, float *y, float *slope) {
    Lanes value = get(x, count) * get(scale, count) + get(offset, count), active, along = {0};
    for (int k = 0; k < LANES; k++) {
        if (kind == SWISH && sloped) {
            float s = sigmoid(value[k]);
            active[k] = value[k] * s;
            along[k] = s * (1.0f + value[k] * (1.0f - s));
        } else
            active[k] = activated(kind, shape->low, shape->high, value[k]);
    }
    put(y, active, LANES);
    if (kind == SWISH && sloped) put(slope, along, LANES);
}

INLINE void activate_row(int kind, int sloped, const Shape *shape, const float *x, const float *scale,
                         const float *offset, float *y, float *slope) {
    long size = padded(shape) * LANES, whole = shape->channels / LANES * LANES;
    for (long pixel = 0; pixel < shape->width; pixel++, x += shape->channels, y += LANES, slope += LANES) {
        for (long channel = 0, at = 0; channel < whole; channel += LANES, at += size)
            activate_pixel(kind, sloped, shape, x + channel, scale + channel, offset + channel, LANES, y + at,
                           slope + at);
        if (whole < shape->channels) {
            long at = whole / LANES * size;
            activate_pixel(kind, sloped, shape, x + whole, scale + whole, offset + whole, shape->channels - whole,
                           y + at, slope + at);
        }
    }
}

// An activated row; the slope is written for Swish alone.
ROWS activate(const Shape *shape, const float *x, const float *scale, const float *offset, float *y) {
    if (shape->kind == SWISH)
        activate_row(SWISH, 0, shape, x, scale, offset, y, y);
    else
        activate_row(CLAMP, 0, shape, x, scale, offset, y, y);
}

ROWS activate_and_slope(const Shape *shape, const float *x, const float *scale, const float *offset, float *y,
                        float *slope) {
    if (shape->kind == SWISH)
        activate_row(SWISH, 1, shape, x, scale, offset, y, slope);
    else
        activate_row(CLAMP, 1, shape, x, scale, offset, y, slope);
}

// Some pixels of the output.
INLINE void convolve_pixels(int side, int stride, int pixels, const float *const *lines, long first, const Lanes *taps,
                            long channels, long count, float *y) {
    Lanes sum[BLOCK];
    #pragma GCC unroll 8
    for (int p = 0; p < pixels; p++) sum[p] = (Lanes){0};
    for (int line = 0; line < side; line++)
        for (int k = 0; k < side; k++) {
            const float *from = lines[line] + (first * stride + k) * LANES;
            Lanes tap = taps[line * side + k];
            #pragma GCC unroll 8
            for (int p = 0; p < pixels; p++) sum[p] += get(from + p * stride * LANES, LANES) * tap;
        }
    #pragma GCC unroll 8
    for (int p = 0; p < pixels; p++)
        put(y + p * channels, sum[p], count);
}

INLINE void convolve_lanes(int side, int stride, const Shape *shape, long count, const float *const *lines,
                           const Lanes *taps, float *restrict y) {
    long channels = shape->channels, pixel = 0;
    for (; pixel + BLOCK <= shape->out_width; pixel += BLOCK)
        convolve_pixels(side, stride, BLOCK, lines, pixel, taps, channels, count, y + pixel * channels);
    for (; pixel < shape->out_width; pixel++)
        convolve_pixels(side, stride, 1, lines, pixel, taps, channels, count, y + pixel * channels);
}

// A row of the output, of the lines that the kernel covers.
ROWS convolve(const Shape *shape, long count, const float *const *lines, const Lanes *taps, float *y) {
#define CALL(side, stride) convolve_lanes(side, stride, shape, count, lines, taps, y)
    OF_WINDOW(shape, CALL);
#undef CALL
}

// Lines of the output's gradient, framed by zeros, and the kernel's lines that brought a row of the input there.
typedef struct {
    const float *gradients[MOST];
    const Lanes *taps[MOST];
    int count, line[MOST];
} Lines;

// The gradient of some pixels of the activated row, `stride` apart, in whose windows the same taps are.
INLINE void back_pixels(int stride, int pixels, const Lines *lines, long first, int last_tap, float *to_x) {
    Lanes sum[BLOCK];
    #pragma GCC unroll 8
    for (int p = 0; p < pixels; p++) sum[p] = (Lanes){0};
    for (int line = 0; line < lines->count; line++) {
        const float *from = lines->gradients[line] + first * LANES;
        for (int k = last_tap; k >= 0; k -= stride, from += LANES) {
            Lanes tap = lines->taps[line][k];
            #pragma GCC unroll 8
            for (int p = 0; p < pixels; p++) sum[p] += tap * get(from + p * LANES, LANES);
        }
    }
    #pragma GCC unroll 8
    for (int p = 0; p < pixels; p++) put(to_x + p * stride * LANES, sum[p], LANES);
}

// The gradient of the activated row, [width][LANES].
INLINE void back_lanes(int side, int stride, const Shape *shape, const Lines *lines, float *restrict to_x) {
    for (int start = 0; start < stride && start < shape->width; start++) {
        long pixels = (shape->width - start + stride - 1) / stride, pixel = 0;
        int last_tap = side - 1;
        while ((start + shape->left - last_tap) % stride) last_tap--;
        // Where the gradient's row begins, side - 1 zeros are before it: the first pixel may be in a window there.
        long first = (start + shape->left - last_tap) / stride + side - 1;
        for (; pixel + BLOCK <= pixels; pixel += BLOCK)
            back_pixels(stride, BLOCK, lines, first + pixel, last_tap, to_x + (start + pixel * stride) * LANES);
        for (; pixel < pixels; pixel++)
            back_pixels(stride, 1, lines, first + pixel, last_tap, to_x + (start + pixel * stride) * LANES);
    }
}

ROWS back(const Shape *shape, const Lines *lines, float *to_x) {
#define CALL(side, stride) back_lanes(side, stride, shape, lines, to_x)
    OF_WINDOW(shape, CALL);
#undef CALL
}

// The gradients of one line's taps, from that of a row of the output and the activated row below them.
INLINE void tap_lanes(int side, int stride, long pixels, const float *restrict gradient, const float *restrict x,
                      Lanes *to_taps) {
    Lanes sum[MOST];
    for (int k = 0; k < side; k++) sum[k] = (Lanes){0};
    for (long pixel = 0; pixel < pixels; pixel++, gradient += LANES, x += stride * LANES) {
        Lanes value = get(gradient, LANES);
        for (int k = 0; k < side; k++) sum[k] += get(x + k * LANES, LANES) * value;
    }
    for (int k = 0; k < side; k++) to_taps[k] = sum[k];
}

ROWS tap(const Shape *shape, const float *gradient, const float *x, Lanes *to_taps) {
#define CALL(side, stride) tap_lanes(side, stride, shape->out_width, gradient, x, to_taps)
    OF_WINDOW(shape, CALL);
#undef CALL
}

// The gradient of the scaled and shifted row from the activated one's, [width][LANES]; sums of it and of it times
// x - mean.
INLINE void pass_lanes(int kind, const Shape *shape, long count, const float *restrict gradient,
                       const float *restrict slopes, const float *restrict x, const float *restrict scale,
                       const float *restrict offset, const float *restrict mean, Lanes *sums, float *restrict to_x) {
    Lanes gain = get(scale, count), shift = get(offset, count), center = get(mean, count), one = {0}, two = {0};
    for (long pixel = 0; pixel < shape->width; pixel++, x += shape->channels, to_x += shape->channels) {
        Lanes given = get(x, count), passing = get(gradient + pixel * LANES, LANES);
        if (kind == SWISH)
            passing *= get(slopes + pixel * LANES, LANES);
        else {
            Lanes value = given * gain + shift;
            for (int k = 0; k < LANES; k++) passing[k] = passed(CLAMP, shape->low, shape->high, value[k], passing[k]);
        }
        one += passing;
        two += passing * (given - center);
        put(to_x, passing, count);
    }
    sums[0] = one, sums[1] = two;
}

ROWS pass(const Shape *shape, long count, const float *gradient, const float *slopes, const float *x,
          const float *scale, const float *offset, const float *mean, Lanes *sums, float *to_x) {
#define CALL(kind, count) pass_lanes(kind, shape, count, gradient, slopes, x, scale, offset, mean, sums, to_x)
    if (shape->kind == SWISH && count == LANES)
        CALL(SWISH, LANES);
    else if (shape->kind == SWISH)
        CALL(SWISH, count);
    else if (count == LANES)
        CALL(CLAMP, LANES);
    else
        CALL(CLAMP, count);
#undef CALL
}

// The rows of a map that the kernel covers at a place, by chunks. What surrounds a row is zero.
typedef struct {
    float *rows; // [side][chunks][pixels][LANES]
    long size, held[MOST];
} Ring;

static Ring ring_of(float *rows, const Shape *shape, long pixels) {
    return (Ring){rows, chunks(shape) * pixels * LANES, {-1, -1, -1, -1, -1}};
}

// Where a row of the input is, activated; computed unless an earlier row of the output has read it.
static const float *activated_row(Ring *ring, const Shape *shape, long row, const float *x, const float *scale,
                                  const float *offset) {
    int slot = row % shape->side;
    float *to = ring->rows + slot * ring->size;
    if (ring->held[slot] != row)
        activate(shape, x + row * shape->width * shape->channels, scale, offset, to + shape->left * LANES);
    ring->held[slot] = row;
    return to;
}

static void convolve_row(Ring *ring, const float *zeros, const Shape *shape, long row, const float *x,
                         const float *scale, const float *offset, const float *taps, float *y) {
    long channels = shape->channels, image = row / shape->out_height * shape->height;
    long first = row % shape->out_height * shape->stride - shape->top;
    const float *lines[MOST];
    for (int k = 0; k < shape->side; k++) {
        int outside = first + k < 0 || first + k >= shape->height;
        lines[k] = outside ? zeros : activated_row(ring, shape, image + first + k, x, scale, offset);
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
// scratch: zeros [threads][side + 1][chunks][padded][LANES].
void depthwise_forward(const Shape *shape, const float *x, const float *scale, const float *offset, const float *taps,
                       float *scratch, float *y) {
    long rows = shape->batch * shape->out_height, size = chunks(shape) * padded(shape) * LANES;
    #pragma omp parallel for num_threads(shape->threads) schedule(static)
    for (int part = 0; part < shape->parts; part++) {
        float *own = scratch + omp_get_thread_num() * (shape->side + 1) * size;
        Ring ring = ring_of(own, shape, padded(shape));
        long end = bound(rows, shape->parts, part + 1);
        for (long row = bound(rows, shape->parts, part); row < end; row++)
            convolve_row(&ring, own + shape->side * size, shape, row, x, scale, offset, taps, y);
    }
}

// Where a row of the output's gradient is, framed by zeros; copied unless an earlier row of the input has read it.
static const float *framed_row(Ring *ring, const Shape *shape, long row, const float *gradient) {
    int slot = row % shape->side;
    float *to = ring->rows + slot * ring->size + (shape->side - 1) * LANES;
    const float *from = gradient + row * shape->out_width * shape->channels;
    if (ring->held[slot] != row)
        for (long pixel = 0; pixel < shape->out_width; pixel++, from += shape->channels, to += LANES)
            for (long channel = 0, at = 0; channel < shape->channels; channel += LANES, at += framed(shape) * LANES) {
                long count = lanes_from(shape, channel);
                if (count == LANES)
                    put(to + at, get(from + channel, LANES), LANES);
                else
                    put(to + at, get(from + channel, count), LANES);
            }
    ring->held[slot] = row;
    return ring->rows + slot * ring->size;
}

// Of one row of the input: the gradient, and what it adds to the sums of its part.
// scratch: [chunks][padded][LANES] twice, and [width][LANES].
static void back_row(Ring *ring, const Shape *shape, long row, const float *gradient, const float *x,
                     const float *scale, const float *offset, const float *mean, const float *taps, float *scratch,
                     float *to_x, double *sums) {
    long channels = shape->channels, image = row / shape->height * shape->out_height;
    long place = row * shape->width * channels;
    long size = padded(shape) * LANES, left = shape->left * LANES;
    int side = shape->side;
    float *active = scratch, *slopes = active + chunks(shape) * size, *passing = slopes + chunks(shape) * size;
    Lines lines = {.count = 0};
    activate_and_slope(shape, x + place, scale, offset, active + left, slopes + left);
    for (int line = 0; line < side; line++) {
        long from = row % shape->height + shape->top - line;
        if (from < 0 || from % shape->stride || from / shape->stride >= shape->out_height) continue;
        lines.line[lines.count] = line;
        lines.gradients[lines.count++] = framed_row(ring, shape, image + from / shape->stride, gradient);
    }
    for (long channel = 0; channel < channels; channel += LANES, active += size, slopes += size) {
        long count = lanes_from(shape, channel);
        Lanes sum[TAPS + 2], weights[TAPS];
        memset(sum, 0, sizeof sum);
        for (int t = 0; t < side * side; t++) weights[t] = get(taps + t * channels + channel, count);
        for (int line = 0; line < lines.count; line++) {
            lines.taps[line] = weights + lines.line[line] * side;
            tap(shape, lines.gradients[line] + (side - 1) * LANES, active, sum + lines.line[line] * side);
        }
        back(shape, &lines, passing);
        pass(shape, count, passing, slopes + left, x + place + channel, scale + channel, offset + channel,
             mean + channel, sum + side * side, to_x + place + channel);
        for (int line = 0; line < lines.count; line++) lines.gradients[line] += framed(shape) * LANES;
        for (int t = 0; t < side * side + 2; t++)
            for (int k = 0; k < count; k++) sums[t * channels + channel + k] += sum[t][k];
    }
}

// The gradient of x × scale + offset. Of each part: the sums of the taps' gradients, of that gradient, and of it times
// x - mean, [parts][side × side + 2][channels].
// scratch: zeros [threads], of each a ring [side][chunks][framed][LANES] and what back_row needs.
void depthwise_back(const Shape *shape, const float *gradient, const float *x, const float *scale, const float *offset,
                    const float *mean, const float *taps, float *scratch, float *to_x, double *sums) {
    long rows = shape->batch * shape->height, channels = shape->channels;
    long size = (shape->side * shape->side + 2) * channels;
    long of_ring = shape->side * chunks(shape) * framed(shape) * LANES;
    long each = of_ring + 2 * chunks(shape) * padded(shape) * LANES + shape->width * LANES;
    #pragma omp parallel for num_threads(shape->threads) schedule(static)
    for (int part = 0; part < shape->parts; part++) {
        float *own = scratch + omp_get_thread_num() * each;
        Ring ring = ring_of(own, shape, framed(shape));
        memset(sums + part * size, 0, size * sizeof(double));
        long end = bound(rows, shape->parts, part + 1);
        for (long row = bound(rows, shape->parts, part); row < end; row++)
            back_row(&ring, shape, row, gradient, x, scale, offset, mean, taps, own + of_ring, to_x,
                     sums + part * size);
    }
}

// The lines of a map under the windows of a row of the output: where the first starts, before the left edge where there
// is padding, how many they are, and the taps of the first.
typedef struct {
    const float *x, *taps;
    long count;
} Covered;

// Activated pixels of the output, under whose windows the taps `from` to `to` of each line are.
INLINE void act_pixels(int kind, int side, int stride, int pixels, const Shape *shape, const float *x,
                       const float *taps, long lines, int from, int to, const float *bias, float *y) {
    long channels = shape->channels, line_size = shape->width * channels;
    float low = shape->low, high = shape->high;
    for (long done = 0; done < channels; done += LANES) {
        // The last vector ends with the last channel: some channels are computed twice.
        long channel = done + LANES <= channels ? done : channels - LANES;
        Lanes sum[BLOCK], start = get(bias + channel, LANES);
        #pragma GCC unroll 8
        for (int p = 0; p < pixels; p++) sum[p] = start;
        #pragma GCC unroll 5
        for (long line = 0; line < lines; line++)
            #pragma GCC unroll 5
            for (int k = from; k < to; k++) {
                Lanes tap = get(taps + (line * side + k) * channels + channel, LANES);
                const float *at = x + line * line_size + k * channels + channel;
                #pragma GCC unroll 8
                for (int p = 0; p < pixels; p++) sum[p] += get(at + p * stride * channels, LANES) * tap;
            }
        #pragma GCC unroll 8
        for (int p = 0; p < pixels; p++) {
            Lanes active;
            for (int k = 0; k < LANES; k++) active[k] = activated(kind, low, high, sum[p][k]);
            put(y + p * channels + channel, active, LANES);
        }
    }
}

INLINE void act_row(int kind, int side, int stride, const Shape *shape, const Covered *covered, const float *bias,
                    float *restrict y) {
    enum { TOGETHER = 4 };
    long channels = shape->channels, width = shape->width, lines = covered->count;
    for (long pixel = 0; pixel < shape->out_width;) {
        long first = pixel * stride - shape->left, rest = width - first;
        const float *x = covered->x + pixel * stride * channels;
        int inside = first >= 0 && pixel + TOGETHER <= shape->out_width && rest >= (TOGETHER - 1) * stride + side;
        int from = first < 0 ? -first : 0, to = rest < side ? rest : side;
        if (inside && lines == side) // the sums of most pixels are unrolled
            act_pixels(kind, side, stride, TOGETHER, shape, x, covered->taps, side, 0, side, bias, y);
        else if (inside)
            act_pixels(kind, side, stride, TOGETHER, shape, x, covered->taps, lines, 0, side, bias, y);
        else
            act_pixels(kind, side, stride, 1, shape, x, covered->taps, lines, from, to, bias, y);
        pixel += inside ? TOGETHER : 1;
        y += (inside ? TOGETHER : 1) * channels;
    }
}

ROWS act(const Shape *shape, const Covered *covered, const float *bias, float *y) {
#define CALL(side, stride)                                                                                             \
    do {                                                                                                               \
        if (shape->kind == SWISH)                                                                                      \
            act_row(SWISH, side, stride, shape, covered, bias, y);                                                     \
        else                                                                                                           \
            act_row(CLAMP, side, stride, shape, covered, bias, y);                                                     \
    } while (0)
    OF_WINDOW(shape, CALL);
#undef CALL
}

// The activated convolution of a map of at least LANES channels; taps [side × side][channels].
void depthwise_act(const Shape *shape, const float *x, const float *taps, const float *bias, float *y) {
    long rows = shape->batch * shape->out_height, line_size = shape->width * shape->channels;
    #pragma omp parallel for num_threads(shape->threads) schedule(static)
    for (long row = 0; row < rows; row++) {
        long top = row % shape->out_height * shape->stride - shape->top, rest = shape->height - top;
        long first = top < 0 ? -top : 0, end = rest < shape->side ? rest : shape->side;
        long line = row / shape->out_height * shape->height + top + first;
        const float *start = x + line * line_size - shape->left * shape->channels;
        Covered covered = {start, taps + first * shape->side * shape->channels, end > first ? end - first : 0};
        act(shape, &covered, bias, y + row * shape->out_width * shape->channels);
    }
}
