/* The demo's workload: two threads call functions of different speed; with an argument, none do. Each byte of standard input
 * asks for a round of calls of `hot`, and is answered by a line, nanoseconds per call. It ends when the input does. */
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <time.h>
#include <unistd.h>

static volatile uint64_t sink;

#define WORK __attribute__((noinline, noipa))

WORK uint64_t parse(uint64_t x) {
    uint64_t sum = x;
    for (int i = 0; i < 20; i++) sum = sum * 31 + (sum >> 7);
    return sum;
}
WORK uint64_t lookup(uint64_t x) {
    uint64_t sum = x;
    /* Usually short, sometimes eight times as long, rarely much longer. */
    int steps = x % 64 == 0 ? 20000 : x % 8 == 0 ? 800 : 100;
    for (int i = 0; i < steps; i++) sum = sum * 31 + (sum >> 7);
    return sum;
}
WORK void commit(void) {
    struct timespec pause = {0, 2000000};
    nanosleep(&pause, NULL);
}
WORK uint64_t request(uint64_t n) {
    uint64_t x = parse(n);
    x += lookup(n);
    if (n % 100 == 0) commit();
    return x;
}
WORK uint64_t hot(uint64_t x) { return x * 3 + 1; }

static void *serve(void *from) {
    for (uint64_t n = (uintptr_t)from;; n++) sink += request(n);
    return NULL;
}
static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1e9 + t.tv_nsec;
}
/* One round of calls: about 10 ms, whatever a call costs, since the clock is looked at every few of them. */
static double measure(void) {
    const long few = 500;
    double start = now(), took = 0;
    long calls = 0;
    do {
        for (long i = 0; i < few; i++) sink = hot(i);
        calls += few;
        took = now() - start;
    } while (took < 1e7);
    return took / calls;
}
int main(int argc, char **argv) {
    pthread_t thread;
    printf("ready\n");
    fflush(stdout);
    if (argc == 1) {
        pthread_create(&thread, NULL, serve, (void *)1);
        pthread_create(&thread, NULL, serve, (void *)7);
    }
    char byte;
    while (read(0, &byte, 1) > 0) {
        printf("%.3f\n", measure());
        fflush(stdout);
    }
    return argv[0] == NULL;
}
