/* Calls functions with values that follow from one another, in threads.
 *
 *   valued THREADS ROUNDS
 *
 * In round i of thread t: product(i * 8 + t, 3); sum(i, t, 0, 0, 0, 0, -i); text("i", i); half(i); unsaid("i"). */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>

#define FUNCTION __attribute__((noinline, noclone))
#define KEEP __asm__ volatile("" ::: "memory")

static long rounds;

FUNCTION long product(long a, unsigned char b) {
    KEEP;
    return a * b;
}
FUNCTION int sum(int a, int b, int c, int d, int e, int f, int g) {
    KEEP;
    return a + b + c + d + e + f + g;
}
FUNCTION long text(const char *s, long n) {
    __asm__ volatile("" : : "r"(s) : "memory");
    return n + 1;
}
FUNCTION double half(double of, float by) {
    KEEP;
    return of * by;
}
FUNCTION void unsaid(const char *s) {
    __asm__ volatile("" : : "r"(s) : "memory");
    product(1, 2);
}
static void *run(void *nth) {
    long t = (long)nth, all = 0;
    char digits[32];
    for (long i = 0; i < rounds; i++) {
        all += product(i * 8 + t, 3) + sum((int)i, (int)t, 0, 0, 0, 0, (int)-i);
        snprintf(digits, sizeof digits, "%ld", i);
        all += text(digits, i) + (long)half((double)i, 0.5F);
        unsaid(digits);
    }
    return (void *)all;
}
int main(int argc, char **argv) {
    long threads = argc > 2 ? atol(argv[1]) : 1;
    rounds = argc > 2 ? atol(argv[2]) : 10;
    pthread_t all[64];
    long sum_of_all = 0;
    for (long nth = 0; nth < threads && nth < 64; nth++) {
        pthread_create(&all[nth], NULL, run, (void *)nth);
    }
    for (long nth = 0; nth < threads && nth < 64; nth++) {
        void *some;
        pthread_join(all[nth], &some);
        sum_of_all += (long)some;
    }
    printf("%ld\n", sum_of_all);
    return 0;
}
