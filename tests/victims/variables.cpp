// Variables of the file: global, static, in namespaces, classes and functions, and what they point to.
extern "C" {
#include "victim.h"
}
enum class Mode { Idle, Busy = 7 };
struct Item { int id; const char *name; Item *next; };
struct Shop {
    long sold;
    Item *first;
    char place[16];
    double weight;
    Mode mode;
    short few[3];
    static unsigned opened;
};
unsigned Shop::opened = 3;
Shop shop = { 5, nullptr, "by the sea", 0.25, Mode::Idle, { -1, -2, -3 } };
static Item items[2] = { { 42, "lamp", items + 1 }, { 43, "rope", nullptr } };
namespace stock { namespace deep { signed char left = -4; } }
static unsigned short counter = 7;
const char *banner = "open";
Item *nothing;
__attribute__((noipa)) long sell(int amount);
static long spare(int amount) { return -amount; }
struct Desk { int nth; long (*action)(int); } desk = { 1, sell };

__attribute__((noipa)) long sell(int amount) {
    static unsigned long calls = 1UL << 40;
    calls += amount;
    shop.sold += amount;
    return (long)calls;
}
__attribute__((noipa)) void change(u64 nth) {
    shop.first = items + nth % 2;
    shop.weight *= -2;
    shop.mode = nth % 2 ? Mode::Busy : Mode::Idle;
    shop.few[1] = (short)(nth * 1000);
    Shop::opened += 1u << 31;
    stock::deep::left++;
    counter += 40000;
    items[1].id = -(int)nth;
    desk.action = nth % 2 ? spare : nth % 3 ? sell : nullptr;
    banner = nth % 3 ? "open" : "closed";
}
static void run(u64 times) {
    long sum = 0;
    for (u64 nth = 0; nth < times; nth++) {
        change(nth);
        sum += sell((int)nth * 3);
    }
    TELL("sum", sum);
}
int main() { return victim_serve(run); }
