/* Structures, unions and wide integers by value: in one register, in two of either kind, on the stack. */
#include "victim.h"

struct pair { int a, b; };
struct mixed { double d; long n; };
struct floats { float x, y; };
struct three { float x, y, z; };
struct big { long v[4]; char name[8]; };
struct bits { unsigned a : 3, b : 29; int c : 5, d : 27; };
union either { unsigned long n; unsigned half[2]; };
enum state { OFF, ON = 7 };
struct inner { struct pair p; enum state e; unsigned short last; };
struct one { long n; };
struct longs { long first, second; };
struct ints { int a, b, c; };
struct letter { char c; long n; };
struct longs_float { long n; float f; };
struct unnamed { short tag; struct { short low, high; }; };

static volatile u64 sink;

PROBED u64 pairs(struct pair a, int b, struct mixed c, struct floats d, double e) {
    return sink += (u64)(a.a + a.b + b + c.n) + (u64)c.d + (u64)d.x + (u64)d.y + (u64)e;
}
PROBED u64 threes(struct three t, struct bits b, union either u, int n, struct unnamed m) {
    return sink += (u64)t.x + (u64)t.y + (u64)t.z + b.a + b.b + (u64)(b.c + b.d) + u.n + (u64)n + (u64)(m.tag + m.low + m.high);
}
PROBED u64 bigs(struct big a, int b, struct big c) {
    return sink += (u64)(a.v[0] + a.v[3] + b + c.v[1]) + (u64)a.name[0] + (u64)c.name[7];
}
PROBED u64 wides(__int128 a, unsigned __int128 b, int c) {
    return sink += (u64)(a >> 3) + (u64)(a >> 70) + (u64)b + (u64)(b >> 64) + (u64)c;
}
PROBED u64 behind(long a, long b, long c, long d, long e, struct mixed f, struct inner g, int h, struct one o) {
    return sink += (u64)(a + b + c + d + e + f.n + g.p.a + g.p.b + g.e + g.last + h + o.n) + (u64)f.d;
}
PROBED struct pair one_register(int n) { return (struct pair){ n, -n }; }
PROBED struct floats one_vector(int n) { return (struct floats){ (float)n, (float)-n / 2 }; }

/* These are returned in several registers. */
PROBED struct longs two_registers(int n) { return (struct longs){ n, -n }; }
PROBED struct mixed vector_first(int n) { return (struct mixed){ n * 0.5, n }; }
PROBED struct ints three_ints(int n) { return (struct ints){ n, -n, n * 2 }; }
PROBED struct letter letter_first(int n) { return (struct letter){ (char)('a' + n), n }; }
PROBED struct three three_floats(int n) { return (struct three){ (float)n, (float)-n, (float)n / 2 }; }

PROBED struct longs_float longs_float(int n) { return (struct longs_float){ n, (float)n / 4 }; }
PROBED __int128 wide_result(int n) { return -(__int128)n << 70; }

static void run(u64 times) {
    u64 sum = 0;
    for (u64 n = 0; n < times; n++) {
        int i = (int)n + 1;
        pairs((struct pair){ i, -i }, i * 2, (struct mixed){ i * 0.25, -i }, (struct floats){ (float)i * 1.5F, (float)-i }, i * 3.5);
        threes((struct three){ (float)i, (float)i * 2, (float)i / 2 }, (struct bits){ (unsigned)i % 8, (unsigned)i * 100, -i % 16, i * 5 },
               (union either){ .half = { (unsigned)i * 77, (unsigned)i } }, i, (struct unnamed){ .tag = (short)i, .low = -3, .high = (short)-i });
        bigs((struct big){ { i, 2, -3, i * 4 }, "abc" }, i, (struct big){ { 5, 6, 7, -i }, "seven77" });
        wides(-(__int128)i << 70, (unsigned __int128)i << 100 | 5, i);
        behind(1, 2, 3, 4, 5, (struct mixed){ i * 0.5, i }, (struct inner){ { i, i + 1 }, i % 2 ? ON : OFF, 200 }, i, (struct one){ -i });
        sum += (u64)one_register(i).a + (u64)one_vector(i).x + (u64)two_registers(i).second + (u64)vector_first(i).n;
        sum += (u64)three_ints(i).c + (u64)letter_first(i).n + (u64)three_floats(i).z;
        sum += (u64)longs_float(i).n + (u64)(wide_result(i) >> 64);
    }
    TELL("calls", times);
    TELL("checksum", sum + sink);
}
int main(void) { return victim_serve(run); }
