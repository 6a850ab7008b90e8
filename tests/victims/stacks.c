/* Calls of `probed` by many ways, from the main thread and from another one. Compiled with frame pointers; each thread's chain of frames
 * ends at `tl_base`, with 0. With an argument, also from stacks and with frame pointers of every kind that a walk may meet: a heap
 * stack, a signal handler's own, rbp that is no frame. */
#include "victim.h"
#include <pthread.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

void tl_base(void (*f)(void));
void tl_on(void *top, void (*f)(void));
u64 tl_garbage(u64 rbp, u64 x);
__asm__(".text\n"
        /* f with a frame pointer of 0. */
        ".globl tl_base\n.type tl_base,@function\n"
        "tl_base: .cfi_startproc\n .cfi_undefined rip\n push %rbp\n xor %ebp,%ebp\n call *%rdi\n pop %rbp\n ret\n .cfi_endproc\n.size tl_base,.-tl_base\n"
        /* f on another stack, with the frame pointer as it is. */
        ".globl tl_on\n.type tl_on,@function\n"
        "tl_on: push %rbx\n mov %rsp,%rbx\n mov %rdi,%rsp\n call *%rsi\n mov %rbx,%rsp\n pop %rbx\n ret\n"
        ".size tl_on,.-tl_on\n"
        /* probed(x) with any frame pointer. */
        ".globl tl_garbage\n.type tl_garbage,@function\n"
        "tl_garbage: push %rbp\n mov %rdi,%rbp\n mov %rsi,%rdi\n call probed\n pop %rbp\n ret\n"
        ".size tl_garbage,.-tl_garbage\n");

static u64 times_now, calls[2], check[2];
static __thread int nth;
static char *edge, *heap;

/* With a frame, and so with `push %rbp` first: by that the kernel knows that it is at an entry, where the caller has no frame yet. */
PROBED u64 probed(u64 x) {
    __asm__ volatile("" : : "r"(__builtin_frame_address(0)));
    calls[nth]++;
    return x * 2654435761u + 1;
}
static void hit(u64 x) { check[nth] += probed(x); }

PROBED void left(u64 x) { hit(x); __asm__ volatile(""); }
PROBED void right(u64 x) { left(x + 1); hit(x); __asm__ volatile(""); }
PROBED void deep(u64 n) {
    if (n) deep(n - 1); else right(n);
    __asm__ volatile("");
}

PROBED void work(void) {
    for (u64 i = 0; i < times_now; i++) {
        hit(i);
        left(i);
        for (u64 n = 1; n < 24; n += 3) deep(n);
        if (i % 16 == 0) deep(200);
    }
}

static void handler(int signal) { hit((u64)signal); }
PROBED void coroutine(void) { right(7); raise(SIGUSR1); }
PROBED void wild(void) {
    u64 here = (u64)__builtin_frame_address(0);
    u64 values[] = {0, 1, 7, here, here + 1, here + 8, here - 4096, here & ~4095ul, (here | 4095) - 7, here + (1 << 20), ~0ul, ~15ul, 1ul << 63,
                    (u64)edge, (u64)edge - 8, (u64)edge - 16, (u64)heap};
    u64 self[2] = {(u64)self, 0}, down[2] = {here - 64, 1};
    for (u64 i = 0; i < times_now; i++) {
        for (size_t n = 0; n < sizeof values / sizeof *values; n++) check[nth] += tl_garbage(values[n], i);
        check[nth] += tl_garbage((u64)self, i) + tl_garbage((u64)down, i);
        tl_on(heap + 65536, coroutine);
        tl_on(edge, coroutine);
        raise(SIGUSR1);
    }
}

static int is_wild;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t changed = PTHREAD_COND_INITIALIZER;
static int turn, worker_tid;

static void alternate(void) {
    stack_t stack = {.ss_sp = malloc(65536), .ss_size = 65536};
    sigaltstack(&stack, NULL);
}
static void *worker(void *arg) {
    (void)arg;
    nth = 1;
    alternate();
    pthread_mutex_lock(&lock);
    worker_tid = (int)syscall(SYS_gettid);
    for (;;) {
        pthread_cond_broadcast(&changed);
        while (turn != 1) pthread_cond_wait(&changed, &lock);
        tl_base(is_wild ? wild : work);
        turn = 0;
    }
    return NULL;
}

static void run(u64 times) {
    times_now = times;
    calls[0] = calls[1] = 0;
    tl_base(is_wild ? wild : work);
    pthread_mutex_lock(&lock);
    turn = 1;
    pthread_cond_broadcast(&changed);
    while (turn != 0) pthread_cond_wait(&changed, &lock);
    pthread_mutex_unlock(&lock);
    TELL("probed", calls[0] + calls[1]);
    TELL("check", check[0] * 3 + check[1]);
    TELL("worker", worker_tid);
    check[0] = check[1] = 0;
}

int main(int argc, char **argv) {
    (void)argv;
    is_wild = argc > 1;
    int access = PROT_READ | PROT_WRITE, flags = MAP_PRIVATE | MAP_ANONYMOUS;
    heap = mmap(NULL, 65536, access, flags, -1, 0);
    /* A stack right below a page that is not there. */
    char *small = mmap(NULL, 32768 + 4096, access, flags, -1, 0);
    if (heap == MAP_FAILED || small == MAP_FAILED || munmap(small + 32768, 4096)) return 1;
    edge = small + 32768;
    struct sigaction action = {.sa_handler = handler, .sa_flags = SA_ONSTACK | SA_NODEFER};
    sigaction(SIGUSR1, &action, NULL);
    alternate();
    pthread_t thread;
    pthread_create(&thread, NULL, worker, NULL);
    pthread_mutex_lock(&lock);
    while (!worker_tid) pthread_cond_wait(&changed, &lock);
    pthread_mutex_unlock(&lock);
    return victim_serve(run);
}
