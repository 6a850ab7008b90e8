/* A victim that changes on request what its probes rely on. Its user defines `change`, which makes the change of
 * a name.
 * For each line with such a name it makes the change and prints `done`; `run N` calls `work` and `get` N times
 * each. With arguments NAME N it does both, and ends. `exec N` is the change `segv`; then it executes this
 * program again with `nothing N` at once. */
#ifndef CHANGES_H
#define CHANGES_H
#include "victim.h"
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <signal.h>
#include <stddef.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <ucontext.h>
#include <unistd.h>

#ifdef __aarch64__
#include "changes_aarch64.h"
#else
#include "changes_x86_64.h"
#endif

/* Makes the change of this name; 0: it is made. */
static long change(const char *what);

extern char get_fix[];
int get(const int *at);
GET;

static u64 caught;
static int handles;
/* With user dispatch: no call may be made while `work` runs. */
static char dispatches;
static volatile char selector;

PROBED u64 work(u64 x, const char *s) { return x * 3 + (u64)s[0]; }

/* Looks up the faulting address, as runtimes with fault tables do. */
static void on_segv(int sig, siginfo_t *info, void *context) {
    (void)sig, (void)info;
    if ((long)INTERRUPTED(context) != (long)get) _exit(99);
    caught++;
    INTERRUPTED(context) = (long)get_fix;
}

/* The handler, as the system call takes it. */
static const struct {
    void (*handler)(int, siginfo_t *, void *);
    unsigned long flags;
    void (*restorer)(void);
    unsigned long mask;
} own_action = {on_segv, SA_SIGINFO | RESTORER_FLAG, RESTORER, 0};

/* A filter that kills for process_vm_readv. */
static struct sock_filter readv_kills[] = {
    BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
    BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_process_vm_readv, 0, 1),
    BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS),
    BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
};
static struct sock_fprog filter_program = {sizeof readv_kills / sizeof *readv_kills, readv_kills};

static void run(u64 times) {
    int value = 41;
    long check = 0;
    u64 sum = 0;
    caught = 0;
    /* Each text lies at another address, so that not all of its page is known. */
    for (u64 i = 0; i < times; i++) {
        char text[64] = "text";
        selector = dispatches;
        sum += work(i, text);
        selector = 0;
        check += get(handles && i % 4 == 0 ? NULL : &value);
    }
    TELL("work", times);
    TELL("get", times);
    TELL("caught", caught);
    TELL("sum", sum);
    printf("check=%ld \n", check);
    fflush(stdout);
}

int main(int argc, char **argv) {
    char line[64];
    setvbuf(stdout, NULL, _IOLBF, 0);
    if (argc > 2 && !strcmp(argv[1], "exec")) {
        /* Between two looks of the tracer. */
        usleep(120000);
        if (change("segv")) return 2;
        execl(argv[0], argv[0], "nothing", argv[2], NULL);
        return 3;
    }
    if (argc > 2) {
        if (change(argv[1])) return 2;
        run(strtoul(argv[2], NULL, 10));
        return 0;
    }
    puts("ready");
    while (fgets(line, sizeof line, stdin)) {
        line[strcspn(line, "\n")] = 0;
        if (!strncmp(line, "run ", 4)) {
            run(strtoul(line + 4, NULL, 10));
        } else if (!strcmp(line, "quit")) {
            break;
        } else {
            if (change(line)) return 2;
            puts("done");
        }
    }
    return 0;
}
#endif
