// Strings, vectors, bit-fields and structures behind pointers and references, of many lengths.
#include <string>
#include <string_view>
#include <vector>
extern "C" {
#include "victim.h"
}
struct Point {
    short x;
    int y;
};
enum Kind { NONE, SOME = 5 };
struct Order {
    std::string name;
    std::string_view kind;
    const std::string *note;
    unsigned small : 3;
    int below : 5;
    unsigned long long wide : 40;
    Kind named : 4;
    std::vector<int> numbers;
    std::vector<Point> points;
    Point at[3];
    char code[6];
};
/* The second field goes beyond its integer. */
struct __attribute__((packed)) Packed {
    unsigned first : 20, second : 20;
    int third : 24;
};
struct Large {
    Packed packed;
    long all[20];
    Point last;
    double half;
};
PROBED int by_reference(const std::string &name, std::string &&moved, const std::vector<double> &all, int n) {
    asm volatile("" : : "r"(&name), "r"(&moved), "r"(&all) : "memory");
    return n + (int)name.size();
}
PROBED int by_value(std::string name, std::string_view view, std::vector<short> all, int n) {
    asm volatile("nop" : : "r"(&name), "r"(view.data()), "r"(view.size()), "r"(&all) : "memory");
    return n + (int)name.size() + (int)view.size();
}
PROBED int order(Order *of, const Point &point, Large *large, int n) {
    asm volatile("" : : "r"(of), "r"(&point), "r"(large) : "memory");
    return n + of->below;
}
static void run(u64 times) {
    const std::string longer(100, 'x'), empty;
    for (u64 i = 0; i < times; i++) {
        const int n = (int)i;
        Order one{i == 2 ? empty : "order " + std::to_string(i), "a kind", i == 1 ? &empty : &longer, i % 8, -n % 16, 1ull << (30 + i % 9), i % 2 ? SOME : NONE, {}, {}, {{1, 2}, {3, 4}, {-5, n}}, "abc"};
        for (int k = 0; k < n * 7; k++) one.numbers.push_back(k * n);
        for (int k = 0; k < n; k++) one.points.push_back({(short)-k, k * 1000});
        Large large{};
        for (int k = 0; k < 20; k++) large.all[k] = k * n - 1;
        large.last = {(short)n, -n};
        large.half = n / 2.0;
        large.packed.first = 0xabcde - i;
        large.packed.second = 0xfedcb - i;
        large.packed.third = -1000 * n;
        by_reference(i % 2 ? longer : one.name, std::string("moved ") + one.name, std::vector<double>(i * 5, n / 4.0), n);
        by_value("value " + std::to_string(i), std::string_view("a view of it").substr(0, i % 12), std::vector<short>(i, (short)-n), n);
        order(&one, large.last, &large, n);
    }
    TELL("order", times);
    TELL("by_reference", times);
    TELL("by_value", times);
}
int main() { return victim_serve(run); }
