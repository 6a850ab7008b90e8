/* Structures behind pointers: prints what a tracer should find, one line for each call of `look`. */
#define _GNU_SOURCE
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum color { RED, GREEN = 5, BLUE };

struct inner {
    uint16_t code;
    const char *name;
    int32_t grid[2][3];
};

struct node {
    int64_t id;
    struct node *next;
    struct inner in;
    char tag[8];
    uint8_t bytes[100];
    unsigned low : 3, high : 5;
    enum color color;
    struct inner *far;
};

__attribute__((noinline)) int look(struct node *node, const char *text, int index, int32_t *numbers, struct node **link) {
    printf("%ld %ld %u %s %d %d %.8s %u %u %s %d %ld %d\n", (long)node->id, (long)node->next->next->id, node->in.code,
           node->next->in.name, node->in.grid[1][2], node->bytes[99], node->tag, node->low, node->high, text,
           numbers[index], (long)(*link)->id, node->far->grid[0][1]);
    return index;
}

/* Its seventh argument and those behind it are on the stack, or in further registers. */
__attribute__((noinline)) long many(long a, long b, long c, long d, long e, long f, long g, const char *h, struct node *i) {
    printf("%ld %s %ld\n", g, h, (long)i->id);
    return a + b + c + d + e + f + g;
}

/* The second page cannot be read. */
__attribute__((noinline)) int edge(char *end, struct node *none) {
    __asm__ volatile("" : : "r"(end), "r"(none) : "memory");
    return end != 0 && none == 0;
}

__attribute__((noinline)) struct node *give(struct node *node) {
    __asm__ volatile("" : "+r"(node) : : "memory");
    return node;
}

int main(void) {
    long page = sysconf(_SC_PAGESIZE);
    char *pages = mmap(0, 2 * page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    mprotect(pages + page, page, PROT_NONE);
    memcpy(pages + page - 6, "brink", 6);
    int32_t numbers[4] = {10, -20, 30, -40};
    struct inner far = {7, "afar", {{1, 2, 3}, {4, 5, 6}}};
    struct node nodes[3];
    memset(nodes, 0, sizeof nodes);
    for (int turn = 0; turn < 3; turn++) {
        const char *names[] = {"zero", "one", "two"};
        for (int i = 0; i < 3; i++) {
            struct node *node = &nodes[i];
            node->id = 100 * turn + i;
            node->next = &nodes[(i + 1) % 3];
            node->in.code = 60000 + i;
            node->in.name = names[(turn + i) % 3];
            node->in.grid[1][2] = -turn - i;
            strncpy(node->tag, i == 1 ? "one" : "12345678", sizeof node->tag);
            node->bytes[99] = 200 + i;
            node->low = 5;
            node->high = 17 + turn;
            node->color = BLUE;
            node->far = &far;
        }
        struct node *link = &nodes[2];
        look(&nodes[0], names[turn], turn, numbers, &link);
        many(1, 2, 3, 4, 5, 6, 70 + turn, names[turn], &nodes[turn]);
        struct node *none = 0;
        __asm__ volatile("" : "+r"(none));
        edge(pages + page - 6, none);
        give(&nodes[turn]);
        fflush(stdout);
    }
    return 0;
}
