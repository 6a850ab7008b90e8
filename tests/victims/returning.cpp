// A call that blocks, two others deep, until a line comes.
extern "C" {
#include "victim.h"
}
#define FUNC extern "C" __attribute__((noipa)) u64

FUNC blocked(u64 n) {
    char line[16];
    if (n == 2) {
        puts("blocking");
        if (!fgets(line, sizeof line, stdin)) return 0;
    }
    return 40;
}
FUNC inner(u64 n) { return blocked(n) + 1; }
FUNC outer(u64 n) { return inner(n) + 1; }
static void run(u64 times) { TELL("check", outer(times)); }
int main() { return victim_serve(run); }
