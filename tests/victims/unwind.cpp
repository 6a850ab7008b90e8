// C++ exceptions thrown through probed frames, with destructors on the way, and rethrown.
extern "C" {
#include "victim.h"
}
#include <stdexcept>
#include <string>

static u64 destroyed;
struct Guard {
    std::string text;
    explicit Guard(u64 n) : text(std::to_string(n)) {}
    ~Guard() { destroyed += text.size(); }
};
namespace deep {
__attribute__((noinline)) u64 thrower(u64 n) {
    Guard guard(n);
    if (n == 0) throw std::runtime_error("bottom");
    u64 below = thrower(n - 1);
    __asm__ volatile("" : "+r"(below));
    return below + 1;
}
__attribute__((noinline)) u64 rethrower(u64 n) {
    try {
        return thrower(n);
    } catch (const std::exception &) {
        Guard guard(n);
        throw;
    }
}
__attribute__((noinline)) u64 catcher(u64 n) {
    try {
        return rethrower(n);
    } catch (const std::runtime_error &error) {
        return std::string(error.what()).size();
    }
}
template <typename T> struct Box {
    T value;
    __attribute__((noinline)) T twice() const { return value + value; }
};
}
static void run(u64 times) {
    u64 check = 0;
    destroyed = 0;
    for (u64 i = 0; i < times; i++) {
        check += deep::catcher(i % 10);
        check += deep::Box<u64>{i}.twice();
    }
    u64 throwers = 0;
    for (u64 i = 0; i < times; i++) throwers += i % 10 + 1;
    TELL("thrower", throwers);
    TELL("rethrower", times);
    TELL("catcher", times);
    TELL("twice", times);
    TELL("check", check + destroyed);
}
int main() { return victim_serve(run); }
