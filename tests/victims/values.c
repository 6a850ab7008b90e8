/* Arguments and values of every class that registers hold, at the edges of their types, with debug information. */
#include "victim.h"
#include <float.h>
#include <math.h>
#include <stdbool.h>

enum mode { MODE_OFF = -1, MODE_FAST, MODE_SAFE = 7 };

struct inner {
    short level;
    char tag[12];
};
struct request {
    unsigned flags;
    int len;
    const char *name;
    double weight;
    struct request *next;
    enum mode mode;
    float share;
    struct inner in;
    bool urgent;
    unsigned bits : 3;
    union {
        u64 whole;
        signed char part;
    };
    long table[4];
};

/* Two in one register, one that no register holds, and one of both classes. */
struct pair {
    int a, b;
};
struct big {
    long v[4];
};
struct mixed {
    double d;
    long n;
};

static volatile u64 sink;

/* The copies in memory are for an oracle that reads no vector registers. */
PROBED double scale(double x, const double *x_there, float s, int n, const float *s_there) {
    sink += (u64)x_there ^ (u64)s_there ^ (u64)n;
    return s == 0 ? x : -x;
}
PROBED float single(float s, double x) {
    sink += x > 0;
    return -s;
}
PROBED double eight(double a, double b, double c, double d, double e, double f, double g, double h) {
    return a + b + c + d + e + f + g + h;
}
PROBED int handle(struct request *req, enum mode mode, bool urgent, float share, signed char small,
                  unsigned short port, const char *why) {
    sink += (u64)req ^ (u64)why ^ port;
    return urgent ? small : mode + (share > 0);
}
PROBED long sums(struct pair p, long n, struct mixed m, struct big b, double x) {
    return p.a + p.b + n + m.n + b.v[3] + (m.d > x);
}
PROBED struct big made(long n) {
    sink += n;
    return (struct big){{n, n + 1, n + 2, n + 3}};
}
PROBED enum mode next_mode(enum mode mode) {
    sink++;
    return mode == MODE_OFF ? MODE_FAST : mode == MODE_FAST ? MODE_SAFE : (enum mode)(mode + 1);
}

static const double doubles[] = {0.0, -0.0, 1.5, -2.25, 0.1, DBL_MAX, -DBL_MIN, 5e-324, INFINITY, -INFINITY, NAN, -NAN};
static const float floats[] = {0.0f, -0.0f, 1.5f, -2.25f, 0.1f, FLT_MAX, -FLT_MIN, 1e-45f, INFINITY, -INFINITY, NAN, -NAN};
#define EDGES (sizeof doubles / sizeof *doubles)

static struct request second = {.flags = 4, .len = -3, .name = "second", .weight = -0.5, .mode = MODE_SAFE};
static struct request first = {.flags = 3, .len = 70000, .name = "first", .weight = 2.5, .next = &second,
                               .mode = MODE_OFF, .share = 0.25f, .in = {.level = -9, .tag = "inside"},
                               .urgent = true, .bits = 5, .whole = 0xfe, .table = {1, -2, 3, 4}};

static void run(u64 times) {
    u64 check = 0;
    for (u64 i = 0; i < times; i++) {
        for (size_t n = 0; n < EDGES; n++) {
            check += signbit(scale(doubles[n], &doubles[n], floats[n], (int)n - 3, &floats[n])) != 0;
            check += signbit(single(floats[n], doubles[n])) != 0;
        }
        check += (u64)eight(1, 2, 3, 4, 5, 6, 7, 8.5);
        check += handle(&first, MODE_FAST, true, 0.5f, -128, 65535, "because");
        check += handle(&second, MODE_SAFE, false, -0.0f, 127, 1, "");
        check += handle(NULL, MODE_OFF, false, 1e10f, 0, 0, NULL);
        check += sums((struct pair){1, -2}, -(1L << 40), (struct mixed){0.5, 7}, (struct big){{1, 2, 3, 4}}, -1.5);
        check += made(-5).v[2];
        check += next_mode(MODE_OFF) + next_mode(MODE_FAST) + next_mode(MODE_SAFE);
    }
    TELL("scale", times * EDGES);
    TELL("single", times * EDGES);
    TELL("eight", times);
    TELL("handle", times * 3);
    TELL("sums", times);
    TELL("made", times);
    TELL("next_mode", times * 3);
    TELL("check", check);
}

int main(void) { return victim_serve(run); }
