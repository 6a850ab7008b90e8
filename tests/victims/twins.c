/* Two functions of one name: this file's own, and that of twins.S. The second is called twice as often. */
#include "victim.h"

u64 other(u64 x);

static PROBED u64 same(u64 x) { __asm__ volatile("" ::: "memory"); return x + 1; }

static void run(u64 times) {
    u64 sum = 0;
    for (u64 i = 0; i < times; i++) sum += same(i) + other(i) + other(i);
    TELL("sum", sum);
}

int main(void) { return victim_serve(run); }
