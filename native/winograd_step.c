// The transforms of a training step of Winograd's convolution, each in one pass over its maps; the products in between
// are PyTorch's. Each number is computed by one thread, so that results do not depend on how many there are. Called
// from ops/native.py.

#include <string.h>

#include "winograd.h"

// Maps [images, height, width, channels], and tiles [36, images × down × across, channels].
typedef struct {
    long images, height, width, down, across, channels, plane;
    int threads;
    const float *source, *bias; // the bias of outputs alone
    float *target;
} Tiles;

typedef struct {
    long rows, channels, plane;
    long row_stride, channel_stride, tap_stride; // of a kernel [rows, channels, 3, 3]
    int threads;
    const float *source;
    float *target;
} Kernel;

INLINE void transform_maps(const Tiles *t, int side, Transform transform, long before) {
    long size = t->height * t->width * t->channels;
    #pragma omp parallel for num_threads(t->threads) schedule(static)
    for (long row = 0; row < t->images * t->down; row++)
        for (long column = 0; column < t->across; column++) {
            Place at = {t->height, t->width, t->channels, OUT * (row % t->down) - before, OUT * column - before};
            transform_tile(at, side, transform, t->source + row / t->down * size, t->plane,
                           t->target + (row * t->across + column) * t->channels);
        }
}

// Tiles of 6×6 inputs, one of them before the tile's outputs.
EXPORTED(winograd_inputs_to_tiles)(const Tiles *t) { transform_maps(t, IN, transform_input, 1); }

// The transpose of winograd_tiles_to_outputs, without its bias.
EXPORTED(winograd_outputs_to_tiles)(const Tiles *t) { transform_maps(t, OUT, transposed_transform_output, 0); }

// The maps whose 4×4 parts the tiles are, plus a bias for each channel.
EXPORTED(winograd_tiles_to_outputs)(const Tiles *t) {
    long size = t->height * t->width * t->channels;
    #pragma omp parallel for num_threads(t->threads) schedule(static)
    for (long row = 0; row < t->images * t->down; row++)
        for (long column = 0; column < t->across; column++) {
            Place at = {t->height, t->width, t->channels, OUT * (row % t->down), OUT * column};
            read_tile(at, t->source + (row * t->across + column) * t->channels, t->plane, t->bias, 0, t->channels,
                      t->target + row / t->down * size);
        }
}

// Four rows of a map's gradient, from the tiles that begin there and the last two rows of those above. Columns that two
// tiles share are written by the left one, and added to by the right one.
INLINE void overlap(const Tiles *t, const float *above, const float *here, long top, long left, long count,
                    float *map) {
    Lanes along[OUT][IN], line[IN], values[IN];
    for (int column = 0; column < IN; column++) {
        for (int row = 0; row < OUT; row++) along[row][column] = (Lanes){0};
        if (above) {
            for (int row = 0; row < IN; row++) values[row] = get(above + (row * IN + column) * t->plane, count);
            transposed_transform_input(values, line);
            for (int row = OUT; row < IN; row++) along[row - OUT][column] = line[row];
        }
        if (here) {
            for (int row = 0; row < IN; row++) values[row] = get(here + (row * IN + column) * t->plane, count);
            transposed_transform_input(values, line);
            for (int row = 0; row < OUT; row++) along[row][column] += line[row];
        }
    }
    for (int row = 0; row < OUT; row++) {
        transposed_transform_input(along[row], line);
        for (int column = 0; column < IN; column++) {
            long y = top + row, x = left + column;
            if (y < 0 || y >= t->height || x < 0 || x >= t->width) continue;
            float *at = map + (y * t->width + x) * t->channels;
            if (column < IN - OUT && left > 0) line[column] += get(at, count);
            put(at, line[column], count);
        }
    }
}

// The transpose of winograd_inputs_to_tiles: sums of overlapping 6×6 tiles.
EXPORTED(winograd_tiles_to_inputs)(const Tiles *t) {
    long down = t->down, line = t->across * t->channels;
    #pragma omp parallel for num_threads(t->threads) schedule(static)
    for (long unit = 0; unit < t->images * (down + 1); unit++) {
        long image = unit / (down + 1), row = unit % (down + 1);
        const float *here = t->source + (image * down + row) * line;
        float *map = t->target + image * t->height * t->width * t->channels;
        for (long column = 0; column < t->across; column++)
            for (long channel = 0; channel < t->channels; channel += LANES) {
                long at = column * t->channels + channel, count = t->channels - channel;
                overlap(t, row > 0 ? here - line + at : 0, row < down ? here + at : 0, OUT * row - 1, OUT * column - 1,
                        count < LANES ? count : LANES, map + channel);
            }
    }
}

// Transformed kernels [36, rows, channels].
EXPORTED(winograd_kernel)(const Kernel *k) {
    #pragma omp parallel for num_threads(k->threads) schedule(static)
    for (long row = 0; row < k->rows; row++)
        for (long channel = 0; channel < k->channels; channel += LANES) {
            long count = k->channels - channel < LANES ? k->channels - channel : LANES;
            const float *from = k->source + row * k->row_stride + channel * k->channel_stride;
            float *to = k->target + row * k->channels + channel;
            Lanes taps[TAPS][TAPS], along[IN][TAPS], values[IN]; // taps are [column][row]
            memset(taps, 0, sizeof taps);
            for (long lane = 0; lane < count; lane++)
                for (int tap = 0; tap < TAPS * TAPS; tap++)
                    taps[tap % TAPS][tap / TAPS][lane] = from[lane * k->channel_stride + tap * k->tap_stride];
            for (int column = 0; column < TAPS; column++) {
                transform_kernel(taps[column], values);
                for (int point = 0; point < IN; point++) along[point][column] = values[point];
            }
            for (int one = 0; one < IN; one++) {
                transform_kernel(along[one], values);
                for (int two = 0; two < IN; two++) put(to + (one * IN + two) * k->plane, values[two], count);
            }
        }
}

// The transpose of winograd_kernel.
EXPORTED(winograd_kernel_backward)(const Kernel *k) {
    #pragma omp parallel for num_threads(k->threads) schedule(static)
    for (long row = 0; row < k->rows; row++)
        for (long channel = 0; channel < k->channels; channel += LANES) {
            long count = k->channels - channel < LANES ? k->channels - channel : LANES;
            const float *from = k->source + row * k->channels + channel;
            float *to = k->target + row * k->row_stride + channel * k->channel_stride;
            Lanes along[TAPS][IN], values[IN], taps[TAPS];
            for (int two = 0; two < IN; two++) {
                for (int one = 0; one < IN; one++) values[one] = get(from + (one * IN + two) * k->plane, count);
                transposed_transform_kernel(values, taps);
                for (int tap = 0; tap < TAPS; tap++) along[tap][two] = taps[tap];
            }
            for (int tap = 0; tap < TAPS; tap++) {
                transposed_transform_kernel(along[tap], taps);
                for (int column = 0; column < TAPS; column++)
                    for (long lane = 0; lane < count; lane++)
                        to[lane * k->channel_stride + (tap * TAPS + column) * k->tap_stride] = taps[column][lane];
            }
        }
}
