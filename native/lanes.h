// Vectors as long as the processor's registers: the compiler keeps longer ones in memory.

#pragma once

#if defined(__AVX512F__)
enum { LANES = 16 };
#elif defined(__AVX2__)
enum { LANES = 8 };
#else
enum { LANES = 4 };
#endif

typedef float Lanes __attribute__((vector_size(4 * LANES), aligned(4), may_alias));

#define INLINE static inline __attribute__((always_inline))

// The sources are compiled once for each level of instructions, and `level.c` says which of them a processor has.
#define JOIN_EXPANDED(name, level) name##_##level
#define JOIN(name, level) JOIN_EXPANDED(name, level)
#define EXPORTED(name) __attribute__((visibility("default"))) void JOIN(name, LEVEL)

// The first `count` lanes, at most LANES; the others are 0. memcpy would be slower: compilers copy a vector by halves
// through memory, and reading it as a whole then waits (four times as long on an EPYC of the third generation).
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
