/* Functions of the common shapes, called a known number of times: leaf, frame, recursion, tail call, loop with a back
 * edge near the entry, early exits, many arguments, indirect calls, a switch with a jump table. */
#include "victim.h"

static volatile u64 sink;

PROBED u64 leaf(u64 x) { return x * 3 + 1; }
PROBED u64 framed(u64 x) {
    volatile char room[64];
    room[x % 64] = (char)x;
    return leaf(x) + (u64)room[x % 64];
}
PROBED u64 factorial(u64 n) {
    if (n < 2) return 1;
    u64 below = factorial(n - 1);
    /* Keeps the compiler from turning the recursion into a loop. */
    __asm__ volatile("" : "+r"(below));
    return n * below;
}
PROBED u64 tail_caller(u64 x) { return leaf(x + 1); }
PROBED u64 looper(u64 n) {
    u64 sum = 0;
    do {
        sum += n * n;
        __asm__ volatile("" : "+r"(sum));
    } while (n-- > 1);
    return sum;
}
PROBED u64 early(u64 x) {
    if (x % 2 == 0) return 7;
    if (x % 3 == 0) return leaf(x);
    sink += x;
    return x ^ sink;
}
PROBED u64 many_args(u64 a, u64 b, u64 c, u64 d, u64 e, u64 f, u64 g, u64 h, double p, double q) {
    return a + b * 2 + c * 3 + d * 4 + e * 5 + f * 6 + g * 7 + h * 8 + (u64)(p * q);
}
PROBED u64 switcher(u64 x) {
    switch (x % 9) {
    case 0: return leaf(x);
    case 1: return x + 10;
    case 2: return x * 11;
    case 3: return x ^ 12;
    case 4: return x - 13;
    case 5: return x << 2;
    case 6: return x | 77;
    case 7: return x & 0xff0f;
    default: return factorial(3);
    }
}
PROBED u64 never_called(u64 x) { return x + 42; }

static u64 (*volatile pointers[2])(u64) = {leaf, framed};

static void run(u64 times) {
    u64 check = 0, leaves = 0, factorials = 0;
    sink = 0;
    for (u64 i = 0; i < times; i++) {
        check += framed(i), leaves++;
        check += factorial(5), factorials += 5;
        check += tail_caller(i), leaves++;
        check += looper(4);
        check += early(i), leaves += i % 2 != 0 && i % 3 == 0;
        check += many_args(i, 2, 3, 4, 5, 6, 7, 8, 1.5, (double)(i % 100));
        check += switcher(i), leaves += i % 9 == 0, factorials += i % 9 == 8 ? 3 : 0;
        check += pointers[i % 2](i), leaves++;
    }
    TELL("leaf", leaves);
    TELL("framed", times + times / 2);
    TELL("factorial", factorials);
    TELL("tail_caller", times);
    TELL("looper", times);
    TELL("early", times);
    TELL("many_args", times);
    TELL("switcher", times);
    TELL("never_called", 0);
    TELL("check", check);
}

int main(void) { return victim_serve(run); }
