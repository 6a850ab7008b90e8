/* `namespaces HOW`: run N makes N children, each of which is process 1 or 2 of a PID namespace of its own, and has one
 * thread. First the program itself calls both functions, with N as index. Then all children call `begin_work` with their index, then all call `end_work` with it; they stay until this program
 * ends. HOW says how the namespaces come about: by `unshare` or `setns` in a process between, or by `clone`; with `fork` the
 * children are in this program's namespace. With `gone` children are as with `unshare`, and end at once.
 * The numbers of their processes, as this program sees them, are told as `pid0` and so on. */
#define _GNU_SOURCE
#include "victim.h"
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

enum { MOST = 64 };
static const char *how;
static int begun[2], go[2], ended[2], stay[2], pids[2];

/* Not pure, so that no call of theirs is moved over another one. */
#define KEPT __asm__ volatile("" ::: "memory")
PROBED u64 begin_work(u64 x) { KEPT; return x * 7 + 1; }
PROBED u64 end_work(u64 x) { KEPT; return x * 5 + 2; }

static void work(u64 index) {
    char c = 1;
    close(stay[1]);
    u64 sum = begin_work(index);
    if (write(begun[1], &c, 1) != 1 || read(go[0], &c, 1) != 1) _exit(3);
    sum += end_work(index);
    if (write(ended[1], &c, 1) != 1) _exit(4);
    if (strcmp(how, "gone")) sum += (u64)read(stay[0], &c, 1);
    _exit(sum == 0);
}
static void forks(u64 index) {
    pid_t pid = fork();
    if (pid == 0) work(index);
    if (pid < 0 || write(pids[1], &pid, sizeof pid) != sizeof pid) _exit(5);
}
/* In a process between: its next children are in another namespace. */
static void between(u64 index) {
    char path[64];
    if (!strcmp(how, "setns")) {
        pid_t first = (pid_t)syscall(SYS_clone, CLONE_NEWPID | SIGCHLD, 0, 0, 0, 0);
        if (first == 0) {
            prctl(PR_SET_PDEATHSIG, SIGKILL);
            pause();
            _exit(0);
        }
        snprintf(path, sizeof path, "/proc/%d/ns/pid", first);
        int fd = open(path, O_RDONLY);
        if (first < 0 || fd < 0 || setns(fd, CLONE_NEWPID)) _exit(6);
    } else if (strcmp(how, "fork") && unshare(CLONE_NEWPID)) {
        _exit(7);
    }
    forks(index);
}
static int makes(u64 index) {
    pid_t pid;
    if (!strcmp(how, "clone")) {
        pid = (pid_t)syscall(SYS_clone, CLONE_NEWPID | SIGCHLD, 0, 0, 0, 0);
        if (pid == 0) work(index);
        return pid < 0 || write(pids[1], &pid, sizeof pid) != sizeof pid;
    }
    if ((pid = fork()) == 0) {
        char c;
        close(stay[1]);
        between(index);
        c = (char)read(stay[0], &c, 1);
        _exit(c != 0);
    }
    return pid < 0;
}
static void run(u64 times) {
    char c = 1, name[16];
    u64 failed = 0;
    pid_t pid;
    int *all[] = {begun, go, ended, stay, pids};
    for (int i = 0; i < 5; i++) failed += pipe(all[i]) != 0;
    times = times < MOST ? times : MOST;
    failed += begin_work(times) + end_work(times) == 0;
    snprintf(name, sizeof name, "pid%lu", times);
    TELL(name, getpid());
    for (u64 i = 0; i < times; i++) {
        failed += makes(i) != 0;
        snprintf(name, sizeof name, "pid%lu", i);
        failed += read(pids[0], &pid, sizeof pid) != sizeof pid;
        TELL(name, pid);
    }
    for (u64 i = 0; i < times; i++) failed += read(begun[0], &c, 1) != 1;
    for (u64 i = 0; i < times; i++) failed += write(go[1], &c, 1) != 1;
    for (u64 i = 0; i < times; i++) failed += read(ended[0], &c, 1) != 1;
    TELL("failed", failed);
}
int main(int argc, char **argv) {
    how = argc > 1 ? argv[1] : "unshare";
    signal(SIGCHLD, SIG_IGN);
    return victim_serve(run);
}
