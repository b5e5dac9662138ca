// What this machine can do at most: a file read in order, or at places far from each other, into memory of a given size.
//
//   limits FILE READ_BYTES MEMORY_BYTES THREADS LEAST_SECONDS LEAST_PASSES cached|direct|scattered
//
// The memory is cut into buffers of READ_BYTES that are used in turn: eight of them stay in the last cache, as many as a
// loader's slab do not. Threads take every THREADSth read and have buffers of their own. `cached` reads through the page
// cache into a memfd, populated beforehand. `direct` reads past it, into huge pages where there are any: small ones cost a
// disk two thirds of its rate; its threads are the reads in flight. `scattered` does so at places far from each other. Whole
// passes are made until both leasts are reached; one line of JSON says how long each took. No options, no defaults: the
// benchmark calls it.

#define _GNU_SOURCE
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

enum { PASSES_MAX = 4096, THREADS_MAX = 64, DIRECT_ALIGN = 4096, HUGE_PAGE_BYTES = 2 << 20 };

struct job {
    const char *path;
    char *memory;
    size_t read_bytes, buffers, size, stride;
    unsigned threads, number;
    int flags;
    pthread_barrier_t *barrier;
    const int *over;
    size_t places;
};

static void check(int ok, const char *what) {
    if (!ok) {
        perror(what);
        exit(1);
    }
}

static double now_s(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec + t.tv_nsec * 1e-9;
}

static double cpu_s(void) {
    struct rusage u;
    getrusage(RUSAGE_SELF, &u);
    return u.ru_utime.tv_sec + u.ru_stime.tv_sec + 1e-6 * (u.ru_utime.tv_usec + u.ru_stime.tv_usec);
}

static void *reader(void *argument) {
    struct job *job = argument;
    int fd = open(job->path, O_RDONLY | O_CLOEXEC | job->flags);
    check(fd >= 0, "open");
    for (;;) {
        pthread_barrier_wait(job->barrier);
        if (*job->over) break;
        size_t buffer = 0, reads = (job->size + job->read_bytes - 1) / job->read_bytes;
        for (size_t i = job->number; i < reads; i += job->threads) {
            size_t at = i * job->stride % reads * job->read_bytes;
            size_t bytes = job->size - at < job->read_bytes ? job->size - at : job->read_bytes;
            char *into = job->memory + (job->number * job->buffers + buffer) * job->read_bytes;
            // Direct reads are of whole pages, and end with the file.
            size_t asked = job->flags ? (bytes + DIRECT_ALIGN - 1) / DIRECT_ALIGN * DIRECT_ALIGN : bytes;
            check(pread(fd, into, asked, at) == (ssize_t)bytes, "pread");
            buffer = buffer + 1 == job->buffers ? 0 : buffer + 1;
            job->places += at / job->read_bytes + 1;
        }
        pthread_barrier_wait(job->barrier);
    }
    close(fd);
    return NULL;
}

// The number nearest above `part` of `reads` that has no factor in common with it: multiples of it come to every read once.
static size_t stride_of(size_t reads, double part) {
    for (size_t stride = reads * part + 1;; stride++) {
        size_t a = stride, b = reads;
        while (b) {
            size_t rest = a % b;
            a = b;
            b = rest;
        }
        if (a == 1) return stride;
    }
}

static char *cached_memory(size_t bytes) {
    int fd = memfd_create("limits", MFD_CLOEXEC);
    check(fd >= 0, "memfd_create");
    check(ftruncate(fd, bytes) == 0, "ftruncate");
    char *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, fd, 0);
    check(memory != MAP_FAILED, "mmap");
    return memory;
}

static char *direct_memory(size_t bytes) {
    void *memory = NULL;
    bytes = (bytes + HUGE_PAGE_BYTES - 1) / HUGE_PAGE_BYTES * HUGE_PAGE_BYTES;
    check(posix_memalign(&memory, HUGE_PAGE_BYTES, bytes) == 0, "posix_memalign");
    (void)madvise(memory, bytes, MADV_HUGEPAGE);
    memset(memory, 1, bytes);
    return memory;
}

int main(int count, char **words) {
    int scattered = count == 8 && strcmp(words[7], "scattered") == 0;
    int direct = scattered || (count == 8 && strcmp(words[7], "direct") == 0);
    if (count != 8 || (!direct && strcmp(words[7], "cached") != 0)) {
        fprintf(stderr, "usage: limits FILE READ_BYTES MEMORY_BYTES THREADS LEAST_SECONDS LEAST_PASSES "
                        "cached|direct|scattered\n");
        return 2;
    }
    size_t read_bytes = strtoull(words[2], NULL, 10), memory_bytes = strtoull(words[3], NULL, 10);
    unsigned threads = strtoul(words[4], NULL, 10), least_passes = strtoul(words[6], NULL, 10);
    double least_s = strtod(words[5], NULL);
    if (!read_bytes || !threads || threads > THREADS_MAX || memory_bytes / threads < read_bytes ||
        (direct && read_bytes % DIRECT_ALIGN)) {
        fprintf(stderr, "limits: sizes that make no sense\n");
        return 2;
    }
    struct stat about;
    check(stat(words[1], &about) == 0, "stat");
    char *memory = direct ? direct_memory(memory_bytes) : cached_memory(memory_bytes);

    size_t reads = (about.st_size + read_bytes - 1) / read_bytes;
    size_t stride = scattered ? stride_of(reads, 0.618) : 1;
    int over = 0;
    pthread_t ids[THREADS_MAX];
    struct job jobs[THREADS_MAX];
    pthread_barrier_t barrier;
    pthread_barrier_init(&barrier, NULL, threads + 1);
    for (unsigned i = 0; i < threads; i++) {
        jobs[i] = (struct job){
            .path = words[1],
            .memory = memory,
            .read_bytes = read_bytes,
            .buffers = memory_bytes / read_bytes / threads,
            .size = about.st_size,
            .stride = stride,
            .threads = threads,
            .number = i,
            .flags = direct ? O_DIRECT : 0,
            .barrier = &barrier,
            .over = &over,
        };
        check(pthread_create(&ids[i], NULL, reader, &jobs[i]) == 0, "pthread_create");
    }
    static double passes_s[PASSES_MAX];
    unsigned passes = 0;
    double began_s = now_s(), cpu_before_s = cpu_s();
    while (passes < PASSES_MAX && (passes < least_passes || now_s() - began_s < least_s)) {
        double start_s = now_s();
        pthread_barrier_wait(&barrier);
        pthread_barrier_wait(&barrier);
        passes_s[passes++] = now_s() - start_s;
    }
    double cpu_used_s = cpu_s() - cpu_before_s;
    over = 1;
    pthread_barrier_wait(&barrier);
    size_t places = 0;
    for (unsigned i = 0; i < threads; i++) {
        pthread_join(ids[i], NULL);
        places += jobs[i].places;
    }
    if (places != passes * (reads * (reads + 1) / 2)) {
        fprintf(stderr, "limits: not every place was read once\n");
        return 1;
    }

    printf("{\"epoch_bytes\": %zu, \"cpu_s\": %.6f, \"epoch_s\": [", (size_t)about.st_size, cpu_used_s);
    for (unsigned i = 0; i < passes; i++) printf("%s%.6f", i ? ", " : "", passes_s[i]);
    printf("]}\n");
    return 0;
}
