/* `loads N LIBRARY`: loads a library, calls `later` ten times, and unloads it, N times. Prints how long one took:
 * least, median, 99th percentile and greatest, in microseconds; and how often `later` was called, constructor and all. */
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1e6 + t.tv_nsec / 1e3;
}
static int order(const void *a, const void *b) { return (*(double *)a > *(double *)b) - (*(double *)a < *(double *)b); }

int main(int count, char **args) {
    int times = atoi(args[1]);
    long calls = 0;
    double *took = calloc(times, sizeof *took);
    (void)count;
    for (int i = 0; i < times; i++) {
        double begin = now();
        void *library = dlopen(args[2], RTLD_NOW);
        if (!library) return 2;
        long (*later)(long) = (long (*)(long))dlsym(library, "later");
        for (int n = 0; n < 10; n++) later(n);
        calls += 11;
        dlclose(library);
        took[i] = now() - begin;
    }
    qsort(took, times, sizeof *took, order);
    printf("%.0f %.0f %.0f %.0f calls=%ld\n", took[0], took[times / 2], took[times * 99 / 100], took[times - 1], calls);
    return 0;
}
