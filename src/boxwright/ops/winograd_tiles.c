// The linear steps of Winograd's convolution: maps to evaluated tiles and back, kernels to evaluated kernels and back.
//
// Maps are float32 with channels last, [images, height, width, channels]; tiles are [36, images × down × across,
// channels], and `plane` numbers lie between the starts of two of the 36. A step in two dimensions is the same small
// matrix along rows, then along columns. Each number is computed by one thread, so that results do not depend on how
// many there are. Called from winograd_tiles.py.

#include <omp.h>
#include <string.h>

#include "lanes.h"

enum { OUT = 4, IN = 6, TAPS = 3, POINTS = IN * IN };

typedef struct {
    long images, height, width, down, across, channels, plane;
    int threads;
} Shape;

// One evaluated tile of the cut at (top, left), of `side` rows and columns; what is outside the map is zero.
INLINE void evaluate_tile(const Shape *shape, int side, const float *map, const float *matrix, long top, long left,
                          long channel, long plane, float *tile) {
    long count = shape->channels - channel;
    Lanes along[IN][IN];
    for (int column = 0; column < side; column++) {
        Lanes values[IN];
        for (int row = 0; row < side; row++) {
            long y = top + row, x = left + column;
            int inside = y >= 0 && y < shape->height && x >= 0 && x < shape->width;
            values[row] = inside ? get(map + (y * shape->width + x) * shape->channels + channel, count) : (Lanes){0};
        }
        for (int point = 0; point < IN; point++) {
            Lanes sum = {0};
            for (int row = 0; row < side; row++) sum += matrix[point * side + row] * values[row];
            along[point][column] = sum;
        }
    }
    for (int one = 0; one < IN; one++)
        for (int two = 0; two < IN; two++) {
            Lanes sum = {0};
            for (int column = 0; column < side; column++) sum += matrix[two * side + column] * along[one][column];
            put(tile + (one * IN + two) * plane + channel, sum, count);
        }
}

INLINE void evaluate(const Shape *shape, int side, long before, const float *maps, const float *matrix, float *tiles) {
    long plane = shape->plane;
    #pragma omp parallel for num_threads(shape->threads) schedule(static)
    for (long row = 0; row < shape->images * shape->down; row++) {
        const float *map = maps + row / shape->down * shape->height * shape->width * shape->channels;
        for (long column = 0; column < shape->across; column++)
            for (long channel = 0; channel < shape->channels; channel += LANES)
                evaluate_tile(shape, side, map, matrix, OUT * (row % shape->down) - before, OUT * column - before,
                              channel, plane, tiles + (row * shape->across + column) * shape->channels);
    }
}

// Tiles of 6×6 inputs, one of them before the tile's outputs; the matrix is [6, 6].
void winograd_evaluate(const Shape *shape, const float *maps, const float *matrix, float *tiles) {
    evaluate(shape, IN, 1, maps, matrix, tiles);
}

// The transpose of winograd_read: tiles of 4×4 gradients; the matrix is [6, 4].
void winograd_unread(const Shape *shape, const float *maps, const float *matrix, float *tiles) {
    evaluate(shape, OUT, 0, maps, matrix, tiles);
}

INLINE void read_tile(const Shape *shape, const float *tile, long plane, const float *matrix, const float *bias,
                      long top, long left, long channel, float *map) {
    long count = shape->channels - channel;
    Lanes along[OUT][IN];
    for (int column = 0; column < IN; column++) {
        Lanes values[IN];
        for (int row = 0; row < IN; row++) values[row] = get(tile + (row * IN + column) * plane + channel, count);
        for (int out = 0; out < OUT; out++) {
            Lanes sum = {0};
            for (int row = 0; row < IN; row++) sum += matrix[out * IN + row] * values[row];
            along[out][column] = sum;
        }
    }
    Lanes shift = get(bias + channel, count);
    for (int row = 0; row < OUT && top + row < shape->height; row++)
        for (int out = 0; out < OUT && left + out < shape->width; out++) {
            Lanes sum = shift;
            for (int column = 0; column < IN; column++) sum += matrix[out * IN + column] * along[row][column];
            put(map + ((top + row) * shape->width + left + out) * shape->channels + channel, sum, count);
        }
}

// The maps whose 4×4 parts tiles evaluate, plus a bias for each channel; the matrix is [4, 6].
void winograd_read(const Shape *shape, const float *tiles, const float *matrix, const float *bias, float *maps) {
    long plane = shape->plane;
    #pragma omp parallel for num_threads(shape->threads) schedule(static)
    for (long row = 0; row < shape->images * shape->down; row++) {
        float *map = maps + row / shape->down * shape->height * shape->width * shape->channels;
        for (long column = 0; column < shape->across; column++)
            for (long channel = 0; channel < shape->channels; channel += LANES)
                read_tile(shape, tiles + (row * shape->across + column) * shape->channels, plane, matrix, bias,
                          OUT * (row % shape->down), OUT * column, channel, map);
    }
}

// A whole convolution, for inference: blocks of tiles are evaluated, multiplied and read off while caches hold them.
//
// kernel: [36, panels, ins, PANEL], the output channels after the last are zeros. tiles and products are scratch of each
// thread, [36][block][ins] and [36][block][outs of whole panels], with `tiles_plane` and `products_plane` numbers
// between the starts of two of the 36.
typedef struct {
    long images, height, width, down, across, ins, outs, blocks, tiles_plane, products_plane;
    int threads;
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

static __attribute__((noinline)) void multiply_all(long count, long ins, const float *tiles, const float *panel, float *products, long apart) {
    long row = 0;
    for (; count - row >= ROWS; row += ROWS)
        multiply(ROWS, ins, tiles + row * ins, panel, products + row * apart, apart);
    for (; count - row >= 4; row += 4) multiply(4, ins, tiles + row * ins, panel, products + row * apart, apart);
    for (; count - row >= 2; row += 2) multiply(2, ins, tiles + row * ins, panel, products + row * apart, apart);
    for (; row < count; row++) multiply(1, ins, tiles + row * ins, panel, products + row * apart, apart);
}

void winograd_convolve(const Conv *conv, const float *maps, const float *at_tile, const float *kernel,
                       const float *outputs, const float *bias, float *tiles, float *products, float *into) {
    Shape in = {conv->images, conv->height, conv->width, conv->down, conv->across, conv->ins, 0, 0}, out = in;
    out.channels = conv->outs;
    long grid = conv->down * conv->across, count = conv->images * grid, pixels = conv->height * conv->width;
    long panels = (conv->outs + PANEL - 1) / PANEL, apart = panels * PANEL;
    #pragma omp parallel for num_threads(conv->threads) schedule(static)
    for (long block = 0; block < conv->blocks; block++) {
        long first = count * block / conv->blocks, last = count * (block + 1) / conv->blocks;
        float *evaluated = tiles + omp_get_thread_num() * POINTS * conv->tiles_plane;
        float *product = products + omp_get_thread_num() * POINTS * conv->products_plane;
        for (long tile = first; tile < last; tile++) {
            const float *map = maps + tile / grid * pixels * conv->ins;
            long row = tile % grid / conv->across, column = tile % conv->across;
            for (long channel = 0; channel < conv->ins; channel += LANES)
                evaluate_tile(&in, IN, map, at_tile, OUT * row - 1, OUT * column - 1, channel, conv->tiles_plane,
                              evaluated + (tile - first) * conv->ins);
        }
        for (long point = 0; point < POINTS; point++)
            for (long panel = 0; panel < panels; panel++)
                multiply_all(last - first, conv->ins, evaluated + point * conv->tiles_plane,
                             kernel + (point * panels + panel) * conv->ins * PANEL,
                             product + point * conv->products_plane + panel * PANEL, apart);
        for (long tile = first; tile < last; tile++) {
            float *map = into + tile / grid * pixels * conv->outs;
            long row = tile % grid / conv->across, column = tile % conv->across;
            for (long channel = 0; channel < conv->outs; channel += LANES)
                read_tile(&out, product + (tile - first) * apart, conv->products_plane, outputs, bias, OUT * row,
                          OUT * column, channel, map);
        }
    }
}

// Four rows of a map's gradient from the tiles that begin there and from the last two rows of those above. Columns that
// two tiles share are written by the left one, and added to by the right one.
INLINE void overlap(const Shape *shape, const float *above, const float *here, long plane, const float *matrix,
                    long top, long left, long channel, float *map) {
    long count = shape->channels - channel;
    Lanes along[OUT][IN];
    for (int column = 0; column < IN; column++) {
        for (int row = 0; row < OUT; row++) along[row][column] = (Lanes){0};
        if (above)
            for (int point = 0; point < IN; point++) {
                Lanes value = get(above + (point * IN + column) * plane + channel, count);
                for (int row = 0; row < IN - OUT; row++) along[row][column] += matrix[(OUT + row) * IN + point] * value;
            }
        if (here)
            for (int point = 0; point < IN; point++) {
                Lanes value = get(here + (point * IN + column) * plane + channel, count);
                for (int row = 0; row < OUT; row++) along[row][column] += matrix[row * IN + point] * value;
            }
    }
    for (int row = 0; row < OUT; row++)
        for (int column = 0; column < IN; column++) {
            long y = top + row, x = left + column;
            if (y < 0 || y >= shape->height || x < 0 || x >= shape->width) continue;
            float *at = map + (y * shape->width + x) * shape->channels + channel;
            Lanes sum = column < IN - OUT && left > 0 ? get(at, count) : (Lanes){0};
            for (int point = 0; point < IN; point++) sum += matrix[column * IN + point] * along[row][point];
            put(at, sum, count);
        }
}

// The transpose of winograd_evaluate: sums of overlapping 6×6 tiles; the matrix is [6, 6].
void winograd_overlap(const Shape *shape, const float *tiles, const float *matrix, float *maps) {
    long down = shape->down, line = shape->across * shape->channels, plane = shape->plane;
    #pragma omp parallel for num_threads(shape->threads) schedule(static)
    for (long unit = 0; unit < shape->images * (down + 1); unit++) {
        long image = unit / (down + 1), row = unit % (down + 1);
        const float *here = tiles + (image * down + row) * line;
        for (long column = 0; column < shape->across; column++)
            for (long channel = 0; channel < shape->channels; channel += LANES) {
                long at = column * shape->channels;
                overlap(shape, row > 0 ? here - line + at : 0, row < down ? here + at : 0, plane, matrix, OUT * row - 1,
                        OUT * column - 1, channel, maps + image * shape->height * shape->width * shape->channels);
            }
    }
}

typedef struct {
    long rows, channels, plane;
    long of_row, of_channel, of_tap; // strides of a kernel, in numbers
    int threads;
} Kernel;

// Evaluated kernels [36, rows, channels] of kernels [rows, channels, 3, 3]; the matrix is [6, 3].
void winograd_kernel(const Kernel *shape, const float *kernel, const float *matrix, float *evaluated) {
    long plane = shape->plane;
    #pragma omp parallel for num_threads(shape->threads) schedule(static)
    for (long row = 0; row < shape->rows; row++)
        for (long channel = 0; channel < shape->channels; channel += LANES) {
            long count = shape->channels - channel < LANES ? shape->channels - channel : LANES;
            const float *from = kernel + row * shape->of_row + channel * shape->of_channel;
            Lanes taps[TAPS][TAPS], along[IN][TAPS];
            memset(taps, 0, sizeof taps);
            for (long lane = 0; lane < count; lane++)
                for (int tap = 0; tap < TAPS * TAPS; tap++)
                    taps[tap / TAPS][tap % TAPS][lane] = from[lane * shape->of_channel + tap * shape->of_tap];
            for (int point = 0; point < IN; point++)
                for (int column = 0; column < TAPS; column++) {
                    along[point][column] = (Lanes){0};
                    for (int tap = 0; tap < TAPS; tap++)
                        along[point][column] += matrix[point * TAPS + tap] * taps[tap][column];
                }
            for (int one = 0; one < IN; one++)
                for (int two = 0; two < IN; two++) {
                    Lanes sum = {0};
                    for (int tap = 0; tap < TAPS; tap++) sum += matrix[two * TAPS + tap] * along[one][tap];
                    put(evaluated + (one * IN + two) * plane + row * shape->channels + channel, sum, count);
                }
        }
}

// The transpose of winograd_kernel.
void winograd_kernel_back(const Kernel *shape, const float *evaluated, const float *matrix, float *kernel) {
    long plane = shape->plane;
    #pragma omp parallel for num_threads(shape->threads) schedule(static)
    for (long row = 0; row < shape->rows; row++)
        for (long channel = 0; channel < shape->channels; channel += LANES) {
            long count = shape->channels - channel < LANES ? shape->channels - channel : LANES;
            float *to = kernel + row * shape->of_row + channel * shape->of_channel;
            Lanes along[TAPS][IN];
            memset(along, 0, sizeof along);
            for (int one = 0; one < IN; one++)
                for (int two = 0; two < IN; two++) {
                    Lanes value = get(evaluated + (one * IN + two) * plane + row * shape->channels + channel, count);
                    for (int tap = 0; tap < TAPS; tap++) along[tap][two] += matrix[one * TAPS + tap] * value;
                }
            for (int tap = 0; tap < TAPS * TAPS; tap++) {
                Lanes sum = {0};
                for (int two = 0; two < IN; two++) sum += matrix[two * TAPS + tap % TAPS] * along[tap / TAPS][two];
                for (long lane = 0; lane < count; lane++)
                    to[lane * shape->of_channel + tap * shape->of_tap] = sum[lane];
            }
        }
}
