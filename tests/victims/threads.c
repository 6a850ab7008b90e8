/* `threads COUNT [block] [signals] [births] [held]`: COUNT threads call the same functions, and their own. With `block`
 * every thread blocks every signal; with `signals` a timer signal with a handler that calls a probed function goes off all
 * the time; with `births` short-lived threads come and go; with `held` calls of `calls` end when a line has come. `run 0` waits; `run N`: every thread makes N calls. */
#include "victim.h"
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <sys/time.h>
#include <unistd.h>

static unsigned count;
static int births, endless, held;
static atomic_ulong in_handler, born, wrong, rounds, holds;
static pthread_barrier_t gate;
static u64 goal;

PROBED u64 shared(u64 x) { return x * 5 + 2; }
PROBED u64 through(u64 x) { return shared(x) ^ x; }
PROBED u64 handled(u64 x) { return x + 9; }
PROBED u64 newborn(u64 x) { return x * 7; }

static void on_alarm(int sig) {
    (void)sig;
    if (handled(1) != 10) atomic_fetch_add(&wrong, 1);
    atomic_fetch_add(&in_handler, 1);
}
static void *brief(void *arg) {
    if (newborn(3) != 21) atomic_fetch_add(&wrong, 1);
    return arg;
}
PROBED void calls(u64 times) {
    for (u64 i = 0; i < times; i++) {
        if (shared(i) != i * 5 + 2) atomic_fetch_add(&wrong, 1);
        if (through(i) != ((i * 5 + 2) ^ i)) atomic_fetch_add(&wrong, 1);
    }
    while (atomic_load(&holds)) usleep(1000);
}
static void *worker(void *arg) {
    for (;;) {
        pthread_barrier_wait(&gate);
        calls(goal);
        pthread_barrier_wait(&gate);
    }
    return arg;
}
static void *forever(void *arg) {
    for (;;) {
        calls(1000);
        atomic_fetch_add(&rounds, 1);
    }
    return arg;
}
static void *mother(void *arg) {
    for (;;) {
        pthread_t child;
        if (pthread_create(&child, NULL, brief, NULL) == 0) {
            pthread_join(child, NULL);
            atomic_fetch_add(&born, 1);
        }
    }
    return arg;
}
static void run(u64 times) {
    if (!endless) {
        goal = times;
        atomic_store(&holds, held);
        pthread_barrier_wait(&gate);
        if (held) {
            char line[16];
            if (!fgets(line, sizeof line, stdin)) atomic_fetch_add(&wrong, 1);
            atomic_store(&holds, 0);
        }
        pthread_barrier_wait(&gate);
        TELL("shared", times * count * 2);
        TELL("through", times * count);
    } else {
        usleep((useconds_t)times);
    }
    TELL("wrong", atomic_load(&wrong));
    TELL("handled", atomic_load(&in_handler));
    TELL("newborn", atomic_load(&born));
    TELL("rounds", atomic_load(&rounds));
}
int main(int argc, char **argv) {
    count = argc > 1 ? (unsigned)atoi(argv[1]) : 4;
    for (int i = 2; i < argc; i++) {
        if (!strcmp(argv[i], "endless")) endless = 1;
        if (!strcmp(argv[i], "births")) births = 1;
        if (!strcmp(argv[i], "held")) held = 1;
        if (!strcmp(argv[i], "block")) {
            sigset_t all;
            sigfillset(&all);
            sigprocmask(SIG_BLOCK, &all, NULL);
        }
        if (!strcmp(argv[i], "signals")) {
            struct sigaction act = {.sa_handler = on_alarm, .sa_flags = SA_RESTART};
            struct itimerval every = {{0, 700}, {0, 700}};
            sigaction(SIGALRM, &act, NULL);
            setitimer(ITIMER_REAL, &every, NULL);
        }
    }
    pthread_barrier_init(&gate, NULL, count + 1);
    pthread_attr_t small;
    pthread_attr_init(&small);
    pthread_attr_setstacksize(&small, 64 * 1024);
    for (unsigned i = 0; i < count; i++) {
        pthread_t thread;
        if (pthread_create(&thread, &small, endless ? forever : worker, NULL) != 0) return 3;
    }
    pthread_t thread;
    if (births && pthread_create(&thread, &small, mother, NULL) != 0) return 3;
    return victim_serve(run);
}
