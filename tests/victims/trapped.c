// Traps of every kind in one thread, each counted by its own handler.
//   trapped    run N: N times int3, int1, raise(SIGTRAP), a SIGTRAP as the kernel sends it for a trap without a reason,
//              SIGUSR1, and a write by this thread and by one that is created and ends
#define _GNU_SOURCE
#include <pthread.h>
#include <signal.h>
#include <sys/syscall.h>
#include <ucontext.h>
#include <unistd.h>
#include "victim.h"

volatile u64 cell;
static u64 int3, int1, raised, reasonless, usr1;

#ifdef __x86_64__
static void trap_twice(void) { __asm__ volatile("int3\n\t.byte 0xf1" ::: "memory"); }
static int is_int1(void *context) {
    greg_t ip = ((ucontext_t *)context)->uc_mcontext.gregs[REG_RIP];
    return ((unsigned char *)ip)[-1] == 0xf1;
}
#else
static void trap_twice(void) {}
static int is_int1(void *context) { return context == 0; }
#endif

static void handler(int signal, siginfo_t *info, void *context) {
    if (signal == SIGUSR1) usr1++;
    else if (info->si_code == SI_TKILL) raised++;
    else if (info->si_code == SI_KERNEL) int3++;
    else if (is_int1(context)) int1++;
    else reasonless++;
}

static void without_a_reason(void) {
    siginfo_t info = {.si_signo = SIGTRAP, .si_code = TRAP_BRKPT};
    syscall(SYS_rt_tgsigqueueinfo, getpid(), syscall(SYS_gettid), SIGTRAP, &info);
}

static void *write_once(void *arg) {
    cell++;
    return arg;
}

static void run(u64 times) {
    for (u64 i = 0; i < times; i++) {
        pthread_t other;
        trap_twice();
        raise(SIGTRAP);
        without_a_reason();
        raise(SIGUSR1);
        write_once(0);
        pthread_create(&other, 0, write_once, 0);
        pthread_join(other, 0);
    }
    TELL("int3", int3);
    TELL("int1", int1);
    TELL("raised", raised);
    TELL("reasonless", reasonless);
    TELL("usr1", usr1);
}

int main(void) {
    struct sigaction action = {.sa_sigaction = handler, .sa_flags = SA_SIGINFO | SA_RESTART};
    sigaction(SIGTRAP, &action, 0);
    sigaction(SIGUSR1, &action, 0);
    return victim_serve(run);
}
