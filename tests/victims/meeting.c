/* `meeting [own] [masks]`: two threads work, and a timer signal arrives all the time; its handler calls
 * the same function. The threads enter it behind its second instruction, at which a window begins, by an
 * address that no analysis finds. With `masks` they enter at its head, and the handler blocks every
 * signal. With `own` the program has a handler of SIGTRAP, although it causes no traps itself. */
#include "victim.h"
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <sys/time.h>
#include <unistd.h>

static atomic_ulong alarms, wrong, traps, rounds;
static int masks;
/* Address of `handled`'s third instruction. */
static volatile u64 third = 7;

u64 handled(u64 x);
u64 inside(u64 x, u64 at);
__asm__(".text\n.p2align 4\n.globl handled\n.type handled,@function\n"
        "handled: mov %rdi,%rax\n .byte 0x48, 0x8d, 0x40, 0 /* lea 0(%rax),%rax */\n lea 9(%rax),%rax\n ret\n.size handled,.-handled\n"
        ".p2align 4\n.type inside,@function\n"
        "inside: mov %rdi,%rax\n lea handled(%rip),%r11\n add %rsi,%r11\n jmp *%r11\n.size inside,.-inside\n");

static void work(int times) {
    for (int i = 0; i < times; i++)
        if ((masks ? handled(1) : inside(1, third)) != 10) atomic_fetch_add(&wrong, 1);
}
static void on_alarm(int sig) {
    (void)sig;
    work(masks ? 2000 : 1);
    atomic_fetch_add(&alarms, 1);
}
static void on_trap(int sig) {
    (void)sig;
    atomic_fetch_add(&traps, 1);
}
static void *forever(void *arg) {
    for (;;) {
        work(1000);
        atomic_fetch_add(&rounds, 1);
    }
    return arg;
}
static void run(u64 times) {
    usleep((useconds_t)times);
    TELL("wrong", atomic_load(&wrong));
    TELL("alarms", atomic_load(&alarms));
    TELL("traps", atomic_load(&traps));
    TELL("rounds", atomic_load(&rounds));
}
int main(int argc, char **argv) {
    struct sigaction act = {.sa_handler = on_alarm, .sa_flags = SA_RESTART};
    for (int i = 1; i < argc; i++) {
        if (!strcmp(argv[i], "own")) signal(SIGTRAP, on_trap);
        if (!strcmp(argv[i], "masks")) masks = 1;
    }
    if (masks) sigfillset(&act.sa_mask);
    sigaction(SIGALRM, &act, NULL);
    for (int i = 0; i < 2; i++) {
        pthread_t thread;
        if (pthread_create(&thread, NULL, forever, NULL) != 0) return 3;
    }
    /* The first thread waits for input, which a signal would interrupt. */
    sigset_t alarm;
    sigemptyset(&alarm);
    sigaddset(&alarm, SIGALRM);
    pthread_sigmask(SIG_BLOCK, &alarm, NULL);
    struct itimerval every = {{0, 150}, {0, 150}};
    setitimer(ITIMER_REAL, &every, NULL);
    return victim_serve(run);
}
