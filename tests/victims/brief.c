/* `run N`: N threads, one after another in small groups, call `work` once each and end. */
#include "victim.h"
#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>

#define TOGETHER 4
static atomic_ulong worked, wrong;

PROBED u64 work(u64 x) { return x * 3 + 1; }

static void *brief(void *arg) {
    u64 n = (u64)(uintptr_t)arg;
    if (work(n) != n * 3 + 1) atomic_fetch_add(&wrong, 1);
    atomic_fetch_add(&worked, 1);
    return NULL;
}
static void run(u64 times) {
    for (u64 n = 0; n < times; n += TOGETHER) {
        pthread_t threads[TOGETHER];
        u64 count = times - n < TOGETHER ? times - n : TOGETHER;
        for (u64 nth = 0; nth < count; nth++)
            if (pthread_create(&threads[nth], NULL, brief, (void *)(uintptr_t)(n + nth)) != 0) abort();
        for (u64 nth = 0; nth < count; nth++) pthread_join(threads[nth], NULL);
    }
    TELL("work", atomic_load(&worked));
    TELL("wrong", atomic_load(&wrong));
}
int main(void) { return victim_serve(run); }
