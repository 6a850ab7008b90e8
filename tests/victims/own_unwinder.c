/* Linked to an unwinder of its own. With a dynamic musl no library brings one. Calls `passes`, which ends by a
 * tail call, ten times, and ends. */
#include <stdio.h>

#define FUNC __attribute__((noipa)) unsigned long

/* The unwinder is made for glibc, which has this. */
int _dl_find_object(void *address, void *found) { return (void)address, (void)found, -1; }

FUNC callee(unsigned long n) { return n + 1; }
FUNC passes(unsigned long n) { return callee(n * 2); }

int main(void) {
    unsigned long sum = 0;
    for (unsigned long n = 0; n < 10; n++) sum += passes(n);
    printf("sum=%lu\n", sum);
    return 5;
}
