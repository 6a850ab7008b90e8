// Loads the two libraries that its arguments name, and calls the function of the same name in each.
#include "victim.h"
#include <dlfcn.h>

static long (*put_text)(const char *, long);
static double (*put_double)(double, int);
static volatile double sink;

static void run(u64 times) {
    for (u64 i = 0; i < times; i++) {
        sink = put_text("alice", 7);
        sink = put_double(2.5, 2);
    }
    TELL("put", times);
}

int main(int count, char **words) {
    if (count < 3) return 2;
    void *first = dlopen(words[1], RTLD_NOW | RTLD_LOCAL), *second = dlopen(words[2], RTLD_NOW | RTLD_LOCAL);
    if (!first || !second) return 3;
    put_text = (long (*)(const char *, long))dlsym(first, "put");
    put_double = (double (*)(double, int))dlsym(second, "put");
    return victim_serve(run);
}
