/* USDT probes with semaphores; markers.S says where each one stands. Prints how often each was passed, and
 * in how many rounds its semaphore was raised. */
#include "victim.h"

u64 by_jump(u64 n);
u64 by_kernel(u64 n);
u64 by_unprobed(u64 n);

extern volatile unsigned short jumped_semaphore, kernel_semaphore, unprobed_semaphore;

static void run(u64 times) {
    u64 jumped = 0, kernel = 0, unprobed = 0, check = 0;
    for (u64 i = 0; i < times; i++) {
        jumped += jumped_semaphore > 0;
        kernel += kernel_semaphore > 0;
        unprobed += unprobed_semaphore > 0;
        check += by_jump(3) + by_kernel(3) + by_unprobed(1);
    }
    TELL("check", check);
    TELL("jumped", times);
    TELL("kernel", 2 * times);
    TELL("jumped_raised", jumped);
    TELL("kernel_raised", kernel);
    TELL("unprobed_raised", unprobed);
}

int main(void) { return victim_serve(run); }
