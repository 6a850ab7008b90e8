/* Changes by system calls of its own what its probes rely on (changes.h). A name is WHAT-HOW. What is changed: `tsc`,
 * `filter` and `segv` as in changes.c. How the call is made: `inline`, with the number beside the instruction;
 * `wrapped`, by a function that takes the number; `stack`, by one that takes all on the stack, as in Go up to 1.18;
 * `hidden`, with a number that no code tells. */
#include "changes.h"

long wrapped(long number, long a, long b, long c, long d);
long stacked(long number, long a, long b, long c, long d);
WRAPPED;
STACKED;

static volatile long hidden[] = {SYS_prctl, SYS_seccomp, SYS_rt_sigaction};

/* Makes the call in one of these ways. */
#define CALL(how, nth, number, a, b, c, d) \
    ((how) == 'w'   ? wrapped(number, a, b, c, d) \
     : (how) == 's' ? stacked(number, a, b, c, d) \
     : (how) == 'h' ? RAW_HIDDEN(hidden[nth], a, b, c, d) \
                    : RAW(number, a, b, c, d))

static long tsc(char how) { return CALL(how, 0, SYS_prctl, PR_SET_TSC, PR_TSC_SIGSEGV, 0, 0); }

static long filter(char how) {
    long at = (long)&filter_program;
    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)) return 1;
    return CALL(how, 1, SYS_seccomp, SECCOMP_SET_MODE_FILTER, 0, at, 0);
}

static long handle(char how) {
    long at = (long)&own_action;
    handles = 1;
    return CALL(how, 2, SYS_rt_sigaction, SIGSEGV, at, 0, 8);
}

static long change(const char *what) {
    const char *how = strchr(what, '-');
    if (!how) return strcmp(what, "nothing");
    return *what == 't' ? tsc(how[1]) : *what == 'f' ? filter(how[1]) : handle(how[1]);
}
