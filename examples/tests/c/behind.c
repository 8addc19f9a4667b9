// A library that stands in for a function of the driver's and calls the next one, as tracers do (-DLIBRARY), and a program
// that uses it.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>

#ifdef LIBRARY
int cuMemAlloc_v2(uint64_t *at, size_t bytes) {
    int (*next)(uint64_t *, size_t) = (int (*)(uint64_t *, size_t))dlsym(RTLD_NEXT, "cuMemAlloc_v2");
    void *versioned = dlvsym(RTLD_NEXT, "cuMemAlloc_v2", "any");
    if (!next || next == cuMemAlloc_v2 || versioned == (void *)cuMemAlloc_v2)
        return 9999;
    printf("before\n");
    return next(at, bytes);
}

int through(uint64_t *at, size_t bytes) {
    // The loader's, not that of whoever stands before: by it the C library finds its own.
    if (!dlsym(RTLD_NEXT, "getpid") || dlsym(RTLD_NEXT, "through") || dlsym(RTLD_NEXT, "cuNoSuchFunction"))
        return 9998;
    return cuMemAlloc_v2(at, bytes);
}
#else
int cuInit(unsigned), cuDevicePrimaryCtxRetain(void **, int), cuCtxSetCurrent(void *);
int through(uint64_t *, size_t);

int main(void) {
    void *context;
    uint64_t at = 0;
    if (cuInit(0) || cuDevicePrimaryCtxRetain(&context, 0) || cuCtxSetCurrent(context))
        return 3;
    printf("%d\n", through(&at, 8 << 20));
    fflush(stdout);
    return getchar() == EOF ? 0 : 4;
}
#endif
