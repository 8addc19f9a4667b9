// Threads that capture graphs all the time, until the input ends; some of the graphs are run and their results looked at.
//   own      each for itself, nearly always in a capture; one has its captures ended by another thread
//   handed   two, of which one ends its capture only when the other has begun: there is always one open
#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

int cuInit(unsigned), cuDevicePrimaryCtxRetain(void **, int), cuCtxSetCurrent(void *);
int cuMemAlloc_v2(uint64_t *, size_t), cuStreamCreate(void **, unsigned), cuStreamSynchronize(void *);
int cuStreamBeginCapture_v2(void *, int), cuStreamEndCapture(void *, void **);
int cuMemsetD32Async(uint64_t, unsigned, size_t, void *), cuMemcpyDtoHAsync_v2(void *, uint64_t, size_t, void *);
int cuGraphInstantiateWithFlags(void **, void *, unsigned long long), cuGraphLaunch(void *, void *);
int cuGraphExecDestroy(void *), cuGraphDestroy(void *);

#define CHECK(call) do { int answer = (call); if (answer) { printf("%s: %d\n", #call, answer); exit(4); } } while (0)
enum { THREAD_LOCAL = 1, RELAXED = 2, OPEN_US = 5000, RUN = 20, WORDS = 1 << 20 };

static void *context;
static atomic_int is_over, graphs;
static int is_handed;
static atomic_int begun[2];

struct end { void *stream, *graph; };

static void *end_it(void *of) {
    struct end *end = of;
    CHECK(cuCtxSetCurrent(context));
    CHECK(cuStreamEndCapture(end->stream, &end->graph));
    return NULL;
}

static void *work(void *number) {
    long own = (long)number;
    uint64_t at;
    void *stream, *exec;
    CHECK(cuCtxSetCurrent(context));
    CHECK(cuMemAlloc_v2(&at, 4 * WORDS));
    CHECK(cuStreamCreate(&stream, 1));
    for (unsigned turn = 1; !is_over; turn++) {
        struct end end = { stream, NULL };
        unsigned last = 0;
        CHECK(cuStreamBeginCapture_v2(stream, own == 0 ? RELAXED : THREAD_LOCAL));
        CHECK(cuMemsetD32Async(at, turn, WORDS, stream));
        if (is_handed) {
            begun[own]++;
            while (begun[1 - own] < begun[own] + own && !is_over)
                usleep(100);
        } else
            usleep(OPEN_US);
        if (own == 0) {
            pthread_t other;
            pthread_create(&other, NULL, end_it, &end);
            pthread_join(other, NULL);
        } else
            end_it(&end);
        graphs++;
        if (turn % RUN) {
            CHECK(cuGraphDestroy(end.graph));
            continue;
        }
        CHECK(cuGraphInstantiateWithFlags(&exec, end.graph, 0));
        CHECK(cuGraphLaunch(exec, stream));
        CHECK(cuMemcpyDtoHAsync_v2(&last, at + 4 * (WORDS - 1), 4, stream));
        CHECK(cuStreamSynchronize(stream));
        CHECK(cuGraphExecDestroy(exec));
        CHECK(cuGraphDestroy(end.graph));
        if (last != turn) {
            printf("thread %ld: %u, not %u\n", own, last, turn);
            exit(5);
        }
    }
    return NULL;
}

int main(int count, char **words) {
    pthread_t threads[4];
    int length = 4;
    if (count != 2 || cuInit(0) || cuDevicePrimaryCtxRetain(&context, 0))
        return 3;
    is_handed = !strcmp(words[1], "handed");
    if (is_handed)
        length = 2;
    for (long number = 0; number < length; number++)
        pthread_create(&threads[number], NULL, work, (void *)number);
    while (graphs < 2 * length)
        usleep(100);
    puts("captures");
    fflush(stdout);
    while (getchar() != EOF)
        ;
    int seen = graphs;
    // It goes on: nobody waits for somebody who does not come.
    for (int wait = 0; graphs <= seen + 2 * RUN * length; wait++) {
        usleep(1000);
        if (wait > 10000)
            return 6;
    }
    is_over = 1;
    for (int number = 0; number < length; number++)
        pthread_join(threads[number], NULL);
    puts("ok");
    return 0;
}
