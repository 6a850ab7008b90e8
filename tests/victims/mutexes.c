/* Mutexes and condition variables of the C library, by two threads. It prints where they are, and how often they were used. */
#include <pthread.h>
#include <time.h>
#include <unistd.h>
#include "victim.h"

static pthread_mutex_t free_one = PTHREAD_MUTEX_INITIALIZER, held = PTHREAD_MUTEX_INITIALIZER,
                       wanted = PTHREAD_MUTEX_INITIALIZER, turn = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t signalled = PTHREAD_COND_INITIALIZER, late = PTHREAD_COND_INITIALIZER;
static volatile int helper_tid, at_lock;
static int waiting;
static u64 waits, rounds;

/* Whether the helper sleeps, behind the word that it writes last before it locks. */
static int helper_sleeps(void) {
    char path[64], line[256], *name_end;
    snprintf(path, sizeof path, "/proc/self/task/%d/stat", helper_tid);
    FILE *file = fopen(path, "r");
    if (!file || !fgets(line, sizeof line, file)) exit(3);
    fclose(file);
    name_end = strrchr(line, ')');
    return name_end && name_end[2] == 'S';
}

/* Waits for its turn, and then for the mutex that the other thread holds. */
static void *helper(void *unused) {
    helper_tid = gettid();
    for (u64 n = 0; n < rounds; n++) {
        pthread_mutex_lock(&turn);
        for (waiting = 1; waiting; waits++) pthread_cond_wait(&signalled, &turn);
        pthread_mutex_unlock(&turn);
        at_lock = 1;
        pthread_mutex_lock(&wanted);
        at_lock = 0;
        pthread_mutex_unlock(&wanted);
    }
    return unused;
}

/* Takes the mutex, lets the helper go, and gives it back 20 ms after the helper began to wait. */
static void contend(void) {
    int is_waiting = 0;
    while (!is_waiting) {
        pthread_mutex_lock(&turn);
        is_waiting = waiting;
        pthread_mutex_unlock(&turn);
    }
    pthread_mutex_lock(&wanted);
    pthread_mutex_lock(&turn);
    waiting = 0;
    pthread_cond_signal(&signalled);
    pthread_mutex_unlock(&turn);
    while (!at_lock || !helper_sleeps()) usleep(100);
    usleep(20000);
    pthread_mutex_unlock(&wanted);
    while (at_lock) usleep(100);
}

static void run(u64 times) {
    pthread_t thread;
    struct timespec past = {1, 0};
    waits = 0;
    for (u64 n = 0; n < times; n++) {
        pthread_mutex_lock(&free_one);
        pthread_mutex_unlock(&free_one);
        pthread_mutex_lock(&held);
        usleep(2500);
        if (pthread_mutex_trylock(&held) == 0) exit(3);
        pthread_cond_timedwait(&late, &held, &past);
        pthread_mutex_unlock(&held);
    }
    rounds = times;
    pthread_create(&thread, NULL, helper, NULL);
    for (u64 n = 0; n < times; n++) contend();
    pthread_join(thread, NULL);
    TELL("free", &free_one);
    TELL("held", &held);
    TELL("wanted", &wanted);
    TELL("signalled", &signalled);
    TELL("late", &late);
    TELL("waits", waits);
}

int main(void) { return victim_serve(run); }
