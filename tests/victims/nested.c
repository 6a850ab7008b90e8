/* Four functions inside each other, with frame pointers: the innermost prints where it and its callers return to. */
#include <stdio.h>

typedef struct { int count; } tally_t;
struct extra { tally_t *tally; struct { short left, right; } pair; };

__attribute__((noinline)) int innermost(struct extra *extra, unsigned char flag, void (*call)(void)) {
    void **frame = __builtin_frame_address(0);
    for (int i = 0; i < 4; i++) {
        printf("%lx\n", (unsigned long)frame[1]);
        frame = frame[0];
    }
    __asm__ volatile("" : : "r"(call), "r"((int)flag) : "memory");
    return extra->tally->count + flag + extra->pair.right;
}
__attribute__((noinline)) int third(struct extra *extra) { return innermost(extra, 200, (void (*)(void))third) + 1; }
__attribute__((noinline)) int second(struct extra *extra) { return third(extra) + 1; }
__attribute__((noinline)) int first(struct extra *extra) { return second(extra) + 1; }

int main(void) {
    tally_t tally = {77};
    struct extra extra = {&tally, {3, -4}};
    for (int turn = 0; turn < 3; turn++) {
        first(&extra);
        fflush(stdout);
    }
    return 0;
}
