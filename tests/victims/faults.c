/* A program that catches its faults, and looks at all of their context: the address, and every register. Its
 * handler repairs the page and returns, goes on behind the instruction, or leaves by siglongjmp. It may fault
 * itself. A word that differs from an unprobed run's changes the checksum.
 *
 * `other` sets another handler, `first` the first one again. */
#include "victim.h"
#include <setjmp.h>
#include <signal.h>
#include <sys/mman.h>
#include <ucontext.h>
#include <unistd.h>

#define SHAPES 6
/* Labels 1 and 2 are before and behind the instruction that faults. Only distances are kept: an address in data would
 * count as one that code branches to. */
#define FUNCTION(name, before, faults, behind)                                                                    \
    ".text\n.p2align 4\n.globl " #name "\n.type " #name ",@function\n" #name ":\n" before "1:\n" faults "2:\n" behind \
    "ret\n.size " #name ", .-" #name "\n.section .rodata.faults,\"a\"\n.long 1b - " #name ", 2b - " #name "\n"

__asm__(".section .rodata.faults,\"a\"\n.p2align 2\nplaces:\n"
        /* the first */
        FUNCTION(at_head, "", "mov (%rdi), %rax\n", "add $1, %rax\n")
        /* the second */
        FUNCTION(inside, "mov %rdi, %rdx\n", "mov (%rdx), %rax\n", "add $1, %rax\n")
        /* behind a push */
        FUNCTION(pushed, "push %rbx\nmov %rdi, %rbx\n", "mov (%rbx), %rax\n", "pop %rbx\n")
        /* a store as long as a jump */
        FUNCTION(stores, "", "movl $7, (%rdi)\n", "mov $7, %eax\n")
        /* flags are live behind it */
        FUNCTION(compared, "", "cmpb $0, (%rdi,%rsi)\n", "sete %al\nmovzbl %al, %eax\n")
        /* right before the exit */
        FUNCTION(at_exit, "mov %rdi, %rcx\nlea 1(%rcx), %rdx\nmov %edx, %edx\n", "mov (%rcx), %rax\n", "")
        ".text\n");

typedef long function(void *, long);
function at_head, inside, pushed, stores, compared, at_exit;
static function *const shapes[SHAPES] = {at_head, inside, pushed, stores, compared, at_exit};
extern const unsigned places[SHAPES][2] __attribute__((visibility("hidden")));

enum { REPAIR, SKIP, LEAP, NEST, WAYS };
static volatile int way, shape, depth;
static char *page, *second;
static sigjmp_buf back;
static volatile u64 caught, check, sent, others, elsewhere, nested, again[SHAPES];

static void mix(u64 word) { check = (check ^ word) * 0x100000001b3; }

/* Calls a function with all registers known that a call may change. */
__attribute__((noinline)) static long call(function *function, void *at) {
    long result;
    __asm__ volatile("mov $0x77, %%rdx\nmov $0x88, %%rcx\nmov $0x99, %%r8\nmov $0xaa, %%r9\nmov $0xbb, %%r10\n"
                     "mov %[f], %%r11\nmov $0xcc, %%eax\nxor %%esi, %%esi\ncall *%%r11"
                     : "=a"(result), "+D"(at)
                     : [f] "r"(function)
                     : "rcx", "rdx", "rsi", "r8", "r9", "r10", "r11", "memory", "cc");
    return result;
}

static void handle(int sig, siginfo_t *info, ucontext_t *context, int which) {
    greg_t *gregs = context->uc_mcontext.gregs;
    if (info->si_code <= 0) {
        sent++;
        return;
    }
    others += which;
    caught++;
    for (int n = 0; n <= REG_RIP; n++) mix(gregs[n]);
    mix(gregs[REG_EFL] & 0x8d5), mix((u64)info->si_addr), mix(sig), mix(context->uc_sigmask.__val[0]);
    char *rip = (char *)gregs[REG_RIP];
    int at = -1;
    for (int n = 0; n < SHAPES; n++)
        if (rip == (char *)shapes[n] + places[n][0]) at = n;
    if (at < 0 || at != (depth ? 0 : shape)) {
        static const char text[] = "fault at an unknown instruction\n";
        if (write(2, text, sizeof text - 1) < 0) _exit(98);
        _exit(99);
    }
    if (depth) {
        /* The handler's own fault. */
        mprotect(second, 4096, PROT_READ | PROT_WRITE);
        again[0]++;
        return;
    }
    switch (way) {
    case NEST:
        depth = 1;
        mprotect(second, 4096, PROT_NONE);
        nested++;
        mix(call(at_head, second));
        depth = 0;
        /* fall through */
    case REPAIR:
        mprotect(page, 4096, PROT_READ | PROT_WRITE);
        again[at]++;
        break;
    case SKIP: gregs[REG_RIP] = (greg_t)shapes[at] + places[at][1]; break;
    case LEAP: siglongjmp(back, 1);
    }
}
static void on_fault(int sig, siginfo_t *info, void *context) { handle(sig, info, context, 0); }
static void on_other(int sig, siginfo_t *info, void *context) { handle(sig, info, context, 1); }

static int traps;
static void set(void (*handler)(int, siginfo_t *, void *)) {
    struct sigaction act = {.sa_sigaction = handler, .sa_flags = SA_SIGINFO | SA_ONSTACK | SA_NODEFER};
    sigaddset(&act.sa_mask, SIGUSR1);
    sigaction(SIGSEGV, &act, NULL);
    /* As compilers do. From then on no guard is served. */
    if (traps) sigaction(SIGILL, &act, NULL);
    sigaction(SIGBUS, &act, NULL);
}
static void (*present)(int, siginfo_t *, void *) = on_fault;

static u64 i;
static void run(u64 times) {
    u64 calls[SHAPES] = {0};
    caught = sent = others = elsewhere = nested = 0, check = 0xcbf29ce484222325;
    for (int n = 0; n < SHAPES; n++) again[n] = 0;
    for (i = 0; i < times; i++) {
        shape = (int)(i % SHAPES), way = (int)(i / SHAPES % WAYS);
        int faults = i / SHAPES / WAYS % 2;
        mprotect(page, 4096, faults ? PROT_NONE : PROT_READ | PROT_WRITE);
        calls[shape]++;
        if (sigsetjmp(back, 1) == 0) mix(call(shapes[shape], page));
        if (i % 64 == 0) raise(SIGSEGV);
    }
    struct sigaction old;
    sigaction(SIGSEGV, NULL, &old);
    elsewhere = old.sa_sigaction != present || (old.sa_flags & ~0x04000000) != (SA_SIGINFO | SA_ONSTACK | SA_NODEFER);
    /* A thread that returns to the first instruction is at the probe again. */
    TELL("at_head", calls[0] + nested + again[0]), TELL("inside", calls[1]), TELL("pushed", calls[2]);
    TELL("stores", calls[3] + again[3]), TELL("compared", calls[4] + again[4]), TELL("at_exit", calls[5]);
    TELL("caught", caught), TELL("sent", sent), TELL("others", others), TELL("elsewhere", elsewhere);
    TELL("nested", nested), TELL("check", check);
}

int main(int argc, char **argv) {
    traps = argc > 1 && strcmp(argv[1], "traps") == 0;
    char line[128];
    static char stack[1 << 16];
    stack_t alternate = {.ss_sp = stack, .ss_size = sizeof stack};
    sigaltstack(&alternate, NULL);
    page = mmap(NULL, 8192, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0), second = page + 4096;
    memset(page, 1, 8192);
    set(on_fault);
    setvbuf(stdout, NULL, _IOLBF, 0);
    puts("ready");
    while (fgets(line, sizeof line, stdin)) {
        if (strncmp(line, "run ", 4) == 0) {
            run(strtoul(line + 4, NULL, 10));
            putchar('\n');
            fflush(stdout);
        } else if (strncmp(line, "other", 5) == 0) {
            set(present = on_other);
            puts("done");
        } else if (strncmp(line, "first", 5) == 0) {
            set(present = on_fault);
            puts("done");
        } else {
            break;
        }
    }
    return 0;
}
