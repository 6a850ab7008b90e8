/* A thread beside the main one is restricted as the argument names: `tsc` may not read the time-stamp
 * counter, `filter` makes the kernel kill the process for process_vm_readv, `strict` is seccomp strict
 * mode, `dispatch` gets its calls back as signals (SIGSYS, which ends the process) but for read and write,
 * `plain` has no restriction. For each line `run N`, the main thread and that thread call `work` N
 * times each. The thread makes no calls but read and write after `ready`. */
#include "victim.h"
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <pthread.h>
#include <stddef.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

static int to_thread[2], to_main[2];
static const char *how;
static u64 calls;
/* Whether the kernel makes the thread's calls, or sends SIGSYS. */
static volatile char selector = SYSCALL_DISPATCH_FILTER_ALLOW;

PROBED u64 work(u64 x, const char *s) { return x * 3 + (u64)s[0]; }

static int punish(unsigned call) {
    struct sock_filter code[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, call, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    struct sock_fprog prog = {sizeof code / sizeof *code, code};
    return prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) | prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &prog);
}

static void *thread(void *unused) {
    u64 times, sum = 0;
    int failed = 0;
    if (!strcmp(how, "tsc")) failed = prctl(PR_SET_TSC, PR_TSC_SIGSEGV);
    if (!strcmp(how, "filter")) failed = punish(SYS_process_vm_readv);
    if (!strcmp(how, "strict")) failed = prctl(PR_SET_SECCOMP, SECCOMP_MODE_STRICT);
    if (!strcmp(how, "dispatch"))
        failed = prctl(PR_SET_SYSCALL_USER_DISPATCH, PR_SYS_DISPATCH_ON, 0, 0, &selector);
    if (failed) _exit(1);
    do {
        if (write(to_main[1], &sum, sizeof sum) != sizeof sum) break;
        if (read(to_thread[0], &times, sizeof times) != sizeof times) break;
        selector = SYSCALL_DISPATCH_FILTER_BLOCK;
        for (u64 n = 0; n < times; n++) sum += work(n, "thread");
        selector = SYSCALL_DISPATCH_FILTER_ALLOW;
    } while (1);
    return unused;
}

static void run(u64 times) {
    u64 sum = 0, other;
    for (u64 n = 0; n < times; n++) sum += work(n, "main");
    if (write(to_thread[1], &times, sizeof times) != sizeof times) exit(1);
    if (read(to_main[0], &other, sizeof other) != sizeof other) exit(1);
    calls += 2 * times;
    TELL("work", calls);
    TELL("sum", sum + other);
}

int main(int argc, char **argv) {
    pthread_t id;
    u64 begun;
    how = argc > 1 ? argv[1] : "plain";
    if (pipe(to_thread) || pipe(to_main) || pthread_create(&id, NULL, thread, NULL)) return 1;
    if (read(to_main[0], &begun, sizeof begun) != sizeof begun) return 1;
    int failed = victim_serve(run);
    /* A thread in strict mode would die of the exit call that libc makes for the whole process. */
    _exit(failed);
}
