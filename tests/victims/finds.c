/* A function that leaves by a jump to dlsym, which finds its caller by the return address; with RTLD_NEXT it refuses a caller that no
 * file has. Prints how often the answer was another than the first. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>

__attribute__((noinline, noclone)) void *find_next(const char *name) { return dlsym(RTLD_NEXT, name); }

int main(void) {
    int wrong = 0;
    for (int i = 0; i < 1000; i++) wrong += find_next("puts") == NULL;
    printf("%d wrong\n", wrong);
    return wrong != 0;
}
