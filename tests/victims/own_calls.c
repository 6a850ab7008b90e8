/* Changes on request what its probes rely on, by system calls of its own. What is changed: `tsc` forbids a
 * thread to read the time-stamp counter; `filter` installs a filter that kills for process_vm_readv; `segv`
 * installs a handler of SIGSEGV, as in changes.c. How the call is made: `inline`, with the number beside the
 * instruction; `wrapped`, by a function that takes the number; `stack`, by one that takes all on the stack, as
 * in Go up to 1.18; `hidden`, with a number that no code tells.
 * For each line WHAT-HOW it makes the change and prints `done`; `run N` calls `work` and `get` N times each.
 * With arguments WHAT-HOW N it does both, and ends. */
#include "victim.h"
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <signal.h>
#include <stddef.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <ucontext.h>
#include <unistd.h>

#define RAW(number, a, b, c, size) \
    ({ \
        long raw_; \
        register long r10_ __asm__("r10") = (size); \
        __asm__ volatile("syscall" : "=a"(raw_) : "a"(number), "D"(a), "S"(b), "d"(c), "r"(r10_) : "rcx", "r11", "memory"); \
        raw_; \
    })

extern char get_fix[];
int get(const int *at);
long wrapped(long number, long a, long b, long c, long d);
long stacked(long number, long a, long b, long c, long d);
__asm__(".text\n.p2align 4\n.globl get\n.type get,@function\nget: .cfi_startproc\n movl (%rdi), %eax\n addl $1, %eax\n ret\n"
        ".globl get_fix\nget_fix: movl $-1, %eax\n ret\n .cfi_endproc\n.size get, .-get\n");
__asm__(".p2align 4\n.globl wrapped\n.type wrapped,@function\nwrapped: .cfi_startproc\n movq %rdi, %rax\n movq %rsi, %rdi\n"
        " movq %rdx, %rsi\n movq %rcx, %rdx\n movq %r8, %r10\n syscall\n ret\n .cfi_endproc\n.size wrapped, .-wrapped\n");
__asm__(".p2align 4\n.globl on_stack\n.type on_stack,@function\non_stack: .cfi_startproc\n call nothing\n movq 16(%rsp), %rdi\n"
        " movq 24(%rsp), %rsi\n movq 32(%rsp), %rdx\n movq 40(%rsp), %r10\n movq 8(%rsp), %rax\n syscall\n ret\n"
        "nothing: ret\n .cfi_endproc\n.size on_stack, .-on_stack\n");
__asm__(".p2align 4\n.globl stacked\n.type stacked,@function\nstacked: pushq %r8\n pushq %rcx\n pushq %rdx\n pushq %rsi\n pushq %rdi\n"
        " call on_stack\n addq $40, %rsp\n ret\n.size stacked, .-stacked\n.p2align 4\n");

static u64 caught;
static int handles;
static volatile long hidden[] = {SYS_prctl, SYS_seccomp, SYS_rt_sigaction};

PROBED u64 work(u64 x, const char *s) { return x * 3 + (u64)s[0]; }

static void on_segv(int sig, siginfo_t *info, void *context) {
    greg_t *ip = &((ucontext_t *)context)->uc_mcontext.gregs[REG_RIP];
    (void)sig, (void)info;
    if (*ip != (long)get) _exit(99);
    caught++;
    *ip = (long)get_fix;
}

static void restore(void) { __asm__ volatile("mov $15, %eax\n syscall"); }

static long tsc(char how) {
    if (how == 'w') return wrapped(SYS_prctl, PR_SET_TSC, PR_TSC_SIGSEGV, 0, 0);
    if (how == 's') return stacked(SYS_prctl, PR_SET_TSC, PR_TSC_SIGSEGV, 0, 0);
    if (how == 'h') return RAW(hidden[0], PR_SET_TSC, PR_TSC_SIGSEGV, 0, 0);
    return RAW(SYS_prctl, PR_SET_TSC, PR_TSC_SIGSEGV, 0, 0);
}

static long filter(char how) {
    struct sock_filter code[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_process_vm_readv, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    struct sock_fprog prog = {sizeof code / sizeof *code, code};
    long at = (long)&prog;
    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)) return 1;
    if (how == 'w') return wrapped(SYS_seccomp, SECCOMP_SET_MODE_FILTER, 0, at, 0);
    if (how == 's') return stacked(SYS_seccomp, SECCOMP_SET_MODE_FILTER, 0, at, 0);
    if (how == 'h') return RAW(hidden[1], SECCOMP_SET_MODE_FILTER, 0, at, 0);
    return RAW(SYS_seccomp, SECCOMP_SET_MODE_FILTER, 0, at, 0);
}

static long handle(char how) {
    struct {
        void *handler;
        unsigned long flags;
        void (*restorer)(void);
        unsigned long mask;
    } own = {on_segv, SA_SIGINFO | 0x04000000, restore, 0};
    long at = (long)&own;
    handles = 1;
    if (how == 'w') return wrapped(SYS_rt_sigaction, SIGSEGV, at, 0, 8);
    if (how == 's') return stacked(SYS_rt_sigaction, SIGSEGV, at, 0, 8);
    if (how == 'h') return RAW(hidden[2], SIGSEGV, at, 0, 8);
    return RAW(SYS_rt_sigaction, SIGSEGV, at, 0, 8);
}

static long change(const char *what) {
    const char *how = strchr(what, '-');
    if (!how) return strcmp(what, "nothing");
    return *what == 't' ? tsc(how[1]) : *what == 'f' ? filter(how[1]) : handle(how[1]);
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
