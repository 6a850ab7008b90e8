/* `starts N PROGRAM [ARG…]`: starts a program N times, one after the other, and prints how long each took from the
 * spawn to its end: least, median, 99th percentile and greatest, in microseconds. Ends with 1 if one failed. */
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <time.h>

extern char **environ;

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1e6 + t.tv_nsec / 1e3;
}
static int order(const void *a, const void *b) { return (*(double *)a > *(double *)b) - (*(double *)a < *(double *)b); }

int main(int count, char **args) {
    int times = atoi(args[1]), bad = 0;
    double *took = calloc(times, sizeof *took);
    (void)count;
    for (int i = 0; i < times; i++) {
        pid_t child;
        int status = -1;
        double begin = now();
        if (posix_spawn(&child, args[2], NULL, NULL, args + 2, environ) != 0) return 2;
        waitpid(child, &status, 0);
        took[i] = now() - begin;
        bad += status != 0;
    }
    qsort(took, times, sizeof *took, order);
    printf("%.0f %.0f %.0f %.0f failed=%d\n", took[0], took[times / 2], took[times * 99 / 100], took[times - 1], bad);
    return bad != 0;
}
