/* Takes SIGTRAP for itself on request. For each line: `signal` installs a handler by the C library, `inline` by
 * a system call of its own; `default` and `ignore` set such an action; `trap` executes int3. `save N` raises a signal; its handler changes the interrupted
 * context so that it stands in `spot`, N bytes behind its start, and serves lines until `resume`. `run N` calls
 * `spot` N times. Each prints `traps=N spots=N`: how often the handler of SIGTRAP ran, and how often `spot`
 * was left. */
#include "victim.h"
#include <signal.h>
#include <sys/syscall.h>
#include <ucontext.h>
#include <unistd.h>

extern char away[];
long spot(long x);
__asm__(".text\n.p2align 4\n.globl spot\n.type spot,@function\nspot: .cfi_startproc\n pushq %rbx\n leaq 1(%rdi), %rax\n popq %rbx\n"
        " incq spots(%rip)\n ret\n .cfi_endproc\n.size spot, .-spot\n"
        ".p2align 4\n.type away,@function\naway: movq old_sp(%rip), %rsp\n jmp *old_ip(%rip)\n.size away, .-away\n");

u64 spots, old_sp, old_ip;
static u64 traps;
static void serve(void);

static void on_trap(int signal) { traps++; (void)signal; }
static void restore(void) { __asm__ volatile("mov $15, %eax\n syscall"); }

static long inside;
static void on_user(int signal, siginfo_t *info, void *context) {
    greg_t *regs = ((ucontext_t *)context)->uc_mcontext.gregs;
    u64 *stack = (u64 *)((u64)(regs[REG_RSP] - 256) & ~15ul);
    (void)signal, (void)info;
    old_sp = (u64)regs[REG_RSP];
    old_ip = (u64)regs[REG_RIP];
    *--stack = (u64)away;
    *--stack = (u64)regs[REG_RBX];
    regs[REG_RSP] = (greg_t)stack;
    regs[REG_RIP] = (greg_t)spot + inside;
    puts("saved");
    serve();
}

static void take(int inline_) {
    struct sigaction act = {.sa_handler = on_trap};
    struct {
        void *handler;
        unsigned long flags;
        void (*restorer)(void);
        unsigned long mask;
    } own = {on_trap, 0x04000000, restore, 0};
    register long size __asm__("r10") = 8;
    long done;
    if (!inline_) {
        sigaction(SIGTRAP, &act, NULL);
        return;
    }
    __asm__ volatile("syscall" : "=a"(done) : "a"(SYS_rt_sigaction), "D"(SIGTRAP), "S"(&own), "d"(0), "r"(size) : "rcx", "r11", "memory");
}

static void drop(void (*action)(int)) {
    struct sigaction act = {.sa_handler = action};
    sigaction(SIGTRAP, &act, NULL);
}

static void serve(void) {
    char line[64];
    while (fgets(line, sizeof line, stdin)) {
        line[strcspn(line, "\n")] = 0;
        if (!strcmp(line, "resume")) return;
        if (!strcmp(line, "quit")) _exit(0);
        if (!strcmp(line, "trap")) __asm__ volatile("int3");
        if (!strcmp(line, "signal") || !strcmp(line, "inline")) take(line[0] == 'i');
        if (!strcmp(line, "default")) drop(SIG_DFL);
        if (!strcmp(line, "ignore")) drop(SIG_IGN);
        if (!strncmp(line, "run ", 4))
            for (u64 n = strtoul(line + 4, NULL, 10); n; n--) spot((long)n);
        if (!strncmp(line, "save ", 5)) {
            inside = strtol(line + 5, NULL, 10);
            syscall(SYS_tgkill, getpid(), getpid(), SIGUSR1);
        }
        printf("traps=%lu spots=%lu\n", traps, spots);
    }
}

int main(void) {
    struct sigaction act = {.sa_sigaction = on_user, .sa_flags = SA_SIGINFO | SA_NODEFER};
    setvbuf(stdout, NULL, _IOLBF, 0);
    sigaction(SIGUSR1, &act, NULL);
    puts("ready");
    serve();
    return 0;
}
