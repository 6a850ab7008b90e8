/* Lines that run so and so often: `run N` takes the loop of `stepped` N times, and its branch every third time. Each of
 * `outer`, `middle` and `inner` calls the next. */
#include "victim.h"

static volatile u64 sink;

PROBED u64 stepped(u64 limit) {
    u64 taken = 0;
    for (u64 i = 0; i < limit; i++) {
        sink += i; /* each-turn */
        if (i % 3 == 0) {
            sink ^= taken++; /* the-branch */
        }
    }
    return taken; /* the-last-line */
}
PROBED u64 inner(u64 n) {
    sink += n;
    return sink;
}
PROBED u64 middle(u64 n) { return inner(n) + sink; }
PROBED u64 outer(u64 n) { return middle(n) ^ sink; }

static void run(u64 times) {
    u64 taken = stepped(times);
    sink += outer(times);
    TELL("each-turn", times);
    TELL("the-branch", taken);
    TELL("the-last-line", 1);
}

int main(void) { return victim_serve(run); }
