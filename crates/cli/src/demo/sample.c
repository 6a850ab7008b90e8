/* The demo's workload: two threads call functions of different speed; a third times calls of `hot` and prints
 * nanoseconds per call, one line for each round. It ends when its standard input does. */
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
static void *measure(void *unused) {
    for (long calls = 10000;;) {
        double start = now();
        for (long i = 0; i < calls; i++) sink = hot(i);
        double took = now() - start;
        printf("%.3f\n", took / calls);
        fflush(stdout);
        /* Rounds of about 20 ms, whatever a call costs. */
        double next = calls * 2e7 / took;
        calls = next < 1000 ? 1000 : next > 1e8 ? 100000000 : (long)next;
        struct timespec pause = {0, 1000000};
        nanosleep(&pause, NULL);
    }
    return unused;
}
int main(int argc, char **argv) {
    pthread_t thread;
    printf("ready\n");
    fflush(stdout);
    if (argc > 1) {
        pthread_create(&thread, NULL, measure, NULL);
    } else {
        pthread_create(&thread, NULL, serve, (void *)1);
        pthread_create(&thread, NULL, serve, (void *)7);
    }
    char byte;
    while (read(0, &byte, 1) > 0) {}
    return argv[0] == NULL;
}
