// A program that does all its work in a signal handler, and has an unwinder. No thread is fit for a call that
// allocates.
extern "C" {
#include "victim.h"
}
#include <signal.h>
#include <stdexcept>
#define FUNC extern "C" __attribute__((noipa)) u64

FUNC worker(u64 n) {
    if (n == ~0ul) throw std::runtime_error("never");
    return n + 1;
}
static void run(u64 times) {
    u64 check = 0;
    for (u64 i = 0; i < times; i++) check += worker(i);
    TELL("worker", times);
    TELL("check", check);
}
extern "C" void handler(int) { victim_serve(run); }
int main() {
    signal(SIGUSR1, handler);
    return raise(SIGUSR1);
}
