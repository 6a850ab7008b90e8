/* `odd KIND`: a process with an unusual thread. A second thread speaks for the program. `run N` calls
 * `work` N times.
 * leader: the main thread ends at once. leaves: it ends at `leave`. uring: io_uring polls in a kernel
 * thread of this process. vfork: the main thread waits in vfork for a child that lives until `go`. name:
 * its name is made of bytes that are no text. */
#define _GNU_SOURCE
#include "victim.h"
#include <errno.h>
#include <linux/io_uring.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

static int leave[2], go[2];

PROBED u64 work(u64 x) { __asm__ volatile("" ::: "memory"); return x * 3 + 1; }

static void *serve(void *arg) {
    char line[128];
    setvbuf(stdout, NULL, _IOLBF, 0);
    puts("ready");
    while (fgets(line, sizeof line, stdin)) {
        if (strncmp(line, "run ", 4) == 0) {
            u64 times = strtoul(line + 4, NULL, 10), sum = 0;
            for (u64 i = 0; i < times; i++) sum += work(i);
            TELL("work", times);
            TELL("sum", sum);
            putchar('\n');
        } else if (strncmp(line, "leave", 5) == 0) {
            if (write(leave[1], "x", 1) != 1) abort();
        } else if (strncmp(line, "go", 2) == 0) {
            if (write(go[1], "x", 1) != 1) abort();
        }
    }
    exit(0);
    return arg;
}

static void uring(void) {
    struct io_uring_params params = {.flags = IORING_SETUP_SQPOLL, .sq_thread_idle = 600000};
    if (syscall(SYS_io_uring_setup, 8, &params) < 0) {
        printf("no io_uring: %s\n", strerror(errno));
        exit(1);
    }
}

int main(int argc, char **argv) {
    pthread_t thread;
    char byte;
    const char *kind = argc > 1 ? argv[1] : "";
    if (pipe(leave) || pipe(go)) return 1;
    if (strcmp(kind, "uring") == 0) uring();
    if (strcmp(kind, "name") == 0) prctl(PR_SET_NAME, "a na\xc3\xafve nam\xc3");
    pthread_create(&thread, NULL, serve, NULL);
    if (strcmp(kind, "leader") == 0) pthread_exit(NULL);
    if (strcmp(kind, "vfork") == 0) {
        int pid = vfork();
        if (pid == 0) {
            prctl(PR_SET_PDEATHSIG, SIGKILL);
            if (read(go[0], &byte, 1) != 1) _exit(1);
            _exit(0);
        }
        waitpid(pid, NULL, 0);
    }
    if (read(leave[0], &byte, 1) == 1) pthread_exit(NULL);
    pause();
}
