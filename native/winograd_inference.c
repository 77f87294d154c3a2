// Winograd's convolution with a packed kernel, for inference: blocks of tiles are transformed, multiplied and read off
// while caches hold them. Each number is computed by one thread, so that results do not depend on how many there are.
// Called from ops/native.py.

#include <omp.h>

#include "winograd.h"

// Output channels lie together in a packed kernel by as many as the longest two vectors hold, whatever the level, so
// that a packed kernel is the same on each processor. WIDE of them are computed at once.
enum { PANEL = 32, WIDE = 2 * LANES };

// As many rows of sums as the processor has registers for.
#if defined(__AVX512F__)
enum { ROWS = 12 };
#else
enum { ROWS = 6 };
#endif

// Threads divide the tiles among themselves, or the output channels, so that each reads a part of the kernel: then all
// of them transform the same tiles.
//
// kernel: [36, panels, ins, PANEL], zeros after the last output channel. transformed and products are scratch,
// [36][tiles of a block][ins] and [36][tiles of a block][outs, in whole panels], with `tiles_plane` and `products_plane`
// numbers between the starts of two of the 36; one of each for each thread, but only one `transformed` where channels
// are divided.
typedef struct {
    long images, height, width, down, across, ins, outs, blocks, tiles_plane, products_plane;
    int threads, by_channels;
    const float *maps, *kernel, *bias;
    float *transformed, *products, *outputs;
} Conv;

// Products [rows][WIDE], `apart` numbers between two rows, of tiles [rows][ins] and a panel [ins][PANEL].
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

// Where a tile's outputs begin in its image.
INLINE Place place(const Conv *conv, long tile, long channels) {
    long own = tile % (conv->down * conv->across);
    return (Place){conv->height, conv->width, channels, own / conv->across * OUT, own % conv->across * OUT};
}

INLINE long image_size(const Conv *conv, long channels) { return conv->height * conv->width * channels; }

INLINE void transform_block(const Conv *conv, long first, long last, float *transformed) {
    for (long tile = first; tile < last; tile++) {
        Place at = place(conv, tile, conv->ins);
        at.top--, at.left--;
        const float *map = conv->maps + tile / (conv->down * conv->across) * image_size(conv, conv->ins);
        transform_tile(at, IN, transform_input, map, conv->tiles_plane, transformed + (tile - first) * conv->ins);
    }
}

// The outputs of transformed tiles in the channels of some panels.
INLINE void multiply_block(const Conv *conv, long first, long last, long panel, long end, const float *transformed,
                           float *products) {
    long panels = (conv->outs + PANEL - 1) / PANEL, apart = (end - panel) * PANEL;
    for (long point = 0; point < POINTS; point++)
        for (long column = panel * PANEL; column < end * PANEL; column += WIDE)
            multiply_all(last - first, conv->ins, transformed + point * conv->tiles_plane,
                         conv->kernel + (point * panels + column / PANEL) * conv->ins * PANEL + column % PANEL,
                         products + point * conv->products_plane + column - panel * PANEL, apart);
    long channels = end * PANEL < conv->outs ? end * PANEL : conv->outs;
    for (long tile = first; tile < last; tile++) {
        float *map = conv->outputs + tile / (conv->down * conv->across) * image_size(conv, conv->outs);
        read_tile(place(conv, tile, conv->outs), products + (tile - first) * apart, conv->products_plane, conv->bias,
                  panel * PANEL, channels, map);
    }
}

EXPORTED(winograd_convolve)(const Conv *conv) {
    long count = conv->images * conv->down * conv->across, panels = (conv->outs + PANEL - 1) / PANEL;
    #pragma omp parallel num_threads(conv->threads)
    if (conv->by_channels) {
        for (long block = 0; block < conv->blocks; block++) {
            long first = count * block / conv->blocks, last = count * (block + 1) / conv->blocks;
            #pragma omp for schedule(static)
            for (long tile = first; tile < last; tile++)
                transform_block(conv, tile, tile + 1, conv->transformed + (tile - first) * conv->ins);
            #pragma omp for schedule(static)
            for (int part = 0; part < conv->threads; part++)
                multiply_block(conv, first, last, panels * part / conv->threads, panels * (part + 1) / conv->threads,
                               conv->transformed, conv->products + part * POINTS * conv->products_plane);
        }
    } else {
        float *transformed = conv->transformed + omp_get_thread_num() * POINTS * conv->tiles_plane;
        float *products = conv->products + omp_get_thread_num() * POINTS * conv->products_plane;
        #pragma omp for schedule(static)
        for (long block = 0; block < conv->blocks; block++) {
            long first = count * block / conv->blocks, last = count * (block + 1) / conv->blocks;
            transform_block(conv, first, last, transformed);
            multiply_block(conv, first, last, 0, panels, transformed, products);
        }
    }
}
