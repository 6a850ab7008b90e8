/* Calls `work` all the time in two threads, and 512 others now and then. `eat N` allocates and touches N
 * KiB of memory, and prints that it has. */
#include "victim.h"
#include <pthread.h>
#include <sys/mman.h>
#include <unistd.h>

static volatile u64 sink;

PROBED u64 work(u64 x, const char *text) {
    sink += (u64)text[0];
    return x * 3 + (u64)text[0];
}

/* 512 functions, many_1000 and so on. */
#define EACH(what, n) what(n##0) what(n##1) what(n##2) what(n##3) what(n##4) what(n##5) what(n##6) what(n##7)
#define EACH64(what, n) \
    EACH(what, n##0) EACH(what, n##1) EACH(what, n##2) EACH(what, n##3) EACH(what, n##4) EACH(what, n##5) EACH(what, n##6) EACH(what, n##7)
#define EACH512(what, n) \
    EACH64(what, n##0) EACH64(what, n##1) EACH64(what, n##2) EACH64(what, n##3) EACH64(what, n##4) EACH64(what, n##5) EACH64(what, n##6) EACH64(what, n##7)
#define DEFINE(n) \
    PROBED u64 many_##n(u64 x) { return sink += x * 3 + n; }
#define CALL(n) many_##n(k);
EACH512(DEFINE, 1)

static void *all_the_time(void *unused) {
    for (u64 k = 1;; k++) {
        sink += work(k, "some text that is a bit longer than it need be");
        if (k % 2000) continue;
        EACH512(CALL, 1)
        usleep(1000);
    }
    return unused;
}

int main(void) {
    char line[64];
    pthread_t threads[2];
    for (int n = 0; n < 2; n++)
        if (pthread_create(&threads[n], NULL, all_the_time, NULL)) return 1;
    setvbuf(stdout, NULL, _IOLBF, 0);
    puts("ready");
    while (fgets(line, sizeof line, stdin)) {
        u64 bytes = strncmp(line, "eat ", 4) == 0 ? strtoul(line + 4, NULL, 10) << 10 : 0;
        if (!bytes) break;
        char *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (memory == MAP_FAILED) return 1;
        memset(memory, 1, bytes);
        puts("eaten");
    }
    return 0;
}
