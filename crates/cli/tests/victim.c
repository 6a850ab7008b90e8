/* Calls its functions as often as each line of standard input says, and prints how often it called each. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#define OWN __attribute__((noinline, noipa))

static long plain_calls, nested_calls, marked;
volatile unsigned short sample_semaphore __attribute__((section(".probes"), used));

OWN int plain(int x) {
    plain_calls++;
    return x * 3 + 1;
}
OWN int nested(int x) {
    nested_calls++;
    return plain(x) + plain(x + 1);
}
OWN int recursive(int depth) {
    if (depth == 0) return 1;
    int rest = recursive(depth - 1);
    __asm__ volatile("" ::: "memory"); /* or it becomes a loop */
    return rest + depth;
}
OWN void mark(void) {
    if (sample_semaphore) marked++;
    /* A USDT probe, sample:tick, as sys/sdt.h would write it. */
    __asm__ volatile(
        "990: nop\n"
        ".pushsection .note.stapsdt,\"?\",\"note\"\n"
        ".balign 4\n"
        ".4byte 992f-991f, 994f-993f, 3\n"
        "991: .asciz \"stapsdt\"\n"
        "992: .balign 4\n"
        "993: .8byte 990b\n"
        ".8byte _.stapsdt.base\n"
        ".8byte sample_semaphore\n"
        ".asciz \"sample\"\n"
        ".asciz \"tick\"\n"
        ".asciz \"\"\n"
        "994: .balign 4\n"
        ".popsection\n"
        ".ifndef _.stapsdt.base\n"
        ".pushsection .stapsdt.base,\"aG\",\"progbits\",.stapsdt.base,comdat\n"
        ".weak _.stapsdt.base\n"
        ".hidden _.stapsdt.base\n"
        "_.stapsdt.base: .space 1\n"
        ".size _.stapsdt.base, 1\n"
        ".popsection\n"
        ".endif\n");
}

int main(int argc, char **argv) {
    char line[64];
    volatile int sink = 0;
    if (argc > 1) {
        int rounds = atoi(argv[1]);
        for (int i = 0; i < rounds; i++) sink += plain(i);
        if (argc > 2 && strcmp(argv[2], "kill") == 0) raise(15);
        return argc > 2 ? atoi(argv[2]) : 0;
    }
    setvbuf(stdout, NULL, _IONBF, 0);
    printf("ready\n");
    while (fgets(line, sizeof line, stdin)) {
        long rounds = atol(line);
        plain_calls = nested_calls = marked = 0;
        for (long i = 0; i < rounds; i++) {
            sink += nested((int)i);
            if (i % 10 == 0) sink += recursive(4);
            mark();
        }
        printf("%ld %ld %ld\n", plain_calls, nested_calls, marked);
    }
    return 0;
}
