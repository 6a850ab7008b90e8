/* A program that loads an unwinder (libgcc_s) only when it first asks for a backtrace, and prints how many
 * callers it saw last. */
#include "victim.h"
#include <execinfo.h>

static u64 frames;

PROBED u64 walker(u64 x) {
    void *callers[64];
    frames = (u64)backtrace(callers, 64);
    return x + frames;
}
PROBED u64 outer(u64 x) { return walker(x) + 1; }

static void run(u64 times) {
    u64 check = 0;
    for (u64 i = 0; i < times; i++) check += outer(i) - frames;
    TELL("walker", times);
    TELL("outer", times);
    TELL("frames", frames);
    TELL("check", check);
}
int main(void) { return victim_serve(run); }
