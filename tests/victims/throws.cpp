// Throws exceptions through functions that end by a tail call, from a constructor on. The argument says how
// often; then it prints what came of it, and ends.
#include <stdexcept>
#include <stdio.h>
#include <stdlib.h>

typedef unsigned long u64;
#define FUNC extern "C" __attribute__((noipa)) u64

FUNC thrower(u64 n) {
    if (n % 3 == 0) throw std::runtime_error("a third of all");
    return n + 1;
}
FUNC passes(u64 n) { return thrower(n * 2); }
FUNC caught(u64 n) {
    try {
        return passes(n) * 10;
    } catch (const std::exception &) {
        return 7;
    }
}
static u64 early;
__attribute__((constructor)) static void begins(void) { early = caught(3) + caught(4); }

int main(int argc, char **argv) {
    u64 times = argc > 1 ? strtoul(argv[1], NULL, 10) : 0, sum = 0;
    for (u64 n = 0; n < times; n++) sum += caught(n);
    printf("early=%lu sum=%lu\n", early, sum);
    return 5;
}
