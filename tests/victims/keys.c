/* Eight threads call a function, each with keys that no other call has. */
#include "victim.h"
#include <pthread.h>

enum { THREADS = 8 };

static u64 times_now, next, called;

PROBED void probed(u64 key, u64 value) {
    __asm__ volatile("" : : "r"(key), "r"(value));
}
static void *keys(void *unused) {
    (void)unused;
    for (u64 n = 0; n < times_now; n++) {
        u64 key = __atomic_add_fetch(&next, 1, __ATOMIC_RELAXED);
        probed(key, key * 3);
        __atomic_fetch_add(&called, 1, __ATOMIC_RELAXED);
    }
    return 0;
}
static void run(u64 times) {
    pthread_t threads[THREADS];
    times_now = times;
    called = 0;
    for (int n = 0; n < THREADS; n++) pthread_create(&threads[n], 0, keys, 0);
    for (int n = 0; n < THREADS; n++) pthread_join(threads[n], 0);
    TELL("probed", called);
}
int main(void) { return victim_serve(run); }
