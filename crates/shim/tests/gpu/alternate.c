/* Calls of the driver in blocks, in turns through the shim and straight to the driver, in one process (both.c).
 *   cc -O2 alternate.c -ldl -o alternate && LD_PRELOAD=both.so:SHIM ./alternate fill|launch|control [PAIRS] [CALLS]
 * fill: a fill of nothing, which is hardly more than the gate. launch: a kernel that does nothing. control: the same
 * without the shim, so that both ways are the driver's.
 * Prints a line for each pair of blocks: nanoseconds a call through the shim, and without it. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

static const char PTX[] = ".version 7.0\n.target sm_70\n.address_size 64\n.visible .entry nothing() { ret; }\n";

typedef int (*init_t)(unsigned);
typedef int (*retain_t)(void **, int);
typedef int (*current_t)(void *);
typedef int (*alloc_t)(unsigned long long *, size_t);
typedef int (*fill_t)(unsigned long long, unsigned char, size_t, void *);
typedef int (*load_t)(void **, const void *);
typedef int (*function_t)(void **, void *, const char *);
typedef int (*launch_t)(void *, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, void *, void **, void **);
typedef int (*sync_t)(void);

static fill_t fill;
static launch_t launch;
static sync_t sync_;
static void *function;
static unsigned long long at;

static double block(int is_fill, int calls) {
    struct timespec from, to;
    clock_gettime(CLOCK_MONOTONIC, &from);
    for (int number = 0; number < calls; number++) {
        if (is_fill ? fill(at, 1, 0, 0) : launch(function, 1, 1, 1, 1, 1, 1, 0, 0, 0, 0)) exit(5);
        /* The GPU keeps up: what is waited for otherwise is a place in its queue. */
        if (!is_fill && number % 500 == 499) sync_();
    }
    clock_gettime(CLOCK_MONOTONIC, &to);
    sync_();
    return ((to.tv_sec - from.tv_sec) * 1e9 + (to.tv_nsec - from.tv_nsec)) / calls;
}

int main(int count, char **words) {
    int is_fill = count > 1 && !strcmp(words[1], "fill");
    int pairs = count > 2 ? atoi(words[2]) : 400, calls = count > 3 ? atoi(words[3]) : is_fill ? 100000 : 2000;
    void *cuda = dlopen("libcuda.so.1", RTLD_NOW), *context, *module;
    int (*through)(int) = (int (*)(int))dlsym(RTLD_DEFAULT, "through");
    if (!cuda || !through || ((init_t)dlsym(cuda, "cuInit"))(0)) return 1;
    if (((retain_t)dlsym(cuda, "cuDevicePrimaryCtxRetain"))(&context, 0)) return 2;
    ((current_t)dlsym(cuda, "cuCtxSetCurrent"))(context);
    if (((alloc_t)dlsym(cuda, "cuMemAlloc_v2"))(&at, 1 << 20)) return 2;
    if (((load_t)dlsym(cuda, "cuModuleLoadData"))(&module, PTX)) return 2;
    if (((function_t)dlsym(cuda, "cuModuleGetFunction"))(&function, module, "nothing")) return 3;
    fill = (fill_t)dlsym(cuda, "cuMemsetD8Async");
    launch = (launch_t)dlsym(cuda, "cuLaunchKernel");
    sync_ = (sync_t)dlsym(cuda, "cuCtxSynchronize");
    /* Launches, fills and questions: with the shim they differ, without it nothing does. */
    int is_control = count > 1 && !strcmp(words[1], "control");
    if (is_control ? through(1) != 0 : through(1) < 2) return 4;
    srandom(1);
    block(is_fill, calls);
    for (int pair = 0; pair < pairs; pair++) {
        double took[2];
        int first = random() >> 8 & 1;
        for (int turn = 0; turn < 2; turn++) {
            int shim = turn ^ first;
            through(shim);
            took[shim] = block(is_fill, calls);
        }
        printf("%.2f %.2f\n", took[1], took[0]);
    }
    through(1);
    return 0;
}
