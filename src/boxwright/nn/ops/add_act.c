// The activated sum of two maps. Called from add_act.py.

#include "pointwise.h"

typedef struct {
    long count;
    int threads, kind;
    float low, high; // of CLAMP; infinite where there is no bound
} Shape;

ROWS add(int kind, float low, float high, long count, const float *restrict other, float *restrict maps) {
    for (long k = 0; k < count; k++) maps[k] = activated(kind, low, high, maps[k] + other[k]);
}

void add_act(const Shape *shape, const float *other, float *maps) {
    #pragma omp parallel for num_threads(shape->threads) schedule(static)
    for (int part = 0; part < shape->threads; part++) {
        long first = bound(shape->count, shape->threads, part), last = bound(shape->count, shape->threads, part + 1);
        if (shape->kind == SWISH)
            add(SWISH, shape->low, shape->high, last - first, other + first, maps + first);
        else
            add(CLAMP, shape->low, shape->high, last - first, other + first, maps + first);
    }
}
