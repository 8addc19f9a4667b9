/* A driver that has what the soft one has not: arrays, memory of several cards, and a function of next year. What it
 * does not have itself is in the soft one, on which it stands. */
#include <stdint.h>
#include <stdlib.h>

enum { SUCCESS = 0, INVALID_VALUE = 1, NOT_SUPPORTED = 801 };

#ifdef OLDER
/* Drivers before CUDA 12.5 do not have it. */
int cuCtxRecordEvent(void *context, void *event) { return NOT_SUPPORTED; }
#else

int cuMemGetAllocationPropertiesFromHandle(void *properties, uint64_t handle);

static int is_of_driver(uint64_t handle) {
    uint64_t properties[4];
    /* Handles of the shim's begin like none of the driver's. */
    return handle >> 48 != 0x5b1e && cuMemGetAllocationPropertiesFromHandle(properties, handle) == SUCCESS;
}

int cuArrayCreate_v2(void **place, const void *about) {
    *place = malloc(64);
    return SUCCESS;
}

int cuArrayDestroy(void *array) {
    free(array);
    return SUCCESS;
}

int cuMipmappedArrayCreate(void **place, const void *about, unsigned levels) { return cuArrayCreate_v2(place, about); }

int cuMipmappedArrayDestroy(void *array) { return cuArrayDestroy(array); }

int cuImportExternalMemory(void **place, const void *about) { return cuArrayCreate_v2(place, about); }

int cuDestroyExternalMemory(void *memory) { return cuArrayDestroy(memory); }

int cuMulticastBindMem(uint64_t into, size_t at, uint64_t handle, size_t from, size_t bytes, uint64_t flags) {
    return is_of_driver(handle) && into == 1 && at == 2 && from == 3 && bytes == 4 && flags == 5 ? SUCCESS : INVALID_VALUE;
}

int cuMemMapArrayAsync(const uint64_t *maps, unsigned count, void *stream) {
    for (unsigned number = 0; number < count; number++)
        if (!is_of_driver(maps[12 * number + 8]) || maps[12 * number] != 7) return INVALID_VALUE;
    return count == 2 ? SUCCESS : INVALID_VALUE;
}

int cuGraphAddMemAllocNode(void **place, void *graph, const void *after, size_t count, void *about);

/* The soft driver has nodes that allocate, but not by this way. */
int cuGraphAddNode(void **place, void *graph, const void *after, size_t count, char *about) {
    return *(int *)about == 10 ? cuGraphAddMemAllocNode(place, graph, after, count, about + 16) : NOT_SUPPORTED;
}

int cuGraphAddNode_v2(void **place, void *graph, const void *after, const void *edges, size_t count, char *about) {
    return cuGraphAddNode(place, graph, after, count, about);
}

/* As many arguments as none of the others has. */
int cuMemSomethingNew(uint64_t a, uint64_t b, uint64_t c, uint64_t d, uint64_t e, uint64_t f, uint64_t g, uint64_t h) {
    return a + b + c + d + e + f + g + h == 36 ? SUCCESS : INVALID_VALUE;
}
#endif
