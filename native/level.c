// The level of instructions that the extension's functions are called with, and the version of their arguments.

#define EXPORTED __attribute__((visibility("default")))

// Raised with every change of an argument, so that an extension of other sources is refused.
EXPORTED int boxwright_interface(void) { return 1; }

// The suffix of the functions to call.
EXPORTED const char *boxwright_level(void) {
#if defined(__x86_64__)
    __builtin_cpu_init();
    if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq") &&
        __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("fma"))
        return "avx512";
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) return "avx2";
#endif
    return "portable";
}
