/* Uses SIGTRAP itself, as SBCL does: two threads execute int3 all the time, with a handler that counts.
 * For as many seconds as its argument says, SIGUSR2 is sent to all threads; its handler blocks all signals
 * and calls probed functions. It prints `traps=N handled=N`, which must be equal. */
#include "victim.h"
#include <pthread.h>
#include <signal.h>
#include <time.h>

static volatile u64 traps, handled;
static volatile int stop;

#define F(n) PROBED int f##n(int x) { __asm__ volatile(""); return x * 3 + n; }
#define TEN(m, n) m(n##0) m(n##1) m(n##2) m(n##3) m(n##4) m(n##5) m(n##6) m(n##7) m(n##8) m(n##9)
#define ALL(m) TEN(m, 1) TEN(m, 2) TEN(m, 3) TEN(m, 4) TEN(m, 5) TEN(m, 6) TEN(m, 7) TEN(m, 8) TEN(m, 9) \
    TEN(m, 10) TEN(m, 11) TEN(m, 12) TEN(m, 13) TEN(m, 14) TEN(m, 15) TEN(m, 16) TEN(m, 17) TEN(m, 18) TEN(m, 19) \
    TEN(m, 20) TEN(m, 21) TEN(m, 22) TEN(m, 23) TEN(m, 24) TEN(m, 25) TEN(m, 26) TEN(m, 27) TEN(m, 28) TEN(m, 29)
ALL(F)

static int all(int x) {
#define CALL(n) x = f##n(x);
    ALL(CALL)
    return x;
}

static void on_trap(int signal) { __atomic_add_fetch(&handled, 1, __ATOMIC_RELAXED); (void)signal; }
static void on_user(int signal) { volatile int sum = all(signal); (void)sum; }

static void *thread(void *own) {
    volatile int sum = 0;
    while (!stop) {
        sum = all(sum);
        if (!own) continue;
        __atomic_add_fetch(&traps, 1, __ATOMIC_RELAXED);
        __asm__ volatile("int3");
    }
    return NULL;
}

int main(int argc, char **argv) {
    struct sigaction act = {.sa_handler = on_trap, .sa_flags = SA_RESTART};
    pthread_t ids[3];
    int seconds = argc > 1 ? atoi(argv[1]) : 1;
    sigfillset(&act.sa_mask);
    sigaction(SIGTRAP, &act, NULL);
    act.sa_handler = on_user;
    sigaction(SIGUSR2, &act, NULL);
    for (u64 n = 0; n < 3; n++) pthread_create(&ids[n], NULL, thread, (void *)(n < 2));
    puts("ready");
    fflush(stdout);
    struct timespec pause = {0, 200000}, end, now;
    clock_gettime(CLOCK_MONOTONIC, &end);
    end.tv_sec += seconds;
    for (u64 n = 0; clock_gettime(CLOCK_MONOTONIC, &now), now.tv_sec < end.tv_sec; n++) {
        pthread_kill(ids[n % 3], SIGUSR2);
        nanosleep(&pause, NULL);
    }
    stop = 1;
    for (int n = 0; n < 3; n++) pthread_join(ids[n], NULL);
    printf("traps=%lu handled=%lu\n", traps, handled);
    return traps != handled;
}
