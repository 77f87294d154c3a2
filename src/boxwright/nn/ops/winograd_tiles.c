// Winograd's convolution: maps to evaluated tiles and back, kernels to evaluated kernels and back, and, for inference,
// the whole of it.
//
// Maps are float32 with channels last, [images, height, width, channels]; tiles are [36, images × down × across,
// channels], and `plane` numbers lie between the starts of two of the 36. A step in two dimensions is one of the
// functions below along rows, then along columns. Each number is computed by one thread, so that results do not depend
// on how many there are. Called from winograd_tiles.py; the same with matrices is in winograd.py.

#include <math.h>
#include <omp.h>
#include <string.h>

#include "lanes.h"

enum { OUT = 4, IN = 6, TAPS = 3, POINTS = IN * IN };

// The points are 0, A, -A, B, -B and infinity, where A × B = 1. Of points that differ by sign, even and odd powers are
// summed once.
#define A (2.0 / 3)
#define B (3.0 / 2)
#define SQUARES ((float)(A * A + B * B))
// Of the polynomials that are 1 at one point and 0 at the others.
#define GAIN_A (1 / (2 * A * A * (A * A - B * B)))
#define GAIN_B (1 / (2 * B * B * (B * B - A * A)))

// Values [6] that, multiplied by a kernel's, are the transposed product's: of a tile's side [6].
INLINE void at_tile(const Lanes *side, Lanes *values) {
    Lanes even = (float)GAIN_A * side[4] - (float)(GAIN_A * B * B) * side[2];
    Lanes odd = (float)(GAIN_A * A) * side[3] - (float)(GAIN_A * A * B * B) * side[1];
    values[0] = side[0] + side[4] - SQUARES * side[2];
    values[1] = even + odd;
    values[2] = even - odd;
    even = (float)GAIN_B * side[4] - (float)(GAIN_B * A * A) * side[2];
    odd = (float)(GAIN_B * B) * side[3] - (float)(GAIN_B * B * A * A) * side[1];
    values[3] = even + odd;
    values[4] = even - odd;
    values[5] = side[1] + side[5] - SQUARES * side[3];
}

// The transpose of at_tile.
INLINE void from_tile(const Lanes *values, Lanes *side) {
    Lanes even_a = values[1] + values[2], odd_a = values[1] - values[2];
    Lanes even_b = values[3] + values[4], odd_b = values[3] - values[4];
    side[0] = values[0];
    side[1] = values[5] - (float)(GAIN_A * A * B * B) * odd_a - (float)(GAIN_B * B * A * A) * odd_b;
    side[2] = -SQUARES * values[0] - (float)(GAIN_A * B * B) * even_a - (float)(GAIN_B * A * A) * even_b;
    side[3] = -SQUARES * values[5] + (float)(GAIN_A * A) * odd_a + (float)(GAIN_B * B) * odd_b;
    side[4] = values[0] + (float)GAIN_A * even_a + (float)GAIN_B * even_b;
    side[5] = values[5];
}

// Outputs [4] of values [6].
INLINE void to_outputs(const Lanes *values, Lanes *outputs) {
    Lanes even_a = values[1] + values[2], odd_a = values[1] - values[2];
    Lanes even_b = values[3] + values[4], odd_b = values[3] - values[4];
    outputs[0] = values[0] + even_a + even_b;
    outputs[1] = (float)A * odd_a + (float)B * odd_b;
    outputs[2] = (float)(A * A) * even_a + (float)(B * B) * even_b;
    outputs[3] = values[5] + (float)(A * A * A) * odd_a + (float)(B * B * B) * odd_b;
}

// The transpose of to_outputs.
INLINE void from_outputs(const Lanes *outputs, Lanes *values) {
    Lanes even = outputs[0] + (float)(A * A) * outputs[2];
    Lanes odd = (float)A * outputs[1] + (float)(A * A * A) * outputs[3];
    values[0] = outputs[0];
    values[1] = even + odd;
    values[2] = even - odd;
    even = outputs[0] + (float)(B * B) * outputs[2];
    odd = (float)B * outputs[1] + (float)(B * B * B) * outputs[3];
    values[3] = even + odd;
    values[4] = even - odd;
    values[5] = outputs[3];
}

// Values [6] of a kernel's side [3].
INLINE void at_kernel(const Lanes *side, Lanes *values) {
    Lanes even = side[0] + (float)(A * A) * side[2], odd = (float)A * side[1];
    values[0] = side[0];
    values[1] = even + odd;
    values[2] = even - odd;
    even = side[0] + (float)(B * B) * side[2];
    odd = (float)B * side[1];
    values[3] = even + odd;
    values[4] = even - odd;
    values[5] = side[2];
}

// The transpose of at_kernel.
INLINE void from_kernel(const Lanes *values, Lanes *side) {
    Lanes even_a = values[1] + values[2], even_b = values[3] + values[4];
    side[0] = values[0] + even_a + even_b;
    side[1] = (float)A * (values[1] - values[2]) + (float)B * (values[3] - values[4]);
    side[2] = values[5] + (float)(A * A) * even_a + (float)(B * B) * even_b;
}

typedef struct {
    long images, height, width, down, across, channels, plane;
    int threads;
} Shape;

// Of an activation; infinite where there is none.
typedef struct {
    float low, high;
} Bounds;

typedef void Step(const Lanes *, Lanes *);

// One evaluated tile of the cut at (top, left), of `side` rows and columns; what is outside the map is zero.
INLINE void evaluate_part(const Shape *shape, int side, Step step, const float *map, long top, long left, long count,
                          int whole, long plane, float *tile) {
    Lanes along[IN][IN], line[IN], values[IN];
    for (int column = 0; column < side; column++) {
        for (int row = 0; row < side; row++) {
            long y = top + row, x = left + column;
            int inside = whole || (y >= 0 && y < shape->height && x >= 0 && x < shape->width);
            line[row] = inside ? get(map + (y * shape->width + x) * shape->channels, count) : (Lanes){0};
        }
        step(line, values);
        for (int point = 0; point < IN; point++) along[point][column] = values[point];
    }
    for (int one = 0; one < IN; one++) {
        step(along[one], values);
        for (int two = 0; two < IN; two++) put(tile + (one * IN + two) * plane, values[two], count);
    }
}

INLINE void evaluate_tile(const Shape *shape, int side, Step step, const float *map, long top, long left, long plane,
                          float *tile) {
    int inside = top >= 0 && left >= 0 && top + side <= shape->height && left + side <= shape->width;
    for (long channel = 0; channel < shape->channels; channel += LANES) {
        long count = shape->channels - channel;
        if (inside && count >= LANES)
            evaluate_part(shape, side, step, map + channel, top, left, LANES, 1, plane, tile + channel);
        else
            evaluate_part(shape, side, step, map + channel, top, left, count, 0, plane, tile + channel);
    }
}

INLINE void evaluate(const Shape *shape, int side, Step step, long before, const float *maps, float *tiles) {
    #pragma omp parallel for num_threads(shape->threads) schedule(static)
    for (long row = 0; row < shape->images * shape->down; row++) {
        const float *map = maps + row / shape->down * shape->height * shape->width * shape->channels;
        for (long column = 0; column < shape->across; column++)
            evaluate_tile(shape, side, step, map, OUT * (row % shape->down) - before, OUT * column - before,
                          shape->plane, tiles + (row * shape->across + column) * shape->channels);
    }
}

// Tiles of 6×6 inputs, one of them before the tile's outputs.
void winograd_evaluate(const Shape *shape, const float *maps, float *tiles) {
    evaluate(shape, IN, at_tile, 1, maps, tiles);
}

// The transpose of winograd_read: tiles of 4×4 gradients.
void winograd_unread(const Shape *shape, const float *maps, float *tiles) {
    evaluate(shape, OUT, from_outputs, 0, maps, tiles);
}

// Comparisons are written so that NaN stays NaN.
INLINE Lanes bounded(Lanes value, Bounds bounds) {
    for (int k = 0; k < LANES; k++) {
        float v = value[k] < bounds.low ? bounds.low : value[k];
        value[k] = v > bounds.high ? bounds.high : v;
    }
    return value;
}

INLINE void read_part(const Shape *shape, const float *tile, long plane, const float *gain, const float *bias,
                      Bounds bounds, long top, long left, long count, int whole, float *map) {
    Lanes along[OUT][IN], line[IN], outputs[OUT];
    for (int column = 0; column < IN; column++) {
        for (int row = 0; row < IN; row++) line[row] = get(tile + (row * IN + column) * plane, count);
        to_outputs(line, outputs);
        for (int out = 0; out < OUT; out++) along[out][column] = outputs[out];
    }
    Lanes scale = (Lanes){0} + 1, shift = get(bias, count);
    if (gain) scale = get(gain, count);
    for (int row = 0; row < OUT && (whole || top + row < shape->height); row++) {
        to_outputs(along[row], outputs);
        for (int out = 0; out < OUT && (whole || left + out < shape->width); out++)
            put(map + ((top + row) * shape->width + left + out) * shape->channels,
                bounded(outputs[out] * scale + shift, bounds), count);
    }
}

// A tile's 4×4 outputs of the channels in a range, times a gain, where one is given, plus a bias, within bounds. `tile`
// holds those channels alone.
INLINE void read_tile(const Shape *shape, const float *tile, long plane, const float *gain, const float *bias,
                      Bounds bounds, long top, long left, long begin, long end, float *map) {
    int inside = top + OUT <= shape->height && left + OUT <= shape->width;
    for (long channel = begin; channel < end; channel += LANES) {
        long count = end - channel;
        const float *from = tile + channel - begin, *scale = gain ? gain + channel : 0;
        if (inside && count >= LANES)
            read_part(shape, from, plane, scale, bias + channel, bounds, top, left, LANES, 1, map + channel);
        else
            read_part(shape, from, plane, scale, bias + channel, bounds, top, left, count, 0, map + channel);
    }
}

// The maps whose 4×4 parts tiles evaluate, plus a bias for each channel.
void winograd_read(const Shape *shape, const float *tiles, const float *bias, float *maps) {
    Bounds none = {-INFINITY, INFINITY};
    #pragma omp parallel for num_threads(shape->threads) schedule(static)
    for (long row = 0; row < shape->images * shape->down; row++) {
        float *map = maps + row / shape->down * shape->height * shape->width * shape->channels;
        for (long column = 0; column < shape->across; column++)
            read_tile(shape, tiles + (row * shape->across + column) * shape->channels, shape->plane, 0, bias, none,
                      OUT * (row % shape->down), OUT * column, 0, shape->channels, map);
    }
}

// Maps of a convolution, such as a level of a pyramid, whose tiles lie after those of the maps before, up to `end`.
typedef struct {
    long images, height, width, down, across, end;
    const float *maps, *gain, *bias; // no gain is 1
    float *into;
} Level;

// A whole convolution, for inference: blocks of tiles are evaluated, multiplied and read off while caches hold them.
// Threads divide the output channels among themselves, so that each reads a part of the kernel, or the tiles.
//
// kernel: [36, panels, ins, PANEL], zeros after the last output channel. tiles and products are scratch,
// [36][tiles of a block][ins] and [36][tiles of a block][outs, in whole panels], with `tiles_plane` and `products_plane`
// numbers between the starts of two of the 36. Of products there is one for each thread, of tiles too, unless channels
// are divided: then all threads evaluate the same tiles, and the products have a thread's panels.
typedef struct {
    const Level *levels;
    long count, ins, outs, blocks, tiles_plane, products_plane; // `count` tiles of all levels
    int threads, by_channels;
    Bounds bounds;
} Conv;

enum { PANEL = 2 * LANES };

// How many output channels lie together in a packed kernel: as many as two vectors hold.
int winograd_panel(void) {
    return PANEL;
}

// As many rows of sums as the processor has registers for.
#if defined(__AVX512F__)
enum { ROWS = 12 };
#else
enum { ROWS = 6 };
#endif

// Products [rows][PANEL], `apart` numbers between two rows, of tiles [rows][ins] and a panel [ins][PANEL].
INLINE void multiply(int rows, long ins, const float *tiles, const float *panel, float *products, long apart) {
    Lanes low[ROWS], high[ROWS];
    #pragma GCC unroll 12
    for (int row = 0; row < rows; row++) low[row] = high[row] = (Lanes){0};
    for (long channel = 0; channel < ins; channel++) {
        const float *at = panel + channel * PANEL;
        Lanes one = *(const Lanes *)at, two = *(const Lanes *)(at + LANES);
        __builtin_prefetch(tiles + rows * (ins + channel)); // the next rows, all of them by the last channel
        #pragma GCC unroll 12
        for (int row = 0; row < rows; row++) {
            float value = tiles[row * ins + channel];
            low[row] += value * one;
            high[row] += value * two;
        }
    }
    #pragma GCC unroll 12
    for (int row = 0; row < rows; row++) {
        *(Lanes *)(products + row * apart) = low[row];
        *(Lanes *)(products + row * apart + LANES) = high[row];
    }
}

// The same of any number of rows; four still fill the processor's two units.
static __attribute__((noinline)) void multiply_all(long count, long ins, const float *tiles, const float *panel,
                                                   float *products, long apart) {
    long row = 0;
    for (; count - row >= ROWS; row += ROWS)
        multiply(ROWS, ins, tiles + row * ins, panel, products + row * apart, apart);
    for (; count - row >= 4; row += 4) multiply(4, ins, tiles + row * ins, panel, products + row * apart, apart);
    for (; count - row >= 2; row += 2) multiply(2, ins, tiles + row * ins, panel, products + row * apart, apart);
    for (; row < count; row++) multiply(1, ins, tiles + row * ins, panel, products + row * apart, apart);
}

typedef struct {
    const Level *level;
    long image, top, left;
} Place;

INLINE Place place_of(const Conv *conv, long tile) {
    const Level *level = conv->levels;
    for (; tile >= level->end; level++) {}
    long grid = level->down * level->across, own = tile - (level->end - level->images * grid);
    return (Place){level, own / grid, own % grid / level->across * OUT, own % level->across * OUT};
}

// Evaluated tiles from `first` to `last`.
INLINE void evaluate_block(const Conv *conv, long first, long last, float *evaluated) {
    for (long tile = first; tile < last; tile++) {
        Place at = place_of(conv, tile);
        Shape in = {.height = at.level->height, .width = at.level->width, .channels = conv->ins};
        const float *map = at.level->maps + at.image * in.height * in.width * in.channels;
        evaluate_tile(&in, IN, at_tile, map, at.top - 1, at.left - 1, conv->tiles_plane,
                      evaluated + (tile - first) * conv->ins);
    }
}

// The outputs of evaluated tiles in the channels of some panels.
INLINE void multiply_block(const Conv *conv, const float *kernel, long first, long last, long panel, long end,
                           const float *evaluated, float *products) {
    long panels = (conv->outs + PANEL - 1) / PANEL, apart = (end - panel) * PANEL;
    for (long point = 0; point < POINTS; point++)
        for (long one = panel; one < end; one++)
            multiply_all(last - first, conv->ins, evaluated + point * conv->tiles_plane,
                         kernel + (point * panels + one) * conv->ins * PANEL,
                         products + point * conv->products_plane + (one - panel) * PANEL, apart);
    long channels = end * PANEL < conv->outs ? end * PANEL : conv->outs;
    for (long tile = first; tile < last; tile++) {
        Place at = place_of(conv, tile);
        Shape out = {.height = at.level->height, .width = at.level->width, .channels = conv->outs};
        float *map = at.level->into + at.image * out.height * out.width * out.channels;
        read_tile(&out, products + (tile - first) * apart, conv->products_plane, at.level->gain, at.level->bias,
                  conv->bounds, at.top, at.left, panel * PANEL, channels, map);
    }
}

void winograd_convolve(const Conv *conv, const float *kernel, float *tiles, float *products) {
    long count = conv->count, panels = (conv->outs + PANEL - 1) / PANEL;
    #pragma omp parallel num_threads(conv->threads)
    if (conv->by_channels) {
        for (long block = 0; block < conv->blocks; block++) {
            long first = count * block / conv->blocks, last = count * (block + 1) / conv->blocks;
            #pragma omp for schedule(static)
            for (long tile = first; tile < last; tile++)
                evaluate_block(conv, tile, tile + 1, tiles + (tile - first) * conv->ins);
            #pragma omp for schedule(static)
            for (int part = 0; part < conv->threads; part++)
                multiply_block(conv, kernel, first, last, panels * part / conv->threads,
                               panels * (part + 1) / conv->threads, tiles,
                               products + part * POINTS * conv->products_plane);
        }
    } else {
        float *evaluated = tiles + omp_get_thread_num() * POINTS * conv->tiles_plane;
        float *product = products + omp_get_thread_num() * POINTS * conv->products_plane;
        #pragma omp for schedule(static)
        for (long block = 0; block < conv->blocks; block++) {
            long first = count * block / conv->blocks, last = count * (block + 1) / conv->blocks;
            evaluate_block(conv, first, last, evaluated);
            multiply_block(conv, kernel, first, last, 0, panels, evaluated, product);
        }
    }
}

// Four rows of a map's gradient from the tiles that begin there and from the last two rows of those above. Columns that
// two tiles share are written by the left one, and added to by the right one.
INLINE void overlap(const Shape *shape, const float *above, const float *here, long plane, long top, long left,
                    long count, float *map) {
    Lanes along[OUT][IN], line[IN], values[IN];
    for (int column = 0; column < IN; column++) {
        for (int row = 0; row < OUT; row++) along[row][column] = (Lanes){0};
        if (above) {
            for (int point = 0; point < IN; point++) values[point] = get(above + (point * IN + column) * plane, count);
            from_tile(values, line);
            for (int row = OUT; row < IN; row++) along[row - OUT][column] = line[row];
        }
        if (here) {
            for (int point = 0; point < IN; point++) values[point] = get(here + (point * IN + column) * plane, count);
            from_tile(values, line);
            for (int row = 0; row < OUT; row++) along[row][column] += line[row];
        }
    }
    for (int row = 0; row < OUT; row++) {
        from_tile(along[row], line);
        for (int column = 0; column < IN; column++) {
            long y = top + row, x = left + column;
            if (y < 0 || y >= shape->height || x < 0 || x >= shape->width) continue;
            float *at = map + (y * shape->width + x) * shape->channels;
            if (column < IN - OUT && left > 0) line[column] += get(at, count);
            put(at, line[column], count);
        }
    }
}

// The transpose of winograd_evaluate: sums of overlapping 6×6 tiles.
void winograd_overlap(const Shape *shape, const float *tiles, float *maps) {
    long down = shape->down, line = shape->across * shape->channels, plane = shape->plane;
    #pragma omp parallel for num_threads(shape->threads) schedule(static)
    for (long unit = 0; unit < shape->images * (down + 1); unit++) {
        long image = unit / (down + 1), row = unit % (down + 1);
        const float *here = tiles + (image * down + row) * line;
        float *map = maps + image * shape->height * shape->width * shape->channels;
        for (long column = 0; column < shape->across; column++)
            for (long channel = 0; channel < shape->channels; channel += LANES) {
                long at = column * shape->channels + channel, count = shape->channels - channel;
                overlap(shape, row > 0 ? here - line + at : 0, row < down ? here + at : 0, plane, OUT * row - 1,
                        OUT * column - 1, count < LANES ? count : LANES, map + channel);
            }
    }
}

typedef struct {
    long rows, channels, plane;
    long of_row, of_channel, of_tap; // strides of a kernel, in numbers
    int threads;
} Kernel;

// Evaluated kernels [36, rows, channels] of kernels [rows, channels, 3, 3].
void winograd_kernel(const Kernel *shape, const float *kernel, float *evaluated) {
    long plane = shape->plane;
    #pragma omp parallel for num_threads(shape->threads) schedule(static)
    for (long row = 0; row < shape->rows; row++)
        for (long channel = 0; channel < shape->channels; channel += LANES) {
            long count = shape->channels - channel < LANES ? shape->channels - channel : LANES;
            const float *from = kernel + row * shape->of_row + channel * shape->of_channel;
            Lanes taps[TAPS][TAPS], along[IN][TAPS], values[IN]; // taps are [column][row]
            memset(taps, 0, sizeof taps);
            for (long lane = 0; lane < count; lane++)
                for (int tap = 0; tap < TAPS * TAPS; tap++)
                    taps[tap % TAPS][tap / TAPS][lane] = from[lane * shape->of_channel + tap * shape->of_tap];
            for (int column = 0; column < TAPS; column++) {
                at_kernel(taps[column], values);
                for (int point = 0; point < IN; point++) along[point][column] = values[point];
            }
            for (int one = 0; one < IN; one++) {
                at_kernel(along[one], values);
                for (int two = 0; two < IN; two++)
                    put(evaluated + (one * IN + two) * plane + row * shape->channels + channel, values[two], count);
            }
        }
}

// The transpose of winograd_kernel.
void winograd_kernel_back(const Kernel *shape, const float *evaluated, float *kernel) {
    long plane = shape->plane;
    #pragma omp parallel for num_threads(shape->threads) schedule(static)
    for (long row = 0; row < shape->rows; row++)
        for (long channel = 0; channel < shape->channels; channel += LANES) {
            long count = shape->channels - channel < LANES ? shape->channels - channel : LANES;
            const float *from = evaluated + row * shape->channels + channel;
            float *to = kernel + row * shape->of_row + channel * shape->of_channel;
            Lanes along[TAPS][IN], values[IN], taps[TAPS];
            for (int two = 0; two < IN; two++) {
                for (int one = 0; one < IN; one++) values[one] = get(from + (one * IN + two) * plane, count);
                from_kernel(values, taps);
                for (int tap = 0; tap < TAPS; tap++) along[tap][two] = taps[tap];
            }
            for (int tap = 0; tap < TAPS; tap++) {
                from_kernel(along[tap], taps);
                for (int column = 0; column < TAPS; column++)
                    for (long lane = 0; lane < count; lane++)
                        to[lane * shape->of_channel + (tap * TAPS + column) * shape->of_tap] = taps[column][lane];
            }
        }
}
