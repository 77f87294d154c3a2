// Bilinear resizing of images of three channels that lie together, in TF's order of operations. Called from resize.py.

#include <stdint.h>

typedef struct {
    long images, height, width, down, across;
    int threads, bytes; // whether pixels are bytes; if not, they are float32
} Shape;

// For each new row or column the rows or columns of the image before and after it, [2][size], and how far it lies past
// the first.
typedef struct {
    const int *places;
    const float *shares;
} Axis;

// A pixel and the first number of the next one; so each line has an extra number at its end.
typedef float Pixel __attribute__((vector_size(16), aligned(4), may_alias));
enum { CHANNELS = 3, EXTRA = 1 };

static void copy_line(const Shape *shape, const void *pixels, long row, float *line) {
    long count = shape->width * CHANNELS;
    if (shape->bytes)
        for (long k = 0; k < count; k++) line[k] = ((const uint8_t *)pixels)[row * count + k];
    else
        for (long k = 0; k < count; k++) line[k] = ((const float *)pixels)[row * count + k];
}

static void resize_line(long across, Axis columns, const float *line, float *into) {
    for (long column = 0; column < across; column++) {
        Pixel left = *(const Pixel *)(line + columns.places[column] * CHANNELS);
        Pixel right = *(const Pixel *)(line + columns.places[across + column] * CHANNELS);
        *(Pixel *)(into + column * CHANNELS) = left + (right - left) * columns.shares[column];
    }
}

// scratch: for each thread two new lines and one of the image. A line of the image is resized once for all the new ones
// that a thread makes of it.
void resize_bilinear(const Shape *shape, const void *pixels, const int *rows, const float *row_shares,
                     const int *columns, const float *column_shares, float *scratch, float *into) {
    Axis along = {columns, column_shares};
    long count = shape->images * shape->down, line = shape->across * CHANNELS;
    long of_thread = 2 * (line + EXTRA) + shape->width * CHANNELS + EXTRA;
    #pragma omp parallel for num_threads(shape->threads) schedule(static)
    for (int part = 0; part < shape->threads; part++) {
        float *slots = scratch + part * of_thread, *source = slots + 2 * (line + EXTRA);
        long held[2] = {-1, -1}; // the rows of the image in the slots: an even one and an odd one
        for (long row = count * part / shape->threads; row < count * (part + 1) / shape->threads; row++) {
            const float *ends[2];
            for (int end = 0; end < 2; end++) {
                long wanted = row / shape->down * shape->height + rows[end * shape->down + row % shape->down];
                float *slot = slots + wanted % 2 * (line + EXTRA);
                if (held[wanted % 2] != wanted) {
                    copy_line(shape, pixels, wanted, source);
                    resize_line(shape->across, along, source, slot);
                    held[wanted % 2] = wanted;
                }
                ends[end] = slot;
            }
            float share = row_shares[row % shape->down], *to = into + row * line;
            for (long k = 0; k < line; k++) to[k] = ends[0][k] + (ends[1][k] - ends[0][k]) * share;
        }
    }
}
