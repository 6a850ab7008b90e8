// Variables at a place inside functions. Each line of input makes the calls once more.
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#ifdef __clang__
#define KEPT __attribute__((noinline))
#else
#define KEPT __attribute__((noipa))
#endif

enum kind { SMALL, LARGE = 4 };
struct item {
    int id;
    enum kind kind;
    const char *name;
    struct item *next;
    short few[3];
};
static unsigned long total;

static inline int twice(int of) {
    int doubled = of * 2;
    total += doubled; /* inlined */
    return doubled;
}

KEPT long work(struct item *list, unsigned char limit, double rate) {
    long sum = 0;
    for (struct item *at = list; at; at = at->next) {
        long weight = at->id * 3 + twice(at->id);
        double part = weight * rate;
        if (weight > limit) {
            int over = weight - limit;
            sum += over + (long)part;
        }
        printf("%ld %f\n", sum, part); /* loop */
    }
    return sum;
}

KEPT int many(int a, int b, int c, int d, int e, int f, int g, char *text) {
    char own[32];
    snprintf(own, sizeof own, "%s %d", text, a + b + c + d + e + f + g);
    puts(own); /* stack */
    return strlen(own) + g;
}

int main(void) {
    struct item last = { 7, LARGE, "cleo", 0, { 1, -2, 3 } }, next = { -2, SMALL, "bert", &last, { 4, 5, 6 } };
    struct item first = { 5, LARGE, "ann", &next, { 7, 8, -9 } };
    char line[64];
    while (fgets(line, sizeof line, stdin)) {
        line[strcspn(line, "\n")] = 0;
        first.id = atoi(line);
        long sum = work(&first, 20 + first.id, 0.5);
        printf("%ld %d\n", sum, many(1, 2, 3, 4, 5, 6, first.id, line));
        fflush(stdout);
    }
    return 0;
}
