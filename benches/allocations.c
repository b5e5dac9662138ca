// Counts what a process allocates on the heap, to be preloaded: LD_PRELOAD=allocations.so. Read the counts by
// forebay_bench_allocations. Needs glibc, whose own functions do the work.

#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>

extern void *__libc_malloc(size_t);
extern void *__libc_calloc(size_t, size_t);
extern void *__libc_realloc(void *, size_t);
extern void *__libc_memalign(size_t, size_t);

static _Atomic uint64_t calls, bytes;

static void count(size_t size) {
    atomic_fetch_add_explicit(&calls, 1, memory_order_relaxed);
    atomic_fetch_add_explicit(&bytes, size, memory_order_relaxed);
}

void forebay_bench_allocations(uint64_t *calls_out, uint64_t *bytes_out) {
    *calls_out = calls;
    *bytes_out = bytes;
}

void *malloc(size_t size) {
    count(size);
    return __libc_malloc(size);
}

void *calloc(size_t items, size_t size) {
    count(items * size);
    return __libc_calloc(items, size);
}

void *realloc(void *old, size_t size) {
    count(size);
    return __libc_realloc(old, size);
}

void *memalign(size_t alignment, size_t size) {
    count(size);
    return __libc_memalign(alignment, size);
}

void *aligned_alloc(size_t alignment, size_t size) {
    count(size);
    return __libc_memalign(alignment, size);
}

int posix_memalign(void **out, size_t alignment, size_t size) {
    count(size);
    void *got = __libc_memalign(alignment, size);
    if (!got) return 12;
    *out = got;
    return 0;
}
