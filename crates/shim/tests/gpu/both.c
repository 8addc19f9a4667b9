/* Stands before the shim in one process, so that calls of the driver go through it or straight to the driver, as
 * through() says: the same process, the same memory, the same clocks.
 *   cc -O2 -shared -fPIC both.c -o both.so && LD_PRELOAD=both.so:SHIM PROGRAM
 * Either way a call makes one jump more than without this library. Only calls that leave nothing behind take both ways:
 * memory is always the shim's. Nobody may park the program while its calls go straight to the driver.
 * Without the shim both ways are the driver's: what that measures is the noise. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <link.h>
#include <pthread.h>
#include <stdint.h>
#include <string.h>

enum { WAYS = 1024 };

/* What the jumps read. */
__attribute__((visibility("hidden"))) void *both_way[WAYS];
extern char both_jumps[] __attribute__((visibility("hidden")));
__asm__(".pushsection .text\n.p2align 4\n.globl both_jumps\n.hidden both_jumps\nboth_jumps:\n.set both_number, 0\n"
        ".rept 1024\n.p2align 4\njmp *both_way + 8 * both_number(%rip)\n.set both_number, both_number + 1\n.endr\n.popsection");

static struct { void *shim, *driver; } ways[WAYS];
static int count, is_shim = 1;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

/* Functions that leave nothing behind that the shim has to know of. */
static const char *SAME[] = {
    "cuLaunchKernel", "cuLaunchCooperativeKernel", "cuGraphLaunch", "cuMemsetD", "cuMemcpy", "cuEventRecord", "cuEventQuery",
    "cuEventSynchronize", "cuEventElapsedTime", "cuStreamWaitEvent", "cuStreamQuery", "cuStreamSynchronize",
    "cuStreamIsCapturing", "cuStreamGet", "cuCtxGet", "cuCtxSetCurrent", "cuCtxPushCurrent", "cuCtxPopCurrent",
    "cuCtxSynchronize", "cuDeviceGet", "cuDevicePrimaryCtxGetState", "cuKernelGet", "cuFuncGet", "cuOccupancy",
    "cuThreadExchangeStreamCaptureMode", "cuTensorMapEncode",
};
/* They begin so, and yet the shim has its own. */
static const char *OTHER[] = { "cuDeviceGetMemPool", "cuDeviceGetDefaultMemPool", "cuDeviceGetGraphMem" };

struct search { const char *library, *name; void *found; };

static void *symbol(struct dl_phdr_info *info, const char *name) {
    const ElfW(Dyn) *dynamic = NULL;
    const ElfW(Sym) *symbols = NULL;
    const char *strings = NULL;
    const uint32_t *hash = NULL;
    const uint16_t *versions = NULL;
    for (int part = 0; part < info->dlpi_phnum; part++)
        if (info->dlpi_phdr[part].p_type == PT_DYNAMIC)
            dynamic = (void *)(info->dlpi_addr + info->dlpi_phdr[part].p_vaddr);
    for (; dynamic && dynamic->d_tag; dynamic++) {
        void *at = (void *)(dynamic->d_un.d_ptr < info->dlpi_addr ? info->dlpi_addr + dynamic->d_un.d_ptr : dynamic->d_un.d_ptr);
        switch (dynamic->d_tag) {
        case DT_SYMTAB: symbols = at; break;
        case DT_STRTAB: strings = at; break;
        case DT_GNU_HASH: hash = at; break;
        case DT_VERSYM: versions = at; break;
        }
    }
    if (!symbols || !strings || !hash)
        return NULL;
    uint32_t sum = 5381, first = hash[1];
    for (const char *at = name; *at; at++)
        sum = sum * 33 + (unsigned char)*at;
    const uint32_t *buckets = hash + 4 + 2 * hash[2], *chains = buckets + hash[0];
    uint32_t number = buckets[sum % hash[0]];
    if (number < first)
        return NULL;
    for (;; number++) {
        uint32_t link = chains[number - first];
        int is_hidden = versions && versions[number] & 0x8000;
        if ((link | 1) == (sum | 1) && !is_hidden && symbols[number].st_value && !strcmp(strings + symbols[number].st_name, name))
            return (void *)(info->dlpi_addr + symbols[number].st_value);
        if (link & 1)
            return NULL;
    }
}

static int look(struct dl_phdr_info *info, size_t size, void *of) {
    struct search *search = of;
    const char *file = info->dlpi_name ? strrchr(info->dlpi_name, '/') : NULL;
    (void)size;
    if (file && !strncmp(file + 1, search->library, strlen(search->library)))
        search->found = symbol(info, search->name);
    return search->found != NULL;
}

/* A function of a library that is loaded, by nobody's dlsym. */
static void *find(const char *library, const char *name) {
    struct search search = { library, name, NULL };
    dl_iterate_phdr(look, &search);
    return search.found;
}

static int begins(const char *name, const char *const *list, size_t length) {
    for (size_t place = 0; place < length; place++)
        if (!strncmp(name, list[place], strlen(list[place])))
            return 1;
    return 0;
}

/* Where a call goes that may go both ways. */
static void *either(const char *name, void *shim, void *driver) {
    if (!shim || !driver || !begins(name, SAME, sizeof SAME / sizeof *SAME) || begins(name, OTHER, sizeof OTHER / sizeof *OTHER))
        return shim;
    pthread_mutex_lock(&lock);
    int number = 0;
    while (number < count && (ways[number].shim != shim || ways[number].driver != driver))
        number++;
    if (number == count && count < WAYS) {
        ways[number].shim = shim;
        ways[number].driver = driver;
        both_way[number] = is_shim ? shim : driver;
        count++;
    }
    pthread_mutex_unlock(&lock);
    return number < WAYS ? both_jumps + 16 * number : shim;
}

/* From now on calls go through the shim, or not. Returns for how many functions that makes a difference: none, without it. */
int through(int shim) {
    int differ = 0;
    pthread_mutex_lock(&lock);
    is_shim = shim;
    for (int number = 0; number < count; number++) {
        both_way[number] = shim ? ways[number].shim : ways[number].driver;
        differ += ways[number].shim != ways[number].driver;
    }
    pthread_mutex_unlock(&lock);
    return differ;
}

typedef int (*first_t)(const char *, void **, int, uint64_t);
typedef int (*second_t)(const char *, void **, int, uint64_t, int *);
static first_t first_next;
static second_t second_next;

static int first_form(const char *, void **, int, uint64_t);
static int second_form(const char *, void **, int, uint64_t, int *);

static void *asked(const char *name, int version, void *shim, void *driver) {
    if (!strcmp(name, "cuGetProcAddress"))
        return version >= 12000 ? (void *)second_form : (void *)first_form;
    return either(name, shim, driver);
}

static int first_form(const char *name, void **at, int version, uint64_t flags) {
    first_t own = (first_t)find("libcuda.so", "cuGetProcAddress");
    int result = first_next(name, at, version, flags);
    void *driver = NULL;
    if (!result && *at && !own(name, &driver, version, flags))
        *at = asked(name, version, *at, driver);
    return result;
}

static int second_form(const char *name, void **at, int version, uint64_t flags, int *status) {
    second_t own = (second_t)find("libcuda.so", "cuGetProcAddress_v2");
    int result = second_next(name, at, version, flags, status), ignored;
    void *driver = NULL;
    if (!result && *at && !own(name, &driver, version, flags, &ignored))
        *at = asked(name, version, *at, driver);
    return result;
}

void *dlsym(void *handle, const char *name) {
    static void *(*next)(void *, const char *);
    if (!next)
        next = (void *(*)(void *, const char *))find("libsublet", "dlsym");
    if (!next)
        next = (void *(*)(void *, const char *))find("libc.so.6", "dlsym");
    if (!next)
        next = (void *(*)(void *, const char *))find("libdl.so.2", "dlsym");
    if (name[0] != 'c' || name[1] != 'u' || name[2] < 'A' || name[2] > 'Z')
        return next(handle, name); /* A jump: the loader looks at who calls. */
    void *found = next(handle, name);
    if (found && !strcmp(name, "cuGetProcAddress")) {
        first_next = (first_t)found;
        return (void *)first_form;
    }
    if (found && !strcmp(name, "cuGetProcAddress_v2")) {
        second_next = (second_t)found;
        return (void *)second_form;
    }
    return either(name, found, find("libcuda.so", name));
}
