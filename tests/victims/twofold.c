/* `twofold`: maps one page of its code a second time, as V8 does with code that has to be near what it makes. `run N`
 * calls `work`, which is on that page, N times in each place, and `other`, which is on another page, N times. */
#define _GNU_SOURCE
#include "victim.h"
#include <fcntl.h>
#include <sys/mman.h>

#define PAGE 4096ul
#define ON_A_PAGE __attribute__((aligned(4096)))

PROBED ON_A_PAGE u64 work(u64 x) { __asm__ volatile("" ::: "memory"); return x * 3 + 1; }
PROBED ON_A_PAGE u64 other(u64 x) { __asm__ volatile("" ::: "memory"); return x * 5 + 2; }

static u64 (*volatile second)(u64);

static void run(u64 times) {
    u64 sum = 0;
    for (u64 i = 0; i < times; i++) sum += work(i) + second(i) + other(i);
    TELL("work", 2 * times);
    TELL("other", times);
    TELL("sum", sum);
}

/* Where in the program's file the byte at an address is. */
static u64 offset_of(u64 at) {
    FILE *maps = fopen("/proc/self/maps", "r");
    u64 start, end, offset, found = 0;
    char line[512];
    while (maps && fgets(line, sizeof line, maps))
        if (sscanf(line, "%lx-%lx %*s %lx", &start, &end, &offset) == 3 && start <= at && at < end)
            found = at - start + offset;
    if (maps) fclose(maps);
    return found;
}

int main(void) {
    u64 at = (u64)work;
    int file = open("/proc/self/exe", O_RDONLY);
    /* More than 2 GiB from the first place, as in V8. */
    char *page = mmap((void *)0x200000000000, PAGE, PROT_READ | PROT_EXEC, MAP_PRIVATE, file, (off_t)offset_of(at));
    if (page == MAP_FAILED) return 1;
    second = (u64(*)(u64))page;
    return victim_serve(run);
}
