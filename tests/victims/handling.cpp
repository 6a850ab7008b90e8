// A program that does all its work in a signal handler, and has an unwinder. No thread is fit for a call that
// allocates. With an argument it works outside, and `run 7` waits in the handler for a line.
extern "C" {
#include "victim.h"
}
#include <signal.h>
#include <stdexcept>
#include <unistd.h>
#define FUNC extern "C" __attribute__((noipa)) u64

FUNC worker(u64 n) {
    if (n == ~0ul) throw std::runtime_error("never");
    return n + 1;
}
static bool visits;
static void run(u64 times) {
    u64 check = 0;
    if (visits && times == 7) raise(SIGUSR1);
    for (u64 i = 0; i < times; i++) check += worker(i);
    TELL("worker", times);
    TELL("check", check);
}
extern "C" void handler(int) {
    if (!visits) {
        victim_serve(run);
        return;
    }
    char byte = 0;
    puts("inside");
    while (byte != '\n' && read(0, &byte, 1) == 1) {
    }
}
int main(int argc, char **) {
    visits = argc > 1;
    signal(SIGUSR1, handler);
    return visits ? victim_serve(run) : raise(SIGUSR1);
}
