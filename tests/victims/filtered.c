/* Runs under the seccomp filter that its argument names: `kill` and `errno` punish memfd_create,
 * `sigreturn` kills on rt_sigreturn, `gettid` on gettid, `allow` allows everything, `strict` is mode 1.
 * For each line of input it calls `leaf` once and prints `alive`. After `ready` it calls only read, write
 * and exit: strict mode allows no more. */
#include "victim.h"
#include <errno.h>
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stddef.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

PROBED u64 leaf(u64 x) { return x * 3 + 1; }

static int punish(unsigned call, unsigned action) {
    struct sock_filter code[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, call, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, action),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    struct sock_fprog prog = {sizeof code / sizeof *code, code};
    return prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) | prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &prog);
}

int main(int argc, char **argv) {
    const char *how = argc > 1 ? argv[1] : "allow";
    int failed = 0;
    if (!strcmp(how, "kill")) failed = punish(SYS_memfd_create, SECCOMP_RET_KILL_PROCESS);
    if (!strcmp(how, "errno")) failed = punish(SYS_memfd_create, SECCOMP_RET_ERRNO | EPERM);
    if (!strcmp(how, "allow")) failed = punish(SYS_memfd_create, SECCOMP_RET_ALLOW);
    if (!strcmp(how, "sigreturn")) failed = punish(SYS_rt_sigreturn, SECCOMP_RET_KILL_PROCESS);
    if (!strcmp(how, "gettid")) failed = punish(SYS_gettid, SECCOMP_RET_KILL_PROCESS);
    if (!strcmp(how, "strict")) failed = prctl(PR_SET_SECCOMP, SECCOMP_MODE_STRICT);
    if (failed) return 1;
    if (write(1, "ready\n", 6) != 6) return 1;
    char c;
    volatile u64 sum = 0;
    while (read(0, &c, 1) == 1) {
        if (c != '\n') continue;
        sum += leaf(sum);
        if (write(1, "alive\n", 6) != 6) break;
    }
    for (;;) syscall(SYS_exit, 0);
}
