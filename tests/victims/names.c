/* Four threads called w0 to w3. `run N`: each calls `named` N times, with a number that identifies the
 * thread. `run 0`: each takes the name of the next. `names births`: `run N` also makes 2 N threads, one
 * after the other, that call `named` once each and end; every second one takes the name `brief` first. */
#define _GNU_SOURCE
#include "victim.h"
#include <pthread.h>
#include <stdatomic.h>

enum { COUNT = 4 };
#define FIRST 7700000000ul

static pthread_barrier_t gate;
static u64 goal, turn, births;
static atomic_ulong sum;

PROBED u64 named(u64 worker) {
    // So that the compiler does not merge equal calls into one.
    __asm__ volatile("" : "+r"(worker));
    return worker * 3;
}

static void take_name(u64 own) {
    char name[16];
    snprintf(name, sizeof name, "w%lu", (own + turn) % COUNT);
    pthread_setname_np(pthread_self(), name);
}
static void *worker(void *arg) {
    u64 own = (u64)arg;
    take_name(own);
    for (;;) {
        pthread_barrier_wait(&gate);
        if (goal == 0) take_name(own);
        for (u64 i = 0; i < goal; i++) atomic_fetch_add(&sum, named(FIRST + own));
        pthread_barrier_wait(&gate);
    }
    return NULL;
}
static void *brief(void *arg) {
    u64 own = (u64)arg;
    if (own == FIRST + 9) pthread_setname_np(pthread_self(), "brief");
    atomic_fetch_add(&sum, named(own));
    return NULL;
}
static void make(u64 own) {
    pthread_t thread;
    if (pthread_create(&thread, NULL, brief, (void *)own) == 0) pthread_join(thread, NULL);
}
static void run(u64 times) {
    for (u64 i = 0; i < births * times; i++) {
        make(FIRST + 8);
        make(FIRST + 9);
    }
    goal = times;
    turn += times == 0;
    pthread_barrier_wait(&gate);
    pthread_barrier_wait(&gate);
    TELL("named", times * COUNT);
    TELL("sum", atomic_load(&sum));
}
int main(int argc, char **argv) {
    births = argc > 1 && !strcmp(argv[1], "births");
    pthread_barrier_init(&gate, NULL, COUNT + 1);
    for (u64 n = 0; n < COUNT; n++) {
        pthread_t thread;
        if (pthread_create(&thread, NULL, worker, (void *)n) != 0) return 3;
    }
    // Once this is done, all threads have their names.
    goal = 1;
    pthread_barrier_wait(&gate);
    pthread_barrier_wait(&gate);
    return victim_serve(run);
}
