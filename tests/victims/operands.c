/* USDT probes with an argument of every form that a compiler may choose: registers and parts of them, the stack, tables,
 * variables, numbers, floats; up to twelve of them. Prints how often each was passed, and a checksum. */
#include "marks.h"
#include "victim.h"

signed char small = -3;
unsigned short port = 40000;
int counter;
u64 whole;
double share = 0.25;
int table[16];
static char line[300];

PROBED static int widths(signed char a, unsigned char b, short c, unsigned short d, int e, unsigned f) {
    MARK("operands", "widths", I(0) I(1) I(2) I(3) I(4) I(5), MARK_INT(0, a), MARK_INT(1, b), MARK_INT(2, c),
         MARK_INT(3, d), MARK_INT(4, e), MARK_INT(5, f));
    return a + b + c + d + e + (int)f;
}
PROBED static u64 statics(void) {
    MARK("operands", "statics", I(0) I(1) I(2) I(3), MARK_INT(0, small), MARK_INT(1, port), MARK_INT(2, counter),
         MARK_INT(3, whole));
    return whole;
}
PROBED static long tables(const int *from, u64 nth, long add) {
    MARK("operands", "tables", I(0) I(1) I(2), MARK_INT(0, from[nth]), MARK_INT(1, from[nth + 2]), MARK_INT(2, add));
    return from[nth] + add;
}
PROBED static double floats(float x, double y, long n) {
    MARK("operands", "floats", F(0) F(1) F(2) I(3), MARK_REAL(0, x), MARK_REAL(1, y), MARK_REAL(2, share),
         MARK_INT(3, n));
    return x + y + (double)n;
}
PROBED static int texts(const char *text, u64 len, const char *other) {
    MARK("operands", "texts", I(0) I(1) I(2), MARK_INT(0, text), MARK_INT(1, len), MARK_INT(2, other));
    return text[0] + other[0] + (int)len;
}
PROBED static long twelve(long a, long b, long c, long d, long e, long f, int g, short h) {
    long i = a * 2, j = b * 3;
    MARK("operands", "twelve", I(0) I(1) I(2) I(3) I(4) I(5) I(6) I(7) I(8) I(9) I(10) I(11), MARK_INT(0, a),
         MARK_INT(1, b), MARK_INT(2, c), MARK_INT(3, d), MARK_INT(4, e), MARK_INT(5, f), MARK_INT(6, g), MARK_INT(7, h),
         MARK_INT(8, i), MARK_INT(9, j), MARK_INT(10, -12L), MARK_INT(11, counter));
    return a + b + c + d + e + f + g + h + i + j;
}
/* One probe at two places, with operands of different kinds and widths. */
PROBED static int both(int n, long wide) {
    if (n & 1)
        MARK("operands", "both", I(0) I(1), MARK_INT(0, n), MARK_INT(1, wide));
    else
        MARK("operands", "both", I(0) I(1), MARK_INT(0, wide), MARK_INT(1, counter));
    return n + (int)wide;
}
/* Uses its red zone on x86-64: it calls nothing. */
PROBED static long leaf(long n) {
    volatile long own[12];
    for (int i = 0; i < 12; i++) own[i] = n + i;
    MARK("operands", "leaf", I(0) I(1), MARK_INT(0, own[3]), MARK_INT(1, n));
    long sum = 0;
    for (int i = 0; i < 12; i++) sum += own[i];
    return sum;
}

static void run(u64 times) {
    u64 check = 0;
    for (u64 n = 0; n < times; n++) {
        long i = (long)n;
        counter = (int)(i * 7 - 20);
        whole = n << 40 | n;
        small = (signed char)(i - 5);
        for (int k = 0; k < 16; k++) table[k] = (int)(i * 100 + k) * (k & 1 ? -1 : 1);
        snprintf(line, sizeof line, "line %ld of many", i);
        check += (u64)widths((signed char)(i - 9), (unsigned char)(250 + i), (short)(-300 * i), (unsigned short)(65000 + i),
                             (int)(-i), (unsigned)i - 3);
        check += statics();
        check += (u64)tables(table, n & 7, -i);
        check += (u64)floats((float)i * 0.5f - 1, (double)i / 3, i);
        check += (u64)texts(line, n & 7, n & 1 ? "odd" : "even");
        check += (u64)twelve(i, -i, i * i, 4, 5, 6 - i, (int)i - 70, (short)-i);
        check += (u64)both((int)i - 4, i << 33);
        check += (u64)leaf(i * 1000);
    }
    TELL("passed", times);
    TELL("check", check);
}

int main(void) { return victim_serve(run); }
