// With an argument, a function of which a call is nearly always in flight; otherwise functions that end by a
// tail call. Runs until it is killed.
#include <stdio.h>
#include <time.h>

static volatile int sink;

__attribute__((noinline)) static int rest(int us) {
    struct timespec time = {0, us * 1000L};
    nanosleep(&time, 0);
    return us;
}

// It returns its argument, so a call that is paired wrongly shows another number.
__attribute__((noinline)) int nap(int n, int us) {
    rest(us);
    sink = n;
    return n;
}

// Compiled to a jump.
__attribute__((noinline)) int slow(int us) {
    sink = us;
    return rest(us);
}

__attribute__((noinline)) int handle(int us) {
    int r = slow(us);
    sink = r;
    return r + 1;
}

int main(int count, char **words) {
    (void)words;
    puts("ready");
    fflush(stdout);
    for (int i = 0;; i++) {
        if (count > 1) nap(i, 5000);
        else handle(3000);
    }
}
