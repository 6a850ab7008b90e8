/* Four threads called w0 to w3. `run N`: each calls `named`, with a number that says which it is, N times. `run 0`: each takes the name of
 * the next. */
#define _GNU_SOURCE
#include "victim.h"
#include <pthread.h>
#include <stdatomic.h>

enum { COUNT = 4 };
#define FIRST 7700000000ul

static pthread_barrier_t gate;
static u64 goal, turn;
static atomic_ulong sum;

PROBED u64 named(u64 worker) {
    // So that the same call is not made once for all.
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
static void run(u64 times) {
    goal = times;
    turn += times == 0;
    pthread_barrier_wait(&gate);
    pthread_barrier_wait(&gate);
    TELL("named", times * COUNT);
    TELL("sum", atomic_load(&sum));
}
int main(void) {
    pthread_barrier_init(&gate, NULL, COUNT + 1);
    for (u64 n = 0; n < COUNT; n++) {
        pthread_t thread;
        if (pthread_create(&thread, NULL, worker, (void *)n) != 0) return 3;
    }
    // Behind this all have their names.
    goal = 1;
    pthread_barrier_wait(&gate);
    pthread_barrier_wait(&gate);
    return victim_serve(run);
}
