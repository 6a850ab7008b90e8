// Threads and children that write variables, and count their writes in counters of their own.
//   writers threads   run N: threads that wait, and threads born in the run, each write N times in ways of their own
//   writers fork      run N: a child writes N times, then the parent
//   writers rotate    run N: six variables in turn, N times; then one is only incremented
//   writers exec      run N: writes N times, then runs itself anew, as `threads`
//   writers spawn     run N: a child runs itself anew, as `threads`, and is waited for
//   writers other     run N: a child runs a program that has none of the variables, and is waited for
#include <pthread.h>
#include <sys/wait.h>
#include <unistd.h>
#include "victim.h"

struct inner { unsigned skip; u64 deep; };
static struct server {
    char pad[3];
    struct inner list[4];
    union { unsigned word; float real; };
    signed char small;
    struct server *self;
} server;
volatile u64 shared_count;
volatile u64 child_count;
volatile u64 own_count;
volatile u64 turn[6];
u64 sum = 1000;
static __thread u64 mine;

#define LATE 3
#define WAITING 2

PROBED void plain_store(u64 value) { own_count = value; }
PROBED void locked_add(u64 value) { __atomic_fetch_add(&shared_count, value, __ATOMIC_RELAXED); }
PROBED void field_store(u64 value) { ((volatile struct server *)&server)->list[2].deep = value; }
PROBED void small_store(u64 value) { ((volatile struct server *)&server)->small = (signed char)-value; }

PROBED void count_one(void) { sum++; }

static pthread_barrier_t begin, end;
static u64 times_wanted;

static void *waiting(void *arg) {
    for (;;) {
        pthread_barrier_wait(&begin);
        for (u64 i = 0; i < times_wanted; i++) { locked_add(1); mine++; }
        pthread_barrier_wait(&end);
    }
    return arg;
}

static void *late(void *arg) {
    for (u64 i = 0; i < times_wanted; i++) locked_add(1);
    return arg;
}

static void run_threads(u64 times) {
    pthread_t born[LATE];
    times_wanted = times;
    u64 before = shared_count;
    pthread_barrier_wait(&begin);
    for (int i = 0; i < LATE; i++) pthread_create(&born[i], 0, late, 0);
    for (u64 i = 0; i < times; i++) { plain_store(i); field_store(i * 3); small_store(i % 100); }
    for (int i = 0; i < LATE; i++) pthread_join(born[i], 0);
    pthread_barrier_wait(&end);
    TELL("shared", shared_count - before);
    TELL("plain", times);
    TELL("each", times);
}

static void run_fork(u64 times) {
    pid_t child = fork();
    if (!child) {
        for (u64 i = 0; i < times; i++) child_count = i + 1;
        _exit(0);
    }
    int status;
    waitpid(child, &status, 0);
    for (u64 i = 0; i < times; i++) child_count = i + 1000000;
    TELL("child", child);
    TELL("each", times);
}

static void anew(void) { execl("/proc/self/exe", "writers", "threads", (char *)0); }

static void run_exec(u64 times) {
    for (u64 i = 0; i < times; i++) plain_store(i);
    anew();
}

static void run_spawn(u64 times) {
    pid_t child = fork();
    if (!child) {
        anew();
        _exit(1);
    }
    int status;
    waitpid(child, &status, 0);
    TELL("child", child);
    TELL("each", times);
}

static void run_other(u64 times) {
    pid_t child = fork();
    if (!child) {
        execl("/bin/true", "true", (char *)0);
        _exit(1);
    }
    int status;
    waitpid(child, &status, 0);
    TELL("child", child);
    TELL("each", times);
}

static void run_rotate(u64 times) {
    for (u64 i = 0; i < times; i++)
        for (int k = 0; k < 6; k++) turn[k] = i;
    for (u64 i = 0; i < times; i++) count_one();
    TELL("sum", sum);
    TELL("each", times);
}

int main(int argc, char **argv) {
    const char *how = argc > 1 ? argv[1] : "threads";
    server.self = &server;
    if (how[0] == 'f') return victim_serve(run_fork);
    if (how[0] == 'r') return victim_serve(run_rotate);
    if (how[0] == 'e') return victim_serve(run_exec);
    if (how[0] == 's') return victim_serve(run_spawn);
    if (how[0] == 'o') return victim_serve(run_other);
    pthread_barrier_init(&begin, 0, WAITING + 1);
    pthread_barrier_init(&end, 0, WAITING + 1);
    for (int i = 0; i < WAITING; i++) {
        pthread_t thread;
        pthread_create(&thread, 0, waiting, 0);
    }
    return victim_serve(run_threads);
}
