/* The protocol of all victims: a victim prints `ready`. For each line `run N` on standard input it does
 * its work N times and prints one line of `name=value` pairs: how often it called each function, and a
 * checksum that tracing must not change. `quit` or end of input ends it. */
#ifndef VICTIM_H
#define VICTIM_H
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define PROBED __attribute__((noinline, noclone, used))
#define TELL(name, value) printf("%s=%llu ", name, (unsigned long long)(value))

typedef unsigned long u64;

__attribute__((unused)) static int victim_serve(void (*run)(u64 times)) {
    char line[128];
    setvbuf(stdout, NULL, _IOLBF, 0);
    puts("ready");
    while (fgets(line, sizeof line, stdin)) {
        if (strncmp(line, "run ", 4) == 0) {
            run(strtoul(line + 4, NULL, 10));
            putchar('\n');
            fflush(stdout);
        } else if (strncmp(line, "quit", 4) == 0) {
            break;
        }
    }
    return 0;
}
#endif
