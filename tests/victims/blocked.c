/* `blocked HOW MS [alone]`: a thread sits in a system call for MS milliseconds, then prints what it returned,
 * errno, and how long it took. Without `alone` another thread calls probed functions meanwhile. HOW is
 * epoll_wait, epoll_wait_timeout, nanosleep, futex, futex_timeout, read, recv_timeout, poll_timeout, select_timeout. */
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
static volatile int over, alone, wakes_futex;
static int ms;

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
/* Wakes what has no timeout of its own, when its time is over. A thread that is stopped at that moment waits on no futex, and begins
 * to wait again when it goes on: it is woken then. */
static void *waker(void *arg) {
    struct timespec time = {ms / 1000, ms % 1000 * 1000000}, moment = {0, 1000000};
    nanosleep(&time, NULL);
    if (wakes_futex)
        while (syscall(SYS_futex, &word, FUTEX_WAKE, 1, NULL, NULL, 0) != 1) nanosleep(&moment, NULL);
    if (write(tube[1], "x", 1) != 1) return NULL;
    return arg;
}
static long block(const char *how) {
    char byte;
    struct timespec time = {ms / 1000, ms % 1000 * 1000000};
    struct timeval time_tv = {ms / 1000, ms % 1000 * 1000};
    struct epoll_event event = {.events = EPOLLIN};
    struct pollfd idle = {.fd = pair[0], .events = POLLIN};
    int epoll = epoll_create1(0);
    if (!strcmp(how, "epoll_wait")) {
        epoll_ctl(epoll, EPOLL_CTL_ADD, tube[0], &event);
        return epoll_wait(epoll, &event, 1, -1);
    }
    epoll_ctl(epoll, EPOLL_CTL_ADD, pair[0], &event);
    if (!strcmp(how, "epoll_wait_timeout")) return epoll_wait(epoll, &event, 1, ms);
    if (!strcmp(how, "nanosleep")) return nanosleep(&time, NULL);
    if (!strcmp(how, "futex")) return syscall(SYS_futex, &word, FUTEX_WAIT, 0, NULL, NULL, 0);
    if (!strcmp(how, "futex_timeout")) return syscall(SYS_futex, &word, FUTEX_WAIT, 0, &time, NULL, 0);
    if (!strcmp(how, "read")) return read(tube[0], &byte, 1);
    if (!strcmp(how, "poll_timeout")) return poll(&idle, 1, ms);
    if (!strcmp(how, "select_timeout")) {
        fd_set set;
        FD_ZERO(&set);
        FD_SET(pair[0], &set);
        return select(pair[0] + 1, &set, NULL, NULL, &time_tv);
    }
    if (!strcmp(how, "recv_timeout")) {
        setsockopt(pair[0], SOL_SOCKET, SO_RCVTIMEO, &time_tv, sizeof time_tv);
        return recv(pair[0], &byte, 1, 0);
    }
    return -77;
}
int main(int argc, char **argv) {
    pthread_t thread;
    const char *how = argc > 1 ? argv[1] : "read";
    ms = argc > 2 ? atoi(argv[2]) : 2000;
    alone = argc > 3;
    setvbuf(stdout, NULL, _IOLBF, 0);
    if (socketpair(AF_UNIX, SOCK_DGRAM, 0, pair) || pipe(tube)) return 3;
    int needs_waker = !strcmp(how, "epoll_wait") || !strcmp(how, "futex") || !strcmp(how, "read");
    wakes_futex = !strcmp(how, "futex");
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
