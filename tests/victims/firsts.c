/* Functions with different first instructions, for tools that put a breakpoint on it. Each returns its
 * argument plus one, counts itself, and holds no value that a call must preserve. `NAME N` calls one N
 * times; `bytes NAME` shows the first eight bytes. */
#include "victim.h"
#include <stdint.h>

/* A function that begins with `first`, and undoes it at the end with `last`. */
#define F(name, first, last)                                                                                      \
    static u64 did_##name __attribute__((used));                                                                  \
    PROBED __attribute__((naked, aligned(32))) int name(int x) {                                                  \
        __asm__(first "\n lock incq did_" #name "(%rip)\n lea 1(%rdi), %eax\n" last "\n ret\n nop\n nop");        \
    }

F(f_push, "push %rbp\n mov %rsp, %rbp", "pop %rbp")
F(f_endbr, "endbr64", "")
F(f_sub, "sub $0x18, %rsp", "add $0x18, %rsp")
F(f_r15, "push %r15\n mov %rdi, %r15", "pop %r15")
F(f_movee, "mov %edi, %eax", "")
F(f_xor, "xor %eax, %eax", "")
F(f_cmp, "cmp $5, %edi", "")
F(f_movzx, "movzbl %dil, %eax", "")
/* Probed at the first instruction, since the stack pointer behind it is not taken for known. */
F(h_lea, "lea -0x18(%rsp), %rsp", "add $0x18, %rsp")
F(h_pop, "pop %r11\n push %r11", "")

#define EACH(DO) DO(f_push) DO(f_endbr) DO(f_sub) DO(f_r15) DO(f_movee) DO(f_xor) DO(f_cmp) DO(f_movzx) DO(h_lea) DO(h_pop)

struct one {
    const char *name;
    int (*call)(int);
    u64 *did;
};
#define ENTRY(name) {#name, name, &did_##name},
static const struct one all[] = {EACH(ENTRY)};

int main(void) {
    char line[128], name[64];
    u64 times;
    setvbuf(stdout, NULL, _IOLBF, 0);
    puts("ready");
    while (fgets(line, sizeof line, stdin)) {
        int bytes = sscanf(line, "bytes %63s", name) == 1;
        if (!bytes && sscanf(line, "%63s %lu", name, &times) != 2) break;
        for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
            if (strcmp(all[i].name, name)) continue;
            if (bytes) {
                for (int n = 0; n < 8; n++) printf("%02x", ((const volatile uint8_t *)(uintptr_t)all[i].call)[n]);
                putchar('\n');
                continue;
            }
            u64 wrong = 0, before = *all[i].did;
            for (u64 n = 0; n < times; n++) wrong += all[i].call((int)n & 0xffff) != ((int)n & 0xffff) + 1;
            printf("did=%lu wrong=%lu\n", *all[i].did - before, wrong);
        }
    }
    return 0;
}
