/* Threads that take and give back blocks, each from two places, and at the end leave some. What is left does not depend on the order in
 * which threads run. Blocks are given back by another thread than the one that took them, too. */
#include "victim.h"
#include <pthread.h>
#include <stdlib.h>

enum { THREADS = 4, RING = 64, LEFT = 20, PASSED = 256 };

static u64 times_now, bytes_left, blocks_left;
/* Blocks on their way to any other thread. */
static void *passed[PASSED];

PROBED void *take(u64 bytes) { return malloc(bytes); }
PROBED void give(void *block) {
    __asm__ volatile("" : : "r"(block) : "memory");
    free(block);
}
PROBED void *one(u64 bytes) {
    void *block = take(bytes);
    __asm__ volatile("" : : : "memory");
    return block;
}
PROBED void *other(u64 bytes) {
    void *block = take(bytes + 1);
    __asm__ volatile("" : : : "memory");
    return block;
}
static void *blocks(void *thread) {
    void *ring[RING] = {0};
    u64 random = (u64)thread * 7919 + 1;
    for (u64 n = 0; n < times_now * 1000; n++) {
        random = random * 6364136223846793005u + 1442695040888963407u;
        u64 at = random >> 40 & (RING - 1);
        if (ring[at] && random >> 50 & 1) {
            ring[at] = __atomic_exchange_n(&passed[random >> 20 & (PASSED - 1)], ring[at], __ATOMIC_ACQ_REL);
        }
        if (ring[at]) give(ring[at]);
        ring[at] = random >> 51 & 1 ? one(random >> 54) : other(random >> 54);
    }
    for (int at = 0; at < RING; at++) if (ring[at]) give(ring[at]);
    for (u64 n = 0; n < LEFT; n++) {
        u64 bytes = (u64)thread * 100 + n;
        if (!one(bytes)) abort();
        __atomic_fetch_add(&bytes_left, bytes, __ATOMIC_RELAXED);
        __atomic_fetch_add(&blocks_left, 1, __ATOMIC_RELAXED);
    }
    return 0;
}
static void run(u64 times) {
    pthread_t threads[THREADS];
    times_now = times;
    bytes_left = blocks_left = 0;
    for (u64 n = 0; n < THREADS; n++) pthread_create(&threads[n], 0, blocks, (void *)n);
    for (u64 n = 0; n < THREADS; n++) pthread_join(threads[n], 0);
    for (int at = 0; at < PASSED; at++) {
        if (passed[at]) give(passed[at]);
        passed[at] = 0;
    }
    TELL("bytes", bytes_left);
    TELL("blocks", blocks_left);
}
int main(void) { return victim_serve(run); }
