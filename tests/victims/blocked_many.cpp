// Calls that block in several threads and on several stacks until a line comes: stacks of threads, of a
// running coroutine, and of one that is left in the middle; a signal's own stack; and a chain of tail calls.
// Before that line, `leave N` makes N calls that are left by longjmp.
extern "C" {
#include "victim.h"
}
#include <pthread.h>
#include <semaphore.h>
#include <setjmp.h>
#include <signal.h>
#include <ucontext.h>
#define FUNC extern "C" __attribute__((noipa)) u64

static sem_t blocks, goes;
static u64 waits;

static void wait_here() {
    sem_post(&blocks);
    while (waits && sem_wait(&goes)) {}
}
FUNC held(u64 n) {
    wait_here();
    return n + 1;
}
FUNC above(u64 n) { return held(n) + 10; }
// Two return trampolines share one stack word.
FUNC tail_end(u64 n) {
    wait_here();
    return n + 2;
}
FUNC tail_start(u64 n) { return tail_end(n + 20); }

static u64 sums[8];
static void *plain(void *at) { return (void *)(sums[(u64)at] = above((u64)at)); }
static void *chained(void *at) { return (void *)(sums[(u64)at] = tail_start((u64)at)); }

static thread_local ucontext_t home, co;
static thread_local u64 coroutine_of;
static void on_other_stack() { sums[coroutine_of] = above(coroutine_of); }
// Left in the middle of its call.
FUNC leaves_for_a_while(u64 n) {
    swapcontext(&co, &home);
    return n + 3;
}
static void suspended() { sums[coroutine_of] = leaves_for_a_while(coroutine_of); }
static void *coroutine(void *at) {
    static char stacks[8][65536];
    coroutine_of = (u64)at;
    getcontext(&co);
    co.uc_stack.ss_sp = stacks[coroutine_of];
    co.uc_stack.ss_size = sizeof stacks[0];
    co.uc_link = &home;
    makecontext(&co, coroutine_of == 3 ? on_other_stack : suspended, 0);
    swapcontext(&home, &co);
    if (coroutine_of == 4) {
        wait_here();
        swapcontext(&home, &co);
    }
    return NULL;
}
static thread_local u64 signal_of;
extern "C" void on_signal(int) { sums[signal_of] = above(signal_of); }
static void *signalled(void *at) {
    static char stack[65536];
    stack_t other = {};
    other.ss_sp = stack;
    other.ss_size = sizeof stack;
    sigaltstack(&other, NULL);
    signal_of = (u64)at;
    raise(SIGUSR1);
    return NULL;
}

static jmp_buf back;
FUNC leaves_for_good(u64 n) {
    if (waits) longjmp(back, 1);
    return n;
}
static void leave(u64 times) {
    for (volatile u64 n = 0; n < times; n++)
        if (!setjmp(back)) leaves_for_good(n);
    puts("left");
}

static void run(u64 times) {
    void *(*bodies[])(void *) = {plain, plain, chained, coroutine, coroutine, signalled};
    const u64 threads = sizeof bodies / sizeof *bodies;
    pthread_t ids[threads];
    char line[16];
    waits = times == 2;
    sem_init(&blocks, 0, 0);
    sem_init(&goes, 0, 0);
    struct sigaction action = {};
    action.sa_handler = on_signal;
    action.sa_flags = SA_ONSTACK;
    sigaction(SIGUSR1, &action, NULL);
    for (u64 n = 0; n < threads; n++) pthread_create(&ids[n], NULL, bodies[n], (void *)n);
    for (u64 n = 0; n < threads; n++) sem_wait(&blocks);
    if (waits) {
        puts("blocking");
        do {
            if (!fgets(line, sizeof line, stdin)) return;
            if (!strncmp(line, "leave ", 6)) leave(strtoul(line + 6, NULL, 10));
        } while (!strncmp(line, "leave ", 6));
    }
    for (u64 n = 0; n < threads; n++) sem_post(&goes);
    for (u64 n = 0; n < threads; n++) pthread_join(ids[n], NULL);
    u64 check = 0;
    for (u64 n = 0; n < threads; n++) check = check * 1000 + sums[n];
    TELL("check", check);
}
int main() { return victim_serve(run); }
