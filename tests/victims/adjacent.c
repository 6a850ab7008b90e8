/* Two USDT probes one byte apart. Their operands are registers that the program itself overwrites next: for it they are
   dead, for whoever traces the probes they are not. */
#include <stdio.h>

#define NOTE(PLACE, NAME, OPERAND)                                                                                     \
    ".pushsection .note.stapsdt,\"?\",\"note\"\n.balign 4\n.4byte 992f-991f,994f-993f,3\n"                             \
    "991: .asciz \"stapsdt\"\n992: .balign 4\n993: .8byte " PLACE "\n.8byte _.stapsdt.base\n.8byte 0\n"                \
    ".asciz \"adjacent\"\n.asciz \"" NAME "\"\n.asciz \"" OPERAND "\"\n994: .balign 4\n.popsection\n"

__attribute__((noinline)) long marked(long x) {
    __asm__ volatile("lea 1000(%%rdi), %%rax\n"
                     "990: nop\n nop\n" NOTE("990b", "first", "8@%%rdi") NOTE("990b+1", "second", "8@%%rax 8@%%rdi")
                     ".ifndef _.stapsdt.base\n.pushsection .stapsdt.base,\"aG\",\"progbits\",.stapsdt.base,comdat\n"
                     ".weak _.stapsdt.base\n_.stapsdt.base: .space 1\n.size _.stapsdt.base,1\n.popsection\n.endif\n"
                     "mov $5, %%edi\n xor %%eax, %%eax\n mov $1, %%edx\n mov $2, %%esi\n" ::
                         : "rdi", "rax", "rdx", "rsi");
    return 5;
}

int main(void) {
    long sum = 0;
    for (long i = 0; i < 3; i++) sum += marked(100 + i);
    printf("%ld\n", sum);
    return 0;
}
