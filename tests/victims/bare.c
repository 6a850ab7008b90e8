/* `bare KIND`: threads that the C library did not create in its usual way. `run N` calls `work` N times in
 * each of two threads. The second thread ends with the run, or exists from the beginning (`KIND-early`).
 * clone: created without a thread pointer of its own, so it uses the main thread's. fs: the same, and then
 * it sets one of its own. areas: threads of the C library, which was told to register no rseq areas; they
 * register areas of their own. */
#define _GNU_SOURCE
#include "victim.h"
#include <asm/prctl.h>
#include <pthread.h>
#include <sched.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#define BLOCK 65536

static volatile u64 wanted, done, sums[2];
static volatile int round_number;
static int sets_fs, early, areas;

PROBED u64 work(u64 x) { __asm__ volatile("" ::: "memory"); return x * 3 + 1; }

static u64 works(u64 times) {
    u64 sum = 0;
    for (u64 i = 0; i < times; i++) sum += work(i);
    return sum;
}

/* Uses no word of the C library's thread block: there may be no thread pointer. */
static long raw(long nr, long a, long b, long c) {
    long value;
    register long r10 __asm__("r10") = 0;
    __asm__ volatile("syscall" : "=a"(value) : "a"(nr), "D"(a), "S"(b), "d"(c), "r"(r10) : "rcx", "r11", "memory");
    return value;
}

static void own_pointer(void) {
    /* Zeroes around it, so that a wrong store there is not a fault, but a wrong count. */
    static char zeroes[2 * BLOCK] __attribute__((aligned(4096)));
    *(char **)(zeroes + BLOCK) = zeroes + BLOCK;
    raw(SYS_arch_prctl, ARCH_SET_FS, (long)(zeroes + BLOCK), 0);
}

static int other(void *arg) {
    if (sets_fs) own_pointer();
    int seen = 0;
    do {
        while (early && round_number == seen) raw(SYS_sched_yield, 0, 0, 0);
        seen++;
        sums[1] = works(wanted);
        __atomic_store_n(&done, 1, __ATOMIC_RELEASE);
    } while (early);
    for (;;) raw(SYS_exit, 0, 0, 0);
    return arg != NULL;
}

#ifdef OWN_CLONE
/* By a system call of its own. The new thread finds `function` on its stack, goes there, and has no caller. */
static int own_clone(int (*function)(void *), char *stack, long flags, void *arg) {
    void **top = (void **)stack - 2;
    top[0] = (void *)function;
    top[1] = arg;
    long value;
    __asm__ volatile("syscall; test %%rax, %%rax; jnz 1f; ret; 1:"
                     : "=a"(value) : "a"(SYS_clone), "D"(flags), "S"(top) : "rcx", "r11", "memory");
    return (int)value;
}
#define clone own_clone
#endif

static void begin(void) {
    char *stack = mmap(NULL, BLOCK, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    int flags = CLONE_VM | CLONE_FS | CLONE_FILES | CLONE_SIGHAND | CLONE_THREAD | CLONE_SYSVSEM;
    if (clone(other, stack + BLOCK, flags, NULL) < 0) abort();
}

static void *with_area(void *arg) {
    u64 *area = aligned_alloc(32, 32);
    memset(area, 0, 32);
    /* cpu_id: not known yet. */
    ((unsigned *)area)[1] = -1u;
    if (syscall(SYS_rseq, area, 32, 0, 0x53053053) != 0) puts("no rseq");
    *(u64 *)arg = works(wanted);
    return NULL;
}

static void run(u64 times) {
    wanted = times;
    if (areas) {
        pthread_t threads[2];
        for (int i = 0; i < 2; i++) pthread_create(&threads[i], NULL, with_area, (void *)&sums[i]);
        for (int i = 0; i < 2; i++) pthread_join(threads[i], NULL);
    } else {
        done = 0;
        round_number++;
        if (!early) begin();
        sums[0] = works(times);
        while (!__atomic_load_n(&done, __ATOMIC_ACQUIRE)) sched_yield();
    }
    TELL("work", 2 * times);
    TELL("sum", sums[0] + sums[1]);
}

int main(int argc, char **argv) {
    const char *kind = argc > 1 ? argv[1] : "";
    sets_fs = strncmp(kind, "fs", 2) == 0;
    early = strstr(kind, "-early") != NULL;
    areas = strcmp(kind, "areas") == 0;
    if (early) begin();
    return victim_serve(run);
}
