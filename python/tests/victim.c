/* A program that counts its own calls: each line of standard input is a number of rounds; the answer is a line of its
 * counts. With a number as an argument it runs so many rounds and ends. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define OWN __attribute__((noinline, noipa))

static long priced, stored;

OWN long price(long item, const char *name) {
    priced++;
    return item % 10 == 3 ? -1 : item * 2 + (long)strlen(name);
}
OWN double half(double x, float y) { return x / 2 + y; }
/* Its name would be a type's, if it were mangled. */
OWN long d(long item) { return item + 1; }
OWN void store(long item) {
    volatile long spun = 0;
    spun += d(item);
    for (long i = 0; i < 200 + item % 7 * 100; i++) spun += i;
    stored++;
}
OWN void handle(long item) {
    static const char *names[] = {"apple", "pear", "quince"};
    price(item, names[item % 3]);
    half(item, 0.25f);
    store(item);
    __asm__ volatile(""); /* so that the call is no jump */
}
static void rounds(long many) {
    for (long item = 0; item < many; item++) handle(item);
}
int main(int argc, char **argv) {
    if (argc > 1) {
        rounds(atol(argv[1]));
        return 0;
    }
    char line[32];
    printf("ready\n");
    fflush(stdout);
    while (fgets(line, sizeof line, stdin)) {
        rounds(atol(line));
        printf("%ld %ld\n", priced, stored);
        fflush(stdout);
    }
    return 0;
}
