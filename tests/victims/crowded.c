/* Takes all address space near its own code but for one place where a jump's displacement is all traps
 * (bytes of int3). A tracer that leaves something there finds less room the next time. */
#include "victim.h"
#include <sys/mman.h>

/* How far the hole lies before the code, its size, and the reach on either side of the code. */
#define AWAY 0x33333334UL
#define HOLE (128UL << 10)
#define REACH (5UL << 30)

PROBED u64 crowded(u64 x) { return x * 3 + 1; }

/* 256 functions: the upper bound of what their stubs need is longer than the hole. */
#define NEIGHBOUR(a, b, c, d, e) \
    PROBED static u64 neighbour_##a##b##c##d##e(u64 x) { return x + 0##a##b##c##d##e; }
#define CALL(a, b, c, d, e) check += neighbour_##a##b##c##d##e(i);
#define EACH(of, a, b, c, d) of(a, b, c, d, 0) of(a, b, c, d, 1) of(a, b, c, d, 2) of(a, b, c, d, 3) \
    of(a, b, c, d, 4) of(a, b, c, d, 5) of(a, b, c, d, 6) of(a, b, c, d, 7)
#define EIGHT(of, a, b, c) EACH(of, a, b, c, 0) EACH(of, a, b, c, 1) EACH(of, a, b, c, 2) EACH(of, a, b, c, 3) \
    EACH(of, a, b, c, 4) EACH(of, a, b, c, 5) EACH(of, a, b, c, 6) EACH(of, a, b, c, 7)
#define ALL(of) EIGHT(of, 0, 0, 0) EIGHT(of, 0, 0, 1) EIGHT(of, 0, 0, 2) EIGHT(of, 0, 0, 3)
ALL(NEIGHBOUR)

static void run(u64 times) {
    u64 check = 0;
    for (u64 i = 0; i < times; i++) {
        check += crowded(i);
        ALL(CALL)
    }
    TELL("crowded", times);
    TELL("check", check);
}
static int fill(u64 from, u64 to) {
    int how = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED_NOREPLACE;
    return from >= to || mmap((void *)from, to - from, PROT_NONE, how, -1, 0) == (void *)from;
}
/* Maps all gaps in reach of the code, but for the hole. */
static int crowd(void) {
    static u64 starts[512], ends[512];
    u64 here = (u64)&crowded & ~4095UL, middle = (here - AWAY) & ~4095UL;
    int count = 0;
    FILE *maps = fopen("/proc/self/maps", "r");
    char line[512];
    while (maps && count < 512 && fgets(line, sizeof line, maps))
        count += sscanf(line, "%lx-%lx", &starts[count], &ends[count]) == 2;
    if (!maps || fclose(maps) || count == 512) return 0;
    if (!fill(here - REACH, middle - HOLE) || !fill(middle + HOLE, starts[0])) return 0;
    for (int i = 0; i < count && ends[i] < here + REACH; i++) {
        u64 next = i + 1 < count ? starts[i + 1] : here + REACH;
        if (!fill(ends[i], next < here + REACH ? next : here + REACH)) return 0;
    }
    return 1;
}
int main(void) {
    if (!crowd()) return 3;
    return victim_serve(run);
}
