/* Machine state around a hit, bit for bit: each `state_X` against its unprobed twin `bare_X`, on random states. */
#include "victim.h"
#include <errno.h>

struct state {
    u64 general[15], flags, unused[16], masks[8], vectors[32][8];
};
extern int wide;
void call_with_state(void (*target)(void), const struct state *in, struct state *out);

#define SHAPES(X) X(nops) X(push) X(endbr) X(sub) X(lea) X(riprel) X(redzone) X(spill) X(redloop) X(flags) X(branch) X(vector) X(short) X(call)
#define DECLARE(name) void state_##name(void); void bare_##name(void);
#define ROW(name) {#name, state_##name, bare_##name},
SHAPES(DECLARE)
static const struct {
    const char *name;
    void (*probed)(void), (*bare)(void);
} shapes[] = {SHAPES(ROW)};

static u64 seed = 0x9e3779b97f4a7c15;
static u64 next(void) {
    seed ^= seed << 13, seed ^= seed >> 7, seed ^= seed << 17;
    return seed;
}
static void fill(struct state *state) {
    u64 *words = (u64 *)state;
    for (size_t i = 0; i < sizeof *state / 8; i++) words[i] = next();
    /* Carry, parity, adjust, zero, sign, overflow; and the bits that are always so. */
    state->flags = (next() & 0x8d5) | 0x202;
    /* rcx: redloop's mark must not be set yet. */
    state->general[1] &= ~0ul >> 1;
}
static void run(u64 times) {
    u64 wrong = 0, checked = 0;
    static struct state in, with, without;
    for (u64 i = 0; i < times; i++)
        for (size_t s = 0; s < sizeof shapes / sizeof *shapes; s++) {
            fill(&in);
            memset(&with, 0, sizeof with);
            memset(&without, 0, sizeof without);
            errno = 1234;
            call_with_state(shapes[s].bare, &in, &without);
            call_with_state(shapes[s].probed, &in, &with);
            checked++;
            if (errno != 1234 || memcmp(&with, &without, sizeof with) != 0) {
                if (!wrong++)
                    for (size_t w = 0; w < sizeof with / 8; w++)
                        if (((u64 *)&with)[w] != ((u64 *)&without)[w])
                            fprintf(stderr, "%s: word %zu is %#lx, without probe %#lx\n", shapes[s].name, w,
                                    ((u64 *)&with)[w], ((u64 *)&without)[w]);
            }
        }
    for (size_t s = 0; s < sizeof shapes / sizeof *shapes; s++) 
        printf("state_%s=%lu ", shapes[s].name, strcmp(shapes[s].name, "redloop") ? times : 2 * times);
    TELL("wrong", wrong);
    TELL("checked", checked);
    TELL("wide", wide);
}
int main(void) {
    __builtin_cpu_init();
    wide = __builtin_cpu_supports("avx512bw") ? 2 : __builtin_cpu_supports("avx") ? 1 : 0;
    return victim_serve(run);
}
