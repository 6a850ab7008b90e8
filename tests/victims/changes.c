/* Changes on request what its probes rely on: `segv` installs a handler of SIGSEGV that looks up the
 * faulting address, as runtimes with fault tables do; `tsc` forbids itself to read the time-stamp counter;
 * `filter` (by prctl) and `seccomp` (by syscall) install a filter that kills for process_vm_readv; `raw`
 * is `segv` by a system call of its own, whose number is loaded just before it, so that it is not held.
 * For each line with such a word it makes the change and prints `done`; `run N` calls `work` and `get` N
 * times each. With arguments WORD N it does both, and ends. `exec` is `segv`, and then executes this
 * program again with `nothing N` at once. */
#include "victim.h"
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <signal.h>
#include <stddef.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <ucontext.h>
#include <unistd.h>

extern char get_fix[];
int get(const int *at);
/* The load is the first instruction. It must fault at its own address, or the handler does not find it. */
__asm__(".text\n.p2align 4\n.globl get\n.type get,@function\nget: .cfi_startproc\n movl (%rdi), %eax\n addl $1, %eax\n ret\n"
        ".globl get_fix\nget_fix: movl $-1, %eax\n ret\n .cfi_endproc\n.size get, .-get\n.p2align 4\n");

static u64 caught;
static int handles;
static volatile long rt_sigaction = SYS_rt_sigaction;

PROBED u64 work(u64 x, const char *s) { return x * 3 + (u64)s[0]; }

static void on_segv(int sig, siginfo_t *info, void *context) {
    greg_t *ip = &((ucontext_t *)context)->uc_mcontext.gregs[REG_RIP];
    (void)sig, (void)info;
    if (*ip != (long)get) _exit(99);
    caught++;
    *ip = (long)get_fix;
}

static void restore(void) { __asm__ volatile("mov $15, %eax\n syscall"); }

static int handle(int raw) {
    struct sigaction act = {.sa_sigaction = on_segv, .sa_flags = SA_SIGINFO};
    struct {
        void *handler;
        unsigned long flags;
        void (*restorer)(void);
        unsigned long mask;
    } own = {on_segv, SA_SIGINFO | 0x04000000, restore, 0};
    register long size __asm__("r10") = 8;
    long done;
    handles = 1;
    if (!raw) return sigaction(SIGSEGV, &act, NULL);
    __asm__ volatile("movq %1, %%rax\n syscall" : "=&a"(done) : "m"(rt_sigaction), "D"(SIGSEGV), "S"(&own), "d"(0), "r"(size) : "rcx", "r11", "memory");
    return (int)done;
}

static int filter(int by_syscall) {
    struct sock_filter code[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_process_vm_readv, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    struct sock_fprog prog = {sizeof code / sizeof *code, code};
    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)) return 1;
    if (by_syscall) return (int)syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, 0, &prog);
    return prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &prog);
}

static int change(const char *how) {
    if (!strcmp(how, "segv") || !strcmp(how, "raw")) return handle(how[0] == 'r');
    if (!strcmp(how, "tsc")) return prctl(PR_SET_TSC, PR_TSC_SIGSEGV);
    if (!strcmp(how, "filter") || !strcmp(how, "seccomp")) return filter(how[0] == 's');
    return strcmp(how, "nothing");
}

static void run(u64 times) {
    int value = 41;
    long check = 0;
    u64 sum = 0;
    caught = 0;
    /* Each text lies at another address, so that not all of its page is known. */
    for (u64 i = 0; i < times; i++) {
        char text[64] = "text";
        sum += work(i, text);
        check += get(handles && i % 4 == 0 ? NULL : &value);
    }
    TELL("work", times);
    TELL("get", times);
    TELL("caught", caught);
    TELL("sum", sum);
    printf("check=%ld \n", check);
    fflush(stdout);
}

int main(int argc, char **argv) {
    char line[64];
    setvbuf(stdout, NULL, _IOLBF, 0);
    if (argc > 2 && !strcmp(argv[1], "exec")) {
        /* Between two looks of the tracer. */
        usleep(120000);
        if (handle(0)) return 2;
        execl(argv[0], argv[0], "nothing", argv[2], NULL);
        return 3;
    }
    if (argc > 2) {
        if (change(argv[1])) return 2;
        run(strtoul(argv[2], NULL, 10));
        return 0;
    }
    puts("ready");
    while (fgets(line, sizeof line, stdin)) {
        line[strcspn(line, "\n")] = 0;
        if (!strncmp(line, "run ", 4)) {
            run(strtoul(line + 4, NULL, 10));
        } else if (!strcmp(line, "quit")) {
            break;
        } else {
            if (change(line)) return 2;
            puts("done");
        }
    }
    return 0;
}
