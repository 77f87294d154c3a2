// The sigmoid focal loss of rows of logits, and its gradient, each in one pass: float32 [rows, columns].
//
// A column is positive where it is its row's class, and negative elsewhere. Called from sigmoid_focal.py, which says
// what the arguments are.

#include "pointwise.h"

enum { LANES = 16 };
enum { ANY = -1 }; // the power is neither 0 nor 2

typedef struct {
    long rows, columns;
    int threads;
    float gamma, negative, positive; // the latter two weigh columns
} Shape;

// log(1 + e) for e from 0 to 1: the series of the inverse hyperbolic tangent of e / (2 + e), which is at most 1/3.
static inline float log_1_plus(float e) {
    float t = e / (2.0f + e), square = t * t, sum = 1.0f / 13.0f;
    sum = sum * square + 1.0f / 11.0f;
    sum = sum * square + 1.0f / 9.0f;
    sum = sum * square + 1.0f / 7.0f;
    sum = sum * square + 1.0f / 5.0f;
    sum = sum * square + 1.0f / 3.0f;
    return 2.0f * (t + t * square * sum);
}

typedef struct {
    float loss, slope;
} Focal;

// Of a negative column with logit x; s is its sigmoid, c = -log(1 - s). A positive one has the loss of -x.
static inline Focal negative_focal(int power, float gamma, float x) {
    float e = exponential(x < 0.0f ? x : -x), log_e = log_1_plus(e), larger = 1.0f / (1.0f + e), smaller = e * larger;
    float s = x < 0.0f ? smaller : larger, rest = x < 0.0f ? larger : smaller;
    float c = (x < 0.0f ? 0.0f : x) + log_e;
    float eased = power == 0 ? 1.0f : power == 2 ? s * s : exponential(gamma * ((x < 0.0f ? x : 0.0f) - log_e));
    return (Focal){eased * c, eased * (s + gamma * rest * c)};
}

static inline int count_from(const Shape *shape, long first) {
    return shape->columns - first < LANES ? (int)(shape->columns - first) : LANES;
}

// The next columns of a row, of which `count` are there and `place` is the positive one; the others' loss is 0.
static inline void read(const Shape *shape, const float *x, int count, int place, float *logits, float *weights) {
    // Not by memcpy: of a size that is not constant it becomes an instruction that takes longer than the rest, and of
    // others moves of half vectors, for which a read of a whole one waits.
    if (count == LANES)
        for (int k = 0; k < LANES; k++) logits[k] = x[k];
    else
        for (int k = 0; k < LANES; k++) logits[k] = k < count ? x[k] : 0.0f;
    for (int k = 0; k < LANES; k++) {
        float weight = k == place ? shape->positive : shape->negative;
        weights[k] = k < count ? weight : 0.0f;
        logits[k] = k == place ? -logits[k] : logits[k];
    }
}

INLINE float row_loss(int power, const Shape *shape, const float *x, long column) {
    float total[LANES] = {0}, logits[LANES], weights[LANES], sum = 0.0f;
    for (long first = 0; first < shape->columns; first += LANES) {
        read(shape, x + first, count_from(shape, first), (int)(column - first), logits, weights);
        for (int k = 0; k < LANES; k++) total[k] += weights[k] * negative_focal(power, shape->gamma, logits[k]).loss;
    }
    for (int k = 0; k < LANES; k++) sum += total[k];
    return sum;
}

INLINE void row_slope(int power, const Shape *shape, const float *x, long column, float gradient, float *to_x) {
    float slopes[LANES], logits[LANES], weights[LANES];
    for (long first = 0; first < shape->columns; first += LANES) {
        int count = count_from(shape, first), place = (int)(column - first);
        read(shape, x + first, count, place, logits, weights);
        for (int k = 0; k < LANES; k++) {
            float slope = gradient * weights[k] * negative_focal(power, shape->gamma, logits[k]).slope;
            slopes[k] = k == place ? -slope : slope;
        }
        if (count == LANES)
            for (int k = 0; k < LANES; k++) to_x[first + k] = slopes[k];
        else
            for (int k = 0; k < count; k++) to_x[first + k] = slopes[k];
    }
}

// Chooses the version of a function whose power is a constant.
#define OF_POWER(shape, call)                                                                                          \
    do {                                                                                                               \
        if ((shape)->gamma == 2.0f)                                                                                    \
            call(2);                                                                                                   \
        else if ((shape)->gamma == 0.0f)                                                                               \
            call(0);                                                                                                   \
        else                                                                                                           \
            call(ANY);                                                                                                 \
    } while (0)

ROWS losses_of(const Shape *shape, const float *x, long column, float *loss) {
#define CALL(power) *loss = row_loss(power, shape, x, column)
    OF_POWER(shape, CALL);
#undef CALL
}

ROWS slopes_of(const Shape *shape, const float *x, long column, float gradient, float *to_x) {
#define CALL(power) row_slope(power, shape, x, column, gradient, to_x)
    OF_POWER(shape, CALL);
#undef CALL
}

// Of each row, the sum over its columns. classes: the positive column, or -1.
void sigmoid_focal_losses(const Shape *shape, const float *x, const long *classes, float *losses) {
#pragma omp parallel for num_threads(shape->threads) schedule(static)
    for (long row = 0; row < shape->rows; row++)
        losses_of(shape, x + row * shape->columns, classes[row], losses + row);
}

// The gradient of the logits from that of the rows' losses.
void sigmoid_focal_slopes(const Shape *shape, const float *gradients, const float *x, const long *classes,
                          float *to_x) {
#pragma omp parallel for num_threads(shape->threads) schedule(static)
    for (long row = 0; row < shape->rows; row++)
        slopes_of(shape, x + row * shape->columns, classes[row], gradients[row], to_x + row * shape->columns);
}
