/* `tree BRANCHES PROGRAMS`: that many branches at a time start that many programs each, in three ways: this one
 * again, as `tree leaf`. Each handles SIGSEGV and calls `leaf` and `twin` three times. Branches handle SIGSEGV too,
 * again before each start. Ends with 0 if all have ended well; prints how many did. */
#include "victim.h"
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

extern char **environ;

/* Its first instruction may fault, so that moving it relies on the handlers being known. */
PROBED u64 leaf(volatile u64 *at) { return *at * 3 + 1; }
PROBED u64 twin(volatile u64 *at) { return *at * 5 + 2; }

static void handler(int signal) { _exit(100 + signal); }

static int work(void) {
    volatile u64 one = 1;
    signal(SIGSEGV, handler);
    for (int i = 0; i < 3; i++)
        if (leaf(&one) != 4 || twin(&one) != 7) return 1;
    return 0;
}

static int start(const char *self, int how) {
    char *args[] = { (char *)self, "leaf", NULL };
    pid_t child = -1;
    int status = -1;
    if (how % 3 == 0) {
        if (posix_spawn(&child, self, NULL, NULL, args, environ) != 0) return 1;
    } else {
        child = how % 3 == 1 ? fork() : vfork();
        if (child == 0) {
            execv(self, args);
            _exit(127);
        }
    }
    if (waitpid(child, &status, 0) == child && status == 0) return 0;
    fprintf(stderr, "start %d ended with %#x\n", how % 3, status);
    return 1;
}

int main(int argc, char **argv) {
    if (argc == 2 && strcmp(argv[1], "leaf") == 0) return work();
    int branches = atoi(argv[1]), programs = atoi(argv[2]), failed = 0;
    for (int i = 0; i < branches; i++) {
        pid_t branch = fork();
        if (branch < 0) perror("fork");
        if (branch != 0) continue;
        int bad = 0;
        for (int n = 0; n < programs; n++) {
            signal(SIGSEGV, n % 2 ? SIG_DFL : handler);
            bad += start("/proc/self/exe", n);
        }
        _exit(bad != 0);
    }
    for (int i = 0; i < branches; i++) {
        int status = -1;
        if (wait(&status) < 0 || status != 0) {
            fprintf(stderr, "a branch ended with %#x\n", status);
            failed++;
        }
    }
    printf("failed=%d\n", failed);
    return failed != 0;
}
