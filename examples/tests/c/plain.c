// A program without a card: says whether the shim is in it, how many threads it has, and whether it has
// rights of its own. With an argument it also looks a function of the driver up, and does not call it.
#define _GNU_SOURCE
#include <dirent.h>
#include <dlfcn.h>
#include <stdio.h>
#include <string.h>
#include <sys/auxv.h>

int main(int count, char **arguments) {
    (void)arguments;
#ifndef STATIC
    if (count > 1) {
        void *driver = dlopen("libcuda.so.1", RTLD_NOW);
        if (!driver || !dlsym(driver, "cuInit"))
            return 3;
    }
    // By the loader's rules a name that nobody has is not found, and one of the C library is.
    if (dlsym(RTLD_DEFAULT, "no_such_function") || !dlsym(RTLD_DEFAULT, "strlen") || !dlsym(RTLD_NEXT, "puts"))
        return 4;
    // The driver's functions are there only when the driver is.
    if (count == 1 && (dlsym(RTLD_DEFAULT, "cuInit") || dlsym(RTLD_DEFAULT, "nvmlDeviceGetMemoryInfo")))
        return 5;
#endif
    char line[4096];
    int is_in = 0, threads = 0;
    FILE *maps = fopen("/proc/self/maps", "r");
    while (maps && fgets(line, sizeof line, maps))
        is_in |= strstr(line, "libsublet") != NULL;
    DIR *tasks = opendir("/proc/self/task");
    for (struct dirent *task; tasks && (task = readdir(tasks));)
        threads += task->d_name[0] != '.';
    printf("shim %d threads %d secure %lu\n", is_in, threads, getauxval(AT_SECURE));
    return 0;
}
