/* Texts at the edges: empty, short, as long as a record holds and longer, at the end of mapped memory, and
 * at unmapped addresses. */
#include "victim.h"
#include <sys/mman.h>
#include <unistd.h>

static volatile u64 sink;

/* The caller passes the text's length where it can be read. */
PROBED u64 say(const char *text, u64 n) {
    sink += (u64)text;
    return n;
}
PROBED u64 both(u64 a, const char *first, u64 n, const char *second, u64 b, u64 c) {
    sink += (u64)first ^ (u64)second;
    return a + n * 2 + b * 3 + c * 4;
}

static char long_text[4097], exact[64], under[64], *edge;

static void run(u64 times) {
    u64 check = 0;
    for (u64 i = 0; i < times; i++) {
        check += say("", 0);
        check += say("hello, \"world\"\n", 15);
        check += say(under, 63);
        check += say(exact, 64);
        check += say(long_text, 4096);
        check += say("gr\xc3\xbc\xc3\x9f", 6);
        check += say(NULL, 1000);
        check += say((char *)1, 1001);
        check += say((char *)0x8000000000000000, 1002);
        check += say((char *)-1, 1003);
        check += say(edge - 3, 3);
        check += say(edge - 1, 1);
        check += say(edge, 1004);
        check += both(1, "one", 3, "two", 5, 6);
    }
    TELL("say", times * 13);
    TELL("both", times);
    TELL("check", check);
}

int main(void) {
    long page = sysconf(_SC_PAGESIZE);
    char *memory = mmap(NULL, 2 * page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED || munmap(memory + page, page)) return 1;
    edge = memory + page;
    memset(memory, 'e', page);
    memset(long_text, 'l', 4096);
    memset(exact, 'x', sizeof exact);
    memset(under, 'u', sizeof under - 1);
    return victim_serve(run);
}
