// Says what NVML tells of the first card's memory, reached by linking and by looking up.
#include <dlfcn.h>
#include <stdio.h>

typedef struct { unsigned long long total, free, used; } Memory;
typedef struct { unsigned version; unsigned long long total, reserved, free, used; } Memory2;

int nvmlInit_v2(void);
int nvmlDeviceGetHandleByIndex_v2(unsigned, void **);
int nvmlDeviceGetMemoryInfo(void *, Memory *);
int nvmlDeviceGetMemoryInfo_v2(void *, Memory2 *);

static void say(unsigned long long total, unsigned long long free, unsigned long long used) {
    printf("%llu %llu %llu\n", total >> 20, free >> 20, used >> 20);
}

int main(void) {
    void *card;
    Memory memory;
    Memory2 more = {.version = sizeof(Memory2) | 2 << 24};
    if (nvmlInit_v2() || nvmlDeviceGetHandleByIndex_v2(0, &card))
        return 3;
    if (nvmlDeviceGetMemoryInfo(card, &memory) || nvmlDeviceGetMemoryInfo_v2(card, &more))
        return 4;
    say(memory.total, memory.free, memory.used);
    say(more.total, more.free, more.used + more.reserved);
    void *library = dlopen("libnvidia-ml.so.1", RTLD_NOW);
    int (*first)(void *, Memory *) = (int (*)(void *, Memory *))dlsym(library, "nvmlDeviceGetMemoryInfo");
    int (*second)(void *, Memory2 *) = (int (*)(void *, Memory2 *))dlsym(library, "nvmlDeviceGetMemoryInfo_v2");
    if (!first || !second || first(card, &memory) || second(card, &more))
        return 5;
    say(memory.total, memory.free, memory.used);
    say(more.total, more.free, more.used + more.reserved);
    // What NVML refuses is refused.
    more.version = 7;
    return second(card, &more) == 0 || first(0, &memory) == 0;
}
