/* Calls functions with known arguments, `argv[1]` times in each of `argv[2]` threads, and ends. What they are called with
 * does not depend on the run. */
#include "victim.h"
#include <pthread.h>
#include <stdlib.h>

static volatile u64 sum;

PROBED u64 work(u64 a, u64 b, u64 c, u64 d) {
    sum += a ^ d;
    return a * 3 - b + c;
}

PROBED u64 leaf(u64 x) {
    sum += x;
    sum += 3;
    return -x;
}

/* Its last act is a jump to the other one. */
PROBED u64 ends_elsewhere(u64 x) {
    sum += x;
    return work(x, x + 1, x, 7);
}

static void *run(void *times) {
    for (u64 n = 0; n < (u64)times; n++) {
        work(n % 10, -n, n - 50, n & 0xff);
        leaf(n % 7);
        ends_elsewhere(n % 3);
    }
    return 0;
}

int main(int argc, char **argv) {
    u64 times = argc > 1 ? strtoull(argv[1], 0, 10) : 1;
    int threads = argc > 2 ? atoi(argv[2]) : 1;
    pthread_t all[16];
    for (int n = 0; n < threads; n++)
        if (pthread_create(&all[n], 0, run, (void *)times)) return 1;
    for (int n = 0; n < threads; n++) pthread_join(all[n], 0);
    return 0;
}
