/* Preloaded into a process, lets one allocation of at least LEAST bytes return no memory: the one of a number, from 1,
   counted from a call of `fail_allocation`. With glibc, whose own names of these functions are used. */
#include <errno.h>
#include <stdatomic.h>
#include <stddef.h>

enum { LEAST = 64 * 1024 };

void *__libc_malloc(size_t);
void *__libc_calloc(size_t, size_t);
void *__libc_realloc(void *, size_t);
void *__libc_memalign(size_t, size_t);

static atomic_long count, chosen = -1;

void fail_allocation(long number) {
    atomic_store(&chosen, number);
    atomic_store(&count, 0);
}

long count_allocations(void) { return atomic_load(&count); }

static int fails(size_t bytes) {
    if (bytes < LEAST || atomic_load(&chosen) < 0) return 0;
    return atomic_fetch_add(&count, 1) + 1 == atomic_load(&chosen);
}

static void *none(void) {
    errno = ENOMEM;
    return NULL;
}

void *malloc(size_t bytes) { return fails(bytes) ? none() : __libc_malloc(bytes); }

void *calloc(size_t number, size_t bytes) {
    size_t all;
    if (!__builtin_mul_overflow(number, bytes, &all) && fails(all)) return none();
    return __libc_calloc(number, bytes);
}

void *realloc(void *old, size_t bytes) { return fails(bytes) ? none() : __libc_realloc(old, bytes); }

void *memalign(size_t alignment, size_t bytes) { return fails(bytes) ? none() : __libc_memalign(alignment, bytes); }

void *aligned_alloc(size_t alignment, size_t bytes) { return memalign(alignment, bytes); }

int posix_memalign(void **place, size_t alignment, size_t bytes) {
    void *found = memalign(alignment, bytes);
    if (!found) return ENOMEM;
    *place = found;
    return 0;
}
