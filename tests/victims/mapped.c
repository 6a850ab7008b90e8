/* Maps a page at a fixed address once it runs, and writes a word there as often as its argument says. */
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>

int main(int argc, char **argv) {
    int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE;
    volatile int *page = mmap((void *)0x10000000, 4096, PROT_READ | PROT_WRITE, flags, -1, 0);
    if (page == MAP_FAILED) return 1;
    for (int i = 0; argc > 1 && i < atoi(argv[1]); i++) *page = i;
    return 0;
}
