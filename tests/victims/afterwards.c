/* Restricts itself on request. For each line: `run` calls `work` 1000 times and prints `done`; `filter`
 * installs a seccomp filter that kills for memfd_create; `strict` enters seccomp strict mode. After
 * `ready` it makes no calls but prctl, read, write and exit. */
#include "victim.h"
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stddef.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

static volatile u64 calls;

PROBED u64 work(u64 x) {
    __asm__ volatile("" ::: "memory");
    calls++;
    return x * 3 + calls;
}

static int filter(void) {
    struct sock_filter code[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_memfd_create, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    struct sock_fprog prog = {sizeof code / sizeof *code, code};
    return prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) | prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &prog);
}

static void say(const char *what) {
    if (write(1, what, strlen(what)) < 0) syscall(SYS_exit, 1);
}

int main(void) {
    char line[64];
    u64 sum = 0;
    say("ready\n");
    for (;;) {
        size_t len = 0;
        while (len < sizeof line - 1 && read(0, line + len, 1) == 1 && line[len] != '\n') len++;
        line[len] = 0;
        if (!len) syscall(SYS_exit, 0);
        if (!strcmp(line, "filter") && filter()) syscall(SYS_exit, 1);
        if (!strcmp(line, "strict") && prctl(PR_SET_SECCOMP, SECCOMP_MODE_STRICT)) syscall(SYS_exit, 1);
        for (int n = 0; !strcmp(line, "run") && n < 1000; n++) sum += work(sum);
        say("done\n");
    }
}
