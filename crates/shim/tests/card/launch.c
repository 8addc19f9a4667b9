/* How fast a program launches kernels that do nothing: the strictest case for the gate. Prints launches a second.
 *   cc -O2 launch.c -ldl -o launch && ./launch && LD_PRELOAD=SHIM ./launch */
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

static const char PTX[] = ".version 7.0\n.target sm_70\n.address_size 64\n.visible .entry nothing() { ret; }\n";

typedef int (*init_t)(unsigned);
typedef int (*get_t)(int *, int);
typedef int (*retain_t)(void **, int);
typedef int (*current_t)(void *);
typedef int (*load_t)(void **, const void *);
typedef int (*function_t)(void **, void *, const char *);
typedef int (*launch_t)(void *, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, void *, void **, void **);
typedef int (*sync_t)(void);

int main(int count, char **words) {
    int launches = count > 1 ? atoi(words[1]) : 400000;
    void *cuda = dlopen("libcuda.so.1", RTLD_NOW), *context, *module, *function;
    int device;
    struct timespec from, to;
    if (!cuda || ((init_t)dlsym(cuda, "cuInit"))(0)) return 1;
    ((get_t)dlsym(cuda, "cuDeviceGet"))(&device, 0);
    ((retain_t)dlsym(cuda, "cuDevicePrimaryCtxRetain"))(&context, device);
    ((current_t)dlsym(cuda, "cuCtxSetCurrent"))(context);
    if (((load_t)dlsym(cuda, "cuModuleLoadData"))(&module, PTX)) return 2;
    if (((function_t)dlsym(cuda, "cuModuleGetFunction"))(&function, module, "nothing")) return 3;
    launch_t launch = (launch_t)dlsym(cuda, "cuLaunchKernel");
    sync_t sync = (sync_t)dlsym(cuda, "cuCtxSynchronize");
    for (int turn = 0; turn < 2; turn++) {
        clock_gettime(CLOCK_MONOTONIC, &from);
        for (int number = 0; number < launches; number++) {
            if (launch(function, 1, 1, 1, 1, 1, 1, 0, 0, 0, 0)) return 4;
            if (number % 500 == 499) sync();
        }
        sync();
        clock_gettime(CLOCK_MONOTONIC, &to);
    }
    printf("%.0f\n", launches / ((to.tv_sec - from.tv_sec) + (to.tv_nsec - from.tv_nsec) / 1e9));
    return 0;
}
