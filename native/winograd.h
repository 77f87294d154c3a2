// Winograd's convolution of 3×3: what is computed of one tile.
//
// Tile and kernel are seen as polynomials, evaluated at points, and multiplied there; the outputs are read off the
// product. A transform in two dimensions is one of the functions below along rows, then along columns. Maps are float32
// with channels last, [images, height, width, channels]; of a transformed tile there are 36 numbers for each channel,
// `plane` numbers apart. The same with matrices is in ops/winograd.py.

#pragma once

#include "lanes.h"

enum { OUT = 4, IN = 6, TAPS = 3, POINTS = IN * IN };

// The points are 0, A, -A, B, -B and infinity, where A × B = 1. For points that differ by sign, even and odd powers are
// summed once.
#define A (2.0 / 3)
#define B (3.0 / 2)
#define SQUARES ((float)(A * A + B * B))
// Factors of the polynomials that are 1 at one point and 0 at the others.
#define GAIN_A (1 / (2 * A * A * (A * A - B * B)))
#define GAIN_B (1 / (2 * B * B * (B * B - A * A)))

typedef void Transform(const Lanes *, Lanes *);

// The values [6] that are multiplied by a kernel's, from a tile's side [6].
INLINE void transform_input(const Lanes *side, Lanes *values) {
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

INLINE void transposed_transform_input(const Lanes *values, Lanes *side) {
    Lanes even_a = values[1] + values[2], odd_a = values[1] - values[2];
    Lanes even_b = values[3] + values[4], odd_b = values[3] - values[4];
    side[0] = values[0];
    side[1] = values[5] - (float)(GAIN_A * A * B * B) * odd_a - (float)(GAIN_B * B * A * A) * odd_b;
    side[2] = -SQUARES * values[0] - (float)(GAIN_A * B * B) * even_a - (float)(GAIN_B * A * A) * even_b;
    side[3] = -SQUARES * values[5] + (float)(GAIN_A * A) * odd_a + (float)(GAIN_B * B) * odd_b;
    side[4] = values[0] + (float)GAIN_A * even_a + (float)GAIN_B * even_b;
    side[5] = values[5];
}

// Outputs [4] from values [6].
INLINE void transform_output(const Lanes *values, Lanes *outputs) {
    Lanes even_a = values[1] + values[2], odd_a = values[1] - values[2];
    Lanes even_b = values[3] + values[4], odd_b = values[3] - values[4];
    outputs[0] = values[0] + even_a + even_b;
    outputs[1] = (float)A * odd_a + (float)B * odd_b;
    outputs[2] = (float)(A * A) * even_a + (float)(B * B) * even_b;
    outputs[3] = values[5] + (float)(A * A * A) * odd_a + (float)(B * B * B) * odd_b;
}

INLINE void transposed_transform_output(const Lanes *outputs, Lanes *values) {
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

// Values [6] from a kernel's side [3].
INLINE void transform_kernel(const Lanes *side, Lanes *values) {
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

INLINE void transposed_transform_kernel(const Lanes *values, Lanes *side) {
    Lanes even_a = values[1] + values[2], even_b = values[3] + values[4];
    side[0] = values[0] + even_a + even_b;
    side[1] = (float)A * (values[1] - values[2]) + (float)B * (values[3] - values[4]);
    side[2] = values[5] + (float)(A * A) * even_a + (float)(B * B) * even_b;
}

// A map's size, and where a tile begins in it.
typedef struct {
    long height, width, channels, top, left;
} Place;

INLINE void transform_lanes(Place at, int side, Transform transform, const float *map, long count, int whole,
                            long plane, float *tile) {
    Lanes along[IN][IN], line[IN], values[IN];
    for (int column = 0; column < side; column++) {
        for (int row = 0; row < side; row++) {
            long y = at.top + row, x = at.left + column;
            int inside = whole || (y >= 0 && y < at.height && x >= 0 && x < at.width);
            line[row] = inside ? get(map + (y * at.width + x) * at.channels, count) : (Lanes){0};
        }
        transform(line, values);
        for (int point = 0; point < IN; point++) along[point][column] = values[point];
    }
    for (int row = 0; row < IN; row++) {
        transform(along[row], values);
        for (int column = 0; column < IN; column++) put(tile + (row * IN + column) * plane, values[column], count);
    }
}

// The transformed tile of `side` rows and columns of a map; what is outside the map is zero.
INLINE void transform_tile(Place at, int side, Transform transform, const float *map, long plane, float *tile) {
    int inside = at.top >= 0 && at.left >= 0 && at.top + side <= at.height && at.left + side <= at.width;
    for (long channel = 0; channel < at.channels; channel += LANES) {
        long count = at.channels - channel;
        if (inside && count >= LANES)
            transform_lanes(at, side, transform, map + channel, LANES, 1, plane, tile + channel);
        else
            transform_lanes(at, side, transform, map + channel, count, 0, plane, tile + channel);
    }
}

INLINE void read_lanes(Place at, const float *tile, long plane, const float *bias, long count, int whole, float *map) {
    Lanes along[OUT][IN], line[IN], outputs[OUT], shift = get(bias, count);
    for (int column = 0; column < IN; column++) {
        for (int row = 0; row < IN; row++) line[row] = get(tile + (row * IN + column) * plane, count);
        transform_output(line, outputs);
        for (int row = 0; row < OUT; row++) along[row][column] = outputs[row];
    }
    for (int row = 0; row < OUT && (whole || at.top + row < at.height); row++) {
        transform_output(along[row], outputs);
        for (int column = 0; column < OUT && (whole || at.left + column < at.width); column++)
            put(map + ((at.top + row) * at.width + at.left + column) * at.channels, outputs[column] + shift, count);
    }
}

// Writes a tile's 4×4 outputs, plus a bias, in the channels from `begin` to `end`, the only ones that `tile` holds.
INLINE void read_tile(Place at, const float *tile, long plane, const float *bias, long begin, long end, float *map) {
    int inside = at.top + OUT <= at.height && at.left + OUT <= at.width;
    for (long channel = begin; channel < end; channel += LANES) {
        long count = end - channel;
        if (inside && count >= LANES)
            read_lanes(at, tile + channel - begin, plane, bias + channel, LANES, 1, map + channel);
        else
            read_lanes(at, tile + channel - begin, plane, bias + channel, count, 0, map + channel);
    }
}
