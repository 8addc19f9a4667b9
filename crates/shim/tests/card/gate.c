/* What the gate costs a call: a fill of nothing, many times. Prints nanoseconds a call.
 *   cc -O2 gate.c -ldl -o gate && ./gate && LD_PRELOAD=SHIM ./gate */
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

typedef int (*init_t)(unsigned);
typedef int (*get_t)(int *, int);
typedef int (*retain_t)(void **, int);
typedef int (*current_t)(void *);
typedef int (*alloc_t)(unsigned long long *, size_t);
typedef int (*fill_t)(unsigned long long, unsigned char, size_t, void *);

int main(int count, char **words) {
    int calls = count > 1 ? atoi(words[1]) : 200000;
    void *cuda = dlopen("libcuda.so.1", RTLD_NOW);
    int device;
    void *context;
    unsigned long long at;
    if (!cuda || ((init_t)dlsym(cuda, "cuInit"))(0)) return 1;
    ((get_t)dlsym(cuda, "cuDeviceGet"))(&device, 0);
    ((retain_t)dlsym(cuda, "cuDevicePrimaryCtxRetain"))(&context, device);
    ((current_t)dlsym(cuda, "cuCtxSetCurrent"))(context);
    if (((alloc_t)dlsym(cuda, "cuMemAlloc_v2"))(&at, 1 << 20)) return 2;
    fill_t fill = (fill_t)dlsym(cuda, "cuMemsetD8Async");
    double best = 1e9;
    for (int turn = 0; turn < 20; turn++) {
        struct timespec from, to;
        clock_gettime(CLOCK_MONOTONIC, &from);
        for (int number = 0; number < calls; number++)
            if (fill(at, 1, 0, 0)) return 3;
        clock_gettime(CLOCK_MONOTONIC, &to);
        double ns = ((to.tv_sec - from.tv_sec) * 1e9 + (to.tv_nsec - from.tv_nsec)) / calls;
        if (ns < best) best = ns;
    }
    printf("%.1f\n", best);
    return 0;
}
