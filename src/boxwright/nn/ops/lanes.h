// Vectors as long as the processor's: the compiler keeps longer ones in memory.

#pragma once

#if defined(__AVX512F__)
enum { LANES = 16 };
#elif defined(__AVX__)
enum { LANES = 8 };
#else
enum { LANES = 4 };
#endif

typedef float Lanes __attribute__((vector_size(4 * LANES), aligned(4), may_alias));

#define INLINE static inline __attribute__((always_inline))

// The first `count` of a vector, LANES at most; the others are 0. Not by memcpy: compilers copy a vector by halves
// through memory, whose read as a whole then waits (four times as long on an EPYC of the third generation).
INLINE Lanes get(const float *from, long count) {
    if (count >= LANES) return *(const Lanes *)from;
    Lanes value = {0};
    for (long k = 0; k < count; k++) value[k] = from[k];
    return value;
}

INLINE void put(float *to, Lanes value, long count) {
    if (count >= LANES)
        *(Lanes *)to = value;
    else
        for (long k = 0; k < count; k++) to[k] = value[k];
}
