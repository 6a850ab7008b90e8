/* Calls functions in threads, and counts these calls itself.
 *
 *   recorded THREADS ROUNDS [signals] [forks] [jumps] [endless]
 *
 * It prints its pid, and at the end how often each function was called, and the longest time of 64 rounds in
 * microseconds. `endless`: it runs until it is killed. */
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define FUNCTION __attribute__((noinline, noclone))

static long rounds;
static int has_jumps, is_endless;
static unsigned long handled_calls, jumped, longest;

FUNCTION long leaf(long n) {
    __asm__ volatile("" ::: "memory");
    return n + 1;
}
FUNCTION long mid(long n) {
    long sum = leaf(n);
    __asm__ volatile("" ::: "memory");
    return sum + leaf(n + 1) + 1;
}
FUNCTION long handled(long n) {
    __asm__ volatile("" ::: "memory");
    return n;
}
FUNCTION void thrown(jmp_buf *back) {
    __asm__ volatile("" ::: "memory");
    longjmp(*back, 1);
}
FUNCTION long thrower(jmp_buf *back, long depth) {
    if (depth == 0) thrown(back);
    long got = thrower(back, depth - 1);
    __asm__ volatile("" ::: "memory");
    return got + 1;
}
FUNCTION long catcher(void) {
    jmp_buf back;
    if (setjmp(back) == 0) return thrower(&back, 3);
    return 0;
}

static void on_signal(int number) {
    handled(number);
    __atomic_fetch_add(&handled_calls, 1, __ATOMIC_RELAXED);
}

static unsigned long micros(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * 1000000UL + now.tv_nsec / 1000;
}

FUNCTION void *work(void *unused) {
    long sum = 0;
    unsigned long worst = 0, before = micros();
    for (long n = 0; n < rounds || is_endless; n++) {
        sum += mid(n);
        if (has_jumps && n % 16 == 0) {
            catcher();
            __atomic_fetch_add(&jumped, 1, __ATOMIC_RELAXED);
        }
        if (n % 64 == 63) {
            unsigned long now = micros();
            if (now - before > worst) worst = now - before;
            before = now;
        }
    }
    unsigned long known = __atomic_load_n(&longest, __ATOMIC_RELAXED);
    while (worst > known && !__atomic_compare_exchange_n(&longest, &known, worst, 0, 0, 0)) {}
    return (void *)sum;
}

int main(int count, char **words) {
    int threads = count > 1 ? atoi(words[1]) : 1, forks = 0, signals = 0;
    rounds = count > 2 ? atol(words[2]) : 1000;
    for (int nth = 3; nth < count; nth++) {
        signals |= !strcmp(words[nth], "signals");
        forks |= !strcmp(words[nth], "forks");
        has_jumps |= !strcmp(words[nth], "jumps");
        is_endless |= !strcmp(words[nth], "endless");
    }
    printf("pid=%d\n", getpid());
    fflush(stdout);
    struct itimerval often = {{0, 200}, {0, 200}}, never = {{0, 0}, {0, 0}};
    if (signals) {
        struct sigaction action = {.sa_handler = on_signal, .sa_flags = SA_RESTART};
        sigaction(SIGALRM, &action, NULL);
        setitimer(ITIMER_REAL, &often, NULL);
    }
    pthread_t all[64];
    for (int nth = 0; nth < threads; nth++) pthread_create(&all[nth], NULL, work, NULL);
    if (forks) {
        pid_t child = fork();
        if (child == 0) {
            work(NULL);
            _exit(0);
        }
        int status;
        while (waitpid(child, &status, 0) < 0) {}
    }
    for (int nth = 0; nth < threads; nth++) pthread_join(all[nth], NULL);
    if (signals) setitimer(ITIMER_REAL, &never, NULL);
    unsigned long mids = (unsigned long)rounds * (threads + forks);
    printf("mid=%lu leaf=%lu handled=%lu jumped=%lu longest_us=%lu\n", mids, 2 * mids, handled_calls, jumped,
           longest);
    return 0;
}
