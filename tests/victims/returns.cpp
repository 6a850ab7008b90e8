// Calls that end in every possible way, for tests that replace return addresses.
extern "C" {
#include "victim.h"
}
#include <execinfo.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdexcept>
#include <stdlib.h>
#include <sys/wait.h>
#include <ucontext.h>
#include <unistd.h>

#define FUNC extern "C" __attribute__((noipa)) u64

static volatile u64 sink;

FUNC leaf(u64 n) { return n + 1; }
FUNC wide(double a, double b, u64 n) { return (u64)(a * b) + n; }
extern "C" __attribute__((noipa)) double real(double a) { return a * 2; }
extern "C" __attribute__((noipa)) long double extended(long double a) { return a * 3; }
FUNC recurse(u64 n) {
    if (n == 0) return 0;
    u64 below = recurse(n - 1);
    __asm__ volatile("" : "+r"(below));
    return below + 1;
}
FUNC tail_c(u64 n) { return n * 3; }
FUNC tail_b(u64 n) { return tail_c(n + 1); }
FUNC tail_a(u64 n) { return tail_b(n + 1); }

// Also ends by an indirect jump that may or may not leave the function. So its exits cannot all be found.
FUNC times_five(u64 n) { return n * 5; }
static u64 (*volatile hooks[])(u64) = {times_five, times_five};
FUNC hooked(u64 n) {
    if (n % 4 == 0) return n;
    return hooks[n % 2](n);
}

static jmp_buf place;
FUNC jumper(u64 n) {
    if (n % 3 == 0) longjmp(place, 1);
    return n;
}
FUNC jumped(u64 n) {
    if (setjmp(place)) return 7;
    return jumper(n);
}

FUNC thrower(u64 n) {
    if (n % 4 == 0) throw std::runtime_error("thrown");
    return n;
}
FUNC between(u64 n) { return thrower(n) + 1; }
FUNC through(u64 n) { return between(n); }
FUNC caught(u64 n) {
    try {
        return through(n) + 1;
    } catch (const std::runtime_error &) {
        return 5;
    }
}

static void *frames[64];
FUNC tracer(u64 n) { return (u64)backtrace(frames, 64) > n; }
FUNC traced(u64 n) { return tracer(n) + 1; }

// Two coroutines that leave each other in the middle of a call. The one that was entered first returns first.
static ucontext_t home, co[2];
static char stacks[2][65536];
FUNC yielding(u64 self) {
    swapcontext(&co[self], &co[1 - self]);
    return self;
}
static void coroutine(int self) {
    for (int i = 0; i < 3; i++) sink += yielding(self);
    co[self].uc_link = &home;
    if (self == 0) swapcontext(&co[0], &co[1]);
    setcontext(&home);
}
FUNC coroutines(u64 n) {
    for (int i = 0; i < 2; i++) {
        getcontext(&co[i]);
        co[i].uc_stack.ss_sp = stacks[i];
        co[i].uc_stack.ss_size = sizeof stacks[i];
        makecontext(&co[i], (void (*)())coroutine, 1, i);
    }
    swapcontext(&home, &co[0]);
    return n;
}

static volatile u64 handled;
FUNC in_handler(u64 n) { return n + 2; }
extern "C" __attribute__((noipa)) void on_signal(int) { handled = in_handler(handled); }
FUNC signalled(u64 n) {
    raise(SIGUSR1);
    return handled + n;
}

FUNC leaver(u64) { pthread_exit(NULL); }
// Its thread ends in it. The unwinder goes through it to run destructors.
extern "C" __attribute__((noipa)) void *thread_body(void *) {
    struct Cleaned {
        ~Cleaned() { sink += 1000; }
    } cleaned;
    return (void *)(leaver(1) + sink);
}
FUNC joined(u64 n) {
    pthread_t t;
    u64 before = sink;
    pthread_create(&t, NULL, thread_body, NULL);
    pthread_join(t, NULL);
    return n + sink - before;
}

static u64 reap(pid_t child) {
    int status = -1;
    waitpid(child, &status, 0);
    return (u64)status;
}
// The child goes on through the same frames as its parent.
FUNC forks(u64 n) { return fork() + 0 * n; }
FUNC forked(u64 n) {
    pid_t child = (pid_t)forks(n);
    if (child == 0) _exit(leaf(n) == n + 1 && recurse(9) == 9 ? 0 : 1);
    return reap(child);
}
FUNC child_leaf(u64 n) { return n + 1; }
FUNC leaves_at_once(u64 n) { _exit((int)n); }
FUNC vforked(u64 n) {
    pid_t child = vfork();
    if (child == 0) {
        if (child_leaf(n) != n + 1) _exit(1);
        leaves_at_once(0);
    }
    return reap(child);
}

static void run(u64 times) {
    u64 check = 0, jumps = 0, throws = 0;
    stack_t alternate = {.ss_sp = malloc(65536), .ss_flags = 0, .ss_size = 65536};
    sigaltstack(&alternate, NULL);
    struct sigaction action = {};
    action.sa_handler = on_signal;
    action.sa_flags = SA_ONSTACK;
    sigaction(SIGUSR1, &action, NULL);
    u64 rare = 0;
    for (u64 i = 0; i < times; i++) {
        check = check * 31 + leaf(i) + wide(1.5, 2.0 + (double)i, i) + recurse(i % 40) + tail_a(i);
        check = check * 31 + hooked(i);
        check += (u64)real((double)i) + (u64)extended((long double)i);
        check = check * 31 + jumped(i) + caught(i) + traced(3);
        jumps += i % 3 == 0;
        throws += i % 4 == 0;
        if (i % 50 == 0) {
            rare++;
            check = check * 31 + coroutines(i) + signalled(i) + joined(i) + forked(i) + vforked(i);
        }
    }
    handled = 0;
    sigaltstack(NULL, NULL);
    u64 deep = 0;
    for (u64 i = 0; i < times; i++) deep += i % 40 + 1;
    TELL("leaf", times + rare);
    TELL("wide", times);
    TELL("real", times);
    TELL("extended", times);
    TELL("recurse", deep + 10 * rare);
    TELL("tail_a", times);
    TELL("tail_b", times);
    TELL("tail_c", times);
    TELL("hooked", times);
    TELL("jumper", times - jumps);
    TELL("jumped", times);
    TELL("thrower", times - throws);
    TELL("through", times - throws);
    TELL("caught", times);
    TELL("tracer", times);
    TELL("traced", times);
    TELL("yielding", 6 * rare);
    TELL("coroutines", rare);
    TELL("in_handler", rare);
    TELL("on_signal", rare);
    TELL("signalled", rare);
    TELL("joined", rare);
    TELL("forks", 2 * rare);
    TELL("forked", rare);
    TELL("child_leaf", rare);
    TELL("vforked", rare);
    TELL("check", check);
}
int main() { return victim_serve(run); }
