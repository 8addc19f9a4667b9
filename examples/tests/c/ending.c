// A thread that frees its memory when it is ending, after everything of the shim's own in that thread is gone.
#include <pthread.h>
#include <stdio.h>
#include <stdint.h>

int cuInit(unsigned), cuDevicePrimaryCtxRetain(void **, int), cuCtxSetCurrent(void *);
int cuMemAlloc_v2(uint64_t *, size_t), cuMemFree_v2(uint64_t), cuMemGetInfo_v2(size_t *, size_t *);

static void *context;
static pthread_key_t key;
static int freed = -1;

static void at_end(void *at) {
    freed = cuMemFree_v2((uint64_t)at);
}

static void *work(void *nothing) {
    uint64_t at = 0;
    if (cuCtxSetCurrent(context) == 0 && cuMemAlloc_v2(&at, 64 << 20) == 0)
        pthread_setspecific(key, (void *)at);
    return nothing;
}

int main(void) {
    size_t before, after, total;
    if (cuInit(0) || cuDevicePrimaryCtxRetain(&context, 0) || cuCtxSetCurrent(context))
        return 3;
    pthread_key_create(&key, at_end);
    cuMemGetInfo_v2(&before, &total);
    for (int turn = 0; turn < 20; turn++) {
        pthread_t thread;
        pthread_create(&thread, NULL, work, NULL);
        pthread_join(thread, NULL);
    }
    cuMemGetInfo_v2(&after, &total);
    printf("freed %d less %zu\n", freed, before - after);
    return 0;
}
