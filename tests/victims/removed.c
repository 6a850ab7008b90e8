/* A static function with an unused parameter, which clang removes; the others move up. */
#include "victim.h"

__attribute__((noinline)) static int put(int unused, const char *name, int len) {
    (void)unused;
    __asm__ volatile("" ::: "memory");
    return name[0] + len;
}
static volatile int sink;
static const char *volatile name = "alice";
static volatile int len = 5;
static void run(u64 times) {
    for (u64 i = 0; i < times; i++) sink += put((int)i, name, len);
    TELL("put", times);
}
int main(void) { return victim_serve(run); }
