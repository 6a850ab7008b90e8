/* A function that ends by a jump to dlsym, which finds its caller by the return address. With RTLD_NEXT
 * dlsym refuses a caller that lies in no file. Prints how often the answer differed from the first one. */
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
