/* `run N`: calls `work` N times each in the process, in a forked child and in a child of vfork. The
 * argument is the number of the calling process. */
#include "victim.h"
#include <sys/wait.h>
#include <unistd.h>

PROBED int work(int pid) { __asm__ volatile("" ::: "memory"); return pid; }

static void run(u64 times) {
    for (u64 i = 0; i < times; i++) {
        work(getpid());
        if (fork() == 0) {
            work(getpid());
            _exit(0);
        }
        wait(NULL);
        if (vfork() == 0) {
            work(getpid());
            _exit(0);
        }
        wait(NULL);
    }
    TELL("work", 3 * times);
}

int main(void) { return victim_serve(run); }
