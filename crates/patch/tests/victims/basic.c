// Eight threads that call eight functions, each thread counting for itself. Commands on standard input:
//   run N   every thread calls every function N times, then "done" is printed
//   hot     threads call without end until "cool"
//   sums    prints the calls of each function so far
//   fork    forks a child that serves commands of its own on the same input until "quit"
//   exec    runs itself anew
//   quit
#define _GNU_SOURCE
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

enum { THREADS = 8, FUNCTIONS = 8 };
#define F(n)                                                                       \
    __attribute__((noinline, noipa)) long f##n(long a) {                           \
        if (a == n + 1000000000) return a * 3;                                     \
        return a + n + 7;                                                          \
    }
F(0) F(1) F(2) F(3) F(4) F(5) F(6)
// Three short instructions in its first bytes, so that its window has interior boundaries.
__attribute__((naked, noinline, aligned(64))) long f7(long a) {
    __asm__("push %rbp; mov %rsp,%rbp; sub $16,%rsp; lea 14(%rdi),%rax; leave; ret");
}
// A window that crosses a cache line: it begins two bytes before one.
__asm__(".text\n.p2align 6\n.skip 62, 0xcc\n.globl crossing\n.type crossing, @function\ncrossing:\n"
        "push %rbp; mov %rsp,%rbp; sub $16,%rsp; lea 3(%rdi),%rax; leave; ret\n"
        ".size crossing, .-crossing\n");
long crossing(long a);
static long (*const table[])(long) = {f0, f1, f2, f3, f4, f5, f6, f7, crossing};
enum { COUNT = sizeof table / sizeof *table };

// A word like a USDT semaphore.
volatile unsigned short semaphore = 3;
static volatile long sums[THREADS][COUNT];
static volatile int hot, births, wrong;
static volatile long traps;
static long target;
static pthread_barrier_t gate, finish;

static void round_of(int me) {
    for (int i = 0; i < COUNT; i++) {
        long want = i == 8 ? 1003 : 1000 + i + 7;
        sums[me][i]++;
        if (table[i](1000) != want) wrong++;
    }
}

static void *work(void *arg) {
    int me = (int)(long)arg;
    for (;;) {
        pthread_barrier_wait(&gate);
        if (hot) {
            while (hot) round_of(me);
        } else {
            for (long n = 0; n < target; n++) round_of(me);
        }
        pthread_barrier_wait(&finish);
    }
}

static void *brief(void *arg) {
    f7((long)arg);
    return NULL;
}

static void *midwife(void *arg) {
    (void)arg;
    while (births) {
        pthread_t t;
        if (!pthread_create(&t, NULL, brief, NULL)) pthread_join(t, NULL);
    }
    return NULL;
}

static volatile long signals;
static void on_signal(int s) { (void)s; signals++; }
static void *storm(void *arg) {
    while (births) {
        kill(getpid(), SIGUSR1);
        usleep(50);
    }
    return arg;
}

static void on_trap(int s, siginfo_t *info, void *context) {
    (void)s; (void)info; (void)context;
    traps++;
}

static void start_threads(void) {
    pthread_barrier_init(&gate, NULL, THREADS + 1);
    pthread_barrier_init(&finish, NULL, THREADS + 1);
    for (long i = 0; i < THREADS; i++) {
        pthread_t t;
        pthread_create(&t, NULL, work, (void *)i);
    }
}

static void *blocker(void *arg) {
    sigset_t all;
    sigfillset(&all);
    pthread_sigmask(SIG_BLOCK, &all, NULL);
    for (;;) f7(1);
    return arg;
}

int main(int argc, char **argv) {
    struct sigaction usr = {.sa_handler = on_signal, .sa_flags = SA_RESTART};
    sigaction(SIGUSR1, &usr, NULL);
    for (int i = 1; i < argc; i++) {
        if (!strcmp(argv[i], "own-trap")) {
            struct sigaction trap = {.sa_sigaction = on_trap, .sa_flags = SA_SIGINFO | SA_RESTART};
            sigaddset(&trap.sa_mask, SIGUSR2);
            sigaction(SIGTRAP, &trap, NULL);
        }
        if (!strcmp(argv[i], "blocked")) {
            pthread_t t;
            pthread_create(&t, NULL, blocker, NULL);
        }
    }
    start_threads();
    setvbuf(stdout, NULL, _IOLBF, 0);
    printf("ready\n");
    pthread_t a, b;
    char line[128];
    while (fgets(line, sizeof line, stdin)) {
        if (sscanf(line, "run %ld", &target) == 1) {
            hot = 0;
            pthread_barrier_wait(&gate);
            pthread_barrier_wait(&finish);
            printf("done\n");
        } else if (!strcmp(line, "hot\n")) {
            hot = births = 1;
            pthread_barrier_wait(&gate);
            pthread_create(&a, NULL, midwife, NULL);
            pthread_create(&b, NULL, storm, NULL);
            printf("hot\n");
        } else if (!strcmp(line, "cool\n")) {
            hot = births = 0;
            pthread_barrier_wait(&finish);
            pthread_join(a, NULL);
            pthread_join(b, NULL);
            printf("cool\n");
        } else if (!strcmp(line, "sums\n")) {
            for (int i = 0; i < COUNT; i++) {
                long sum = 0;
                for (int t = 0; t < THREADS; t++) sum += sums[t][i];
                printf("%ld ", sum);
            }
            printf("wrong %d traps %ld semaphore %d\n", wrong, traps, semaphore);
        } else if (!strcmp(line, "trap\n")) {
            raise(SIGTRAP);
            __asm__ volatile("int3");
            printf("trapped\n");
        } else if (!strcmp(line, "fork\n")) {
            fflush(stdout);
            pid_t child = fork();
            if (!child) {
                for (int i = 0; i < 1000; i++) round_of(0);
                pause();
            }
            printf("%d\n", child);
        } else if (!strcmp(line, "exec\n")) {
            execl("/proc/self/exe", "basic", NULL);
        } else if (!strcmp(line, "forks\n")) {
            for (int i = 0; i < 400; i++) {
                pid_t child = fork();
                if (!child) {
                    int bad = wrong;
                    for (int n = 0; n < 1000; n++) round_of(0);
                    _exit(wrong != bad);
                }
                int status;
                waitpid(child, &status, 0);
                if (status) wrong++;
            }
            printf("forked\n");
        } else {
            break;
        }
    }
    _exit(wrong != 0);
}
