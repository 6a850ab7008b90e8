/* Passes USDT probes with arguments in registers, numbers and memory (marked.S). Prints how often,
 * and how often a register had changed behind them. */
#include "victim.h"

u64 pass_marks(u64 n, const char *text);

static void run(u64 times) {
    u64 wrong = 0;
    for (u64 n = 0; n < times; n++)
        wrong += pass_marks(n, "what is said") != 1;
    TELL("registers", times);
    TELL("memory", times);
    TELL("twice", 2 * times);
    TELL("wrong", wrong);
}

int main(void) { return victim_serve(run); }
