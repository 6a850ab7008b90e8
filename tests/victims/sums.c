/* `sums`: eight threads call one function with values of both signs, and each adds up for itself what it passed, by the
 * function's second argument. `run N`: every thread makes N calls. A sum is printed as its two halves. */
#include "victim.h"
#include <pthread.h>

enum { THREADS = 8, GROUPS = 5 };

struct sums { u64 hits; __int128 sum; long min, max; };

static struct sums of_thread[THREADS][GROUPS], of_positive[THREADS];
static u64 seeds[THREADS], goal, wrong;
static pthread_barrier_t gate;
static const char *names[GROUPS] = {"zero", "one", "two", "three", "four"};

PROBED long add(long value, u64 group, const char *name) { return value + (long)group + (name[0] == 0); }

static void plus(struct sums *all, struct sums one) {
    if (one.hits == 0) return;
    if (all->hits == 0 || one.min < all->min) all->min = one.min;
    if (all->hits == 0 || one.max > all->max) all->max = one.max;
    all->hits += one.hits;
    all->sum += one.sum;
}
static void *worker(void *arg) {
    u64 nth = (u64)arg, seed = seeds[nth];
    for (;;) {
        pthread_barrier_wait(&gate);
        for (u64 i = 0; i < goal; i++) {
            seed = seed * 6364136223846793005ul + 1442695040888963407ul;
            long value = (long)(seed >> 20) >> (seed >> 59) & 0xfffffffffful;
            if (seed & 1 << 16) value = -value;
            u64 group = (seed >> 40) % GROUPS;
            if (add(value, group, names[group]) != value + (long)group) __atomic_fetch_add(&wrong, 1, __ATOMIC_RELAXED);
            struct sums one = {1, value, value, value};
            plus(&of_thread[nth][group], one);
            if (value > 1000) plus(&of_positive[nth], one);
        }
        pthread_barrier_wait(&gate);
    }
    return arg;
}
static void tell(const char *name, struct sums all) {
    printf("%s.hits=%lu %s.high=%lu %s.low=%lu %s.min=%lu %s.max=%lu ", name, all.hits, name, (u64)(all.sum >> 64), name,
           (u64)all.sum, name, (u64)all.min, name, (u64)all.max);
}
static void run(u64 times) {
    struct sums all = {0}, positive = {0};
    memset(of_thread, 0, sizeof of_thread);
    memset(of_positive, 0, sizeof of_positive);
    goal = times;
    pthread_barrier_wait(&gate);
    pthread_barrier_wait(&gate);
    for (u64 group = 0; group < GROUPS; group++) {
        struct sums one = {0};
        for (u64 nth = 0; nth < THREADS; nth++) plus(&one, of_thread[nth][group]);
        tell(names[group], one);
        plus(&all, one);
    }
    for (u64 nth = 0; nth < THREADS; nth++) plus(&positive, of_positive[nth]);
    tell("all", all);
    tell("positive", positive);
    TELL("add", all.hits);
    TELL("wrong", wrong);
}
int main(void) {
    pthread_barrier_init(&gate, NULL, THREADS + 1);
    for (u64 nth = 0; nth < THREADS; nth++) {
        pthread_t thread;
        seeds[nth] = nth * 7919 + 1;
        pthread_create(&thread, NULL, worker, (void *)nth);
    }
    return victim_serve(run);
}
