/* `blocked HOW [alone]`: a thread is blocked in a system call for two seconds (or until a line comes).
 * Then it prints what the call returned, errno, and how long it took. Without `alone` another thread calls
 * probed functions meanwhile. HOW is epoll_wait, epoll_wait_timeout, nanosleep, futex, futex_timeout,
 * read, recv_timeout, poll_timeout, select_timeout. */
#include "victim.h"
#include <errno.h>
#include <linux/futex.h>
#include <poll.h>
#include <pthread.h>
#include <sys/epoll.h>
#include <sys/select.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

static int word, pair[2], tube[2];
static volatile int over, alone;

PROBED u64 busy(u64 x) { return x * 3 + 5; }

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec * 1e3 + (double)t.tv_nsec / 1e6;
}
static void *other(void *arg) {
    volatile u64 sum = 0;
    while (!over) sum += busy(sum);
    return arg;
}
/* Wakes calls without a timeout of their own after two seconds. */
static void *waker(void *arg) {
    struct timespec two = {2, 0};
    nanosleep(&two, NULL);
    syscall(SYS_futex, &word, FUTEX_WAKE, 1, NULL, NULL, 0);
    if (write(tube[1], "x", 1) != 1) return NULL;
    return arg;
}
static long block(const char *how) {
    char byte;
    struct timespec two = {2, 0};
    struct timeval two_tv = {2, 0};
    struct epoll_event event = {.events = EPOLLIN};
    struct pollfd idle = {.fd = pair[0], .events = POLLIN};
    int epoll = epoll_create1(0);
    if (!strcmp(how, "epoll_wait")) {
        epoll_ctl(epoll, EPOLL_CTL_ADD, tube[0], &event);
        return epoll_wait(epoll, &event, 1, -1);
    }
    epoll_ctl(epoll, EPOLL_CTL_ADD, pair[0], &event);
    if (!strcmp(how, "epoll_wait_timeout")) return epoll_wait(epoll, &event, 1, 2000);
    if (!strcmp(how, "nanosleep")) return nanosleep(&two, NULL);
    if (!strcmp(how, "futex")) return syscall(SYS_futex, &word, FUTEX_WAIT, 0, NULL, NULL, 0);
    if (!strcmp(how, "futex_timeout")) return syscall(SYS_futex, &word, FUTEX_WAIT, 0, &two, NULL, 0);
    if (!strcmp(how, "read")) return read(tube[0], &byte, 1);
    if (!strcmp(how, "poll_timeout")) return poll(&idle, 1, 2000);
    if (!strcmp(how, "select_timeout")) {
        fd_set set;
        FD_ZERO(&set);
        FD_SET(pair[0], &set);
        return select(pair[0] + 1, &set, NULL, NULL, &two_tv);
    }
    if (!strcmp(how, "recv_timeout")) {
        setsockopt(pair[0], SOL_SOCKET, SO_RCVTIMEO, &two_tv, sizeof two_tv);
        return recv(pair[0], &byte, 1, 0);
    }
    return -77;
}
int main(int argc, char **argv) {
    pthread_t thread;
    const char *how = argc > 1 ? argv[1] : "read";
    alone = argc > 2;
    setvbuf(stdout, NULL, _IOLBF, 0);
    if (socketpair(AF_UNIX, SOCK_DGRAM, 0, pair) || pipe(tube)) return 3;
    int needs_waker = !strcmp(how, "epoll_wait") || !strcmp(how, "futex") || !strcmp(how, "read");
    if (!alone && pthread_create(&thread, NULL, other, NULL)) return 3;
    if (needs_waker && pthread_create(&thread, NULL, waker, NULL)) return 3;
    puts("ready");
    errno = 0;
    double begun = now();
    long result = block(how);
    int error = errno;
    double took = now() - begun;
    over = 1;
    printf("result=%ld errno=%d took_ms=%.0f\n", result, error, took);
    u64 line = busy(1);
    if (fgetc(stdin) == EOF) return line == 8 ? 0 : 1;
    return 0;
}
