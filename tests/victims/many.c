/* Functions with more arguments than registers hold, and copies that the compiler makes of functions for their callers.
 * Prints how often each was called, and a checksum. */
#include "victim.h"

struct big {
    long v[4];
};

static volatile u64 sink;

PROBED long nine(int a, long b, unsigned char c, short d, unsigned e, long f, signed char g, const char *text,
                 unsigned short i) {
    sink += (u64)text;
    return a + b + c + d + e + f + g + text[0] + i;
}
PROBED double reals(double a, double b, double c, double d, double e, double f, double g, double h, double i, float j,
                    long n) {
    return a + b + c + d + e + f + g + h + i * j + (double)n;
}
/* A structure lies between arguments of the stack. */
PROBED long around(long a, long b, long c, long d, long e, long f, struct big s, int last, const char *text) {
    return a + b + c + d + e + f + s.v[3] + last + text[1];
}
/* Always called with the same second argument, and without use of the third: copied, or changed. */
static __attribute__((noinline)) int copied(int n, int always, int unused, const char *text) {
    sink += (u64)n;
    return n * always + text[0];
}

static void run(u64 times) {
    u64 check = 0;
    char line[32];
    for (u64 n = 0; n < times; n++) {
        long i = (long)n;
        snprintf(line, sizeof line, "text %ld", i);
        check += (u64)nine((int)-i, i << 40, (unsigned char)(250 + i), (short)-i, (unsigned)i - 5, i, (signed char)(100 + i),
                           line, (unsigned short)(65530 + i));
        check += (u64)reals(1, 2, 3, 4, 5, 6, 7, 8, (double)i / 4, (float)i * -0.5f, i);
        check += (u64)around(1, 2, 3, 4, 5, 6, (struct big){{i, i, i, 7}}, (int)-i, line);
        check += (u64)copied((int)i, 3, (int)i + 1, line);
    }
    TELL("nine", times);
    TELL("reals", times);
    TELL("around", times);
    TELL("copied", times);
    TELL("check", check);
}

int main(void) { return victim_serve(run); }
