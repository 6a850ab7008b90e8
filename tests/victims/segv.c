/* A program that catches its own SIGSEGVs and looks up the faulting instruction, as runtimes with implicit
 * null checks do. A fault at an address that is not in its table ends the program. */
#include "victim.h"
#include <signal.h>
#include <ucontext.h>
#include <unistd.h>

extern char load_at[], load_end[], load_fixup[];
static u64 caught;

/* The load is the first instruction. It must fault at its own address, or the handler does not find it. */
__asm__(".text\n.p2align 4\n.globl guarded_load\n.type guarded_load,@function\nguarded_load:\n"
        ".globl load_at\nload_at: mov (%rdi), %rax\n.globl load_end\nload_end: ret\n"
        ".globl load_fixup\nload_fixup: mov $-1, %rax\nret\n.size guarded_load, .-guarded_load\n.p2align 4\n");
long guarded_load(const void *at);

PROBED long checked_load(const long *at) { return guarded_load(at) + 1; }
PROBED void in_handler(ucontext_t *context) {
    if (context->uc_mcontext.gregs[REG_RIP] != (long)load_at) {
        static const char text[] = "fault at an unknown instruction\n";
        if (write(2, text, sizeof text - 1) < 0) _exit(98);
        _exit(99);
    }
    caught++;
    context->uc_mcontext.gregs[REG_RIP] = (long)load_fixup;
}
static void on_segv(int sig, siginfo_t *info, void *context) {
    (void)sig, (void)info;
    in_handler(context);
}
static void run(u64 times) {
    long value = 41, check = 0;
    caught = 0;
    for (u64 i = 0; i < times; i++) check += checked_load(i % 4 == 0 ? NULL : &value);
    TELL("checked_load", times);
    TELL("guarded_load", times);
    TELL("in_handler", caught);
    TELL("check", check);
}
int main(void) {
    struct sigaction act = {.sa_sigaction = on_segv, .sa_flags = SA_SIGINFO};
    sigaction(SIGSEGV, &act, NULL);
    return victim_serve(run);
}
