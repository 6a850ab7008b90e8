/* A known number of calls from two threads, and from a signal handler in between: numbers of all widths and signs, calls within
 * calls, returns that depend on the arguments. */
#include "victim.h"
#include <pthread.h>
#include <signal.h>

static volatile u64 sink;
static u64 handled;

PROBED long step(long n, int kind, unsigned char small) {
    if (kind == 3) return -n;
    sink += small;
    return n * 3 + kind;
}
PROBED long round_of(long n) {
    long sum = 0;
    for (int kind = -1; kind < 4; kind++) sum += step(n - 5, kind, (unsigned char)(n * 7));
    return sum;
}
static void on_signal(int number) {
    (void)number;
    round_of(1);
    handled++;
}
static void *rounds(void *times) {
    for (u64 n = 0; n < (u64)times; n++) {
        round_of((long)(n % 13));
        if (n % 64 == 0) raise(SIGUSR1);
    }
    return 0;
}
static void run(u64 times) {
    pthread_t other;
    handled = 0;
    pthread_create(&other, 0, rounds, (void *)(times * 100));
    pthread_join(other, 0);
    rounds((void *)(times * 100));
    TELL("rounds", times * 200 + handled);
    TELL("handled", handled);
}
int main(void) {
    struct sigaction action;
    memset(&action, 0, sizeof action);
    action.sa_handler = on_signal;
    sigaction(SIGUSR1, &action, 0);
    return victim_serve(run);
}
