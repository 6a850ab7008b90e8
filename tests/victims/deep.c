/* Its main thread's stack grows by N MiB. At the bottom it calls functions of two libraries. */
#include "victim.h"
#include <math.h>
#include <time.h>
PROBED u64 descend(u64 frames, volatile double *of) {
    volatile char frame[4096];
    frame[0] = (char)frames;
    frame[4095] = frame[0];
    if (frames == 0) {
        *of = cos(*of) + (double)time(NULL) * 0;
        return 1;
    }
    u64 below = descend(frames - 1, of);
    return below + (frame[0] == (char)frames);
}
static void run(u64 times) {
    volatile double of = 0.5;
    TELL("descend", descend(times * 256, &of));
    TELL("cos", of > 0);
}
int main(void) { return victim_serve(run); }
