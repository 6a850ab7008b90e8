#include "victim.h"

void just_ret(void);
u64 three_bytes(void);
int four_bytes(u64);
void padded_ret(void);
u64 padded_four(u64);
int branch_back(u64);
int own_loop(u64);
int endbr_loop(u64);
u64 call_first(void);
int loop_first(u64, u64, u64, u64);

/* The address that call_first's own call pushes lies inside call_first, patched or not. */
static u64 returns_inside(void) {
    u64 at = call_first() - (u64)call_first;
    return at == 5;
}
static void run(u64 times) {
    u64 check = 0;
    for (u64 i = 0; i < times; i++) {
        just_ret();
        check += three_bytes();
        check += (u64)four_bytes(i);
        padded_ret();
        check += padded_four(i);
        check += (u64)branch_back(i % 4 + 1);
        check += (u64)own_loop(i % 3 + 1);
        check += (u64)endbr_loop(i % 3 + 1);
        check += returns_inside();
        check += (u64)loop_first(0, 0, 0, i % 3);
    }
    u64 loops = 0, heads = 0;
    for (u64 i = 0; i < times; i++) {
        loops += i % 3 + 1;
        heads += i % 3 == 0 ? 1 : i % 3;
    }
    TELL("just_ret", times);
    TELL("three_bytes", times);
    TELL("four_bytes", times);
    TELL("padded_ret", times);
    TELL("padded_four", times);
    TELL("branch_back", times);
    TELL("own_loop", loops);
    TELL("endbr_loop", times);
    TELL("call_first", times);
    TELL("caller_address", times);
    TELL("loop_first", heads);
    TELL("check", check);
}
int main(void) { return victim_serve(run); }
