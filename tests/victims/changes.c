/* Changes by the C library's functions what its probes rely on (changes.h): `segv` installs a handler of SIGSEGV;
 * `tsc` forbids the thread to read the clock; `filter` (by prctl) and `seccomp` (by syscall) install a filter that
 * kills for process_vm_readv; `dispatch` gets calls that `work` makes back as SIGSYS, which ends it; `raw` is `segv` by a system call of its own, whose number is loaded just before it, so
 * that it is not held. */
#include "changes.h"

static volatile long rt_sigaction = SYS_rt_sigaction;

static long handle(int raw) {
    struct sigaction act = {.sa_sigaction = on_segv, .sa_flags = SA_SIGINFO};
    handles = 1;
    if (!raw) return sigaction(SIGSEGV, &act, NULL);
    return RAW_LATE(rt_sigaction, SIGSEGV, &own_action, 0, 8);
}

static long filter(int by_syscall) {
    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)) return 1;
    if (by_syscall) return syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, 0, &filter_program);
    return prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &filter_program);
}

static long change(const char *what) {
    if (!strcmp(what, "segv") || !strcmp(what, "raw")) return handle(what[0] == 'r');
    if (!strcmp(what, "tsc")) return prctl(PR_SET_TSC, PR_TSC_SIGSEGV);
    if (!strcmp(what, "dispatch")) {
        dispatches = SYSCALL_DISPATCH_FILTER_BLOCK;
        return prctl(PR_SET_SYSCALL_USER_DISPATCH, PR_SYS_DISPATCH_ON, 0, 0, &selector);
    }
    if (!strcmp(what, "filter") || !strcmp(what, "seccomp")) return filter(what[0] == 's');
    return strcmp(what, "nothing");
}
