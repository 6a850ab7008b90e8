/* USDT probes with semaphores; markers.S says where each one stands. Prints how often each was passed, and
 * in how many rounds its semaphore was raised. */
#include "victim.h"

u64 by_jump(u64 n);
u64 by_kernel(u64 n);
u64 by_nobody(u64 n);

extern volatile unsigned short jumped_semaphore, kernel_semaphore, nobody_semaphore;

static void run(u64 times) {
    u64 jumped = 0, kernel = 0, nobody = 0, check = 0;
    for (u64 i = 0; i < times; i++) {
        jumped += jumped_semaphore > 0;
        kernel += kernel_semaphore > 0;
        nobody += nobody_semaphore > 0;
        check += by_jump(3) + by_kernel(3) + by_nobody(1);
    }
    TELL("check", check);
    TELL("jumped", times);
    TELL("kernel", 2 * times);
    TELL("jumped_raised", jumped);
    TELL("kernel_raised", kernel);
    TELL("nobody_raised", nobody);
}

int main(void) { return victim_serve(run); }
