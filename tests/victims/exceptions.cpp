// Throws exceptions of two types, some of them again, and prints how many it caught.
#include <stdexcept>
#include "victim.h"

static u64 errors, numbers, again;

static void throws(u64 n) {
    try {
        if (n % 3 == 0) throw std::runtime_error("a third of all");
    } catch (...) {
        again++;
        throw;
    }
    if (n % 3 == 1) throw (int)n;
}

static void run(u64 times) {
    for (u64 n = 0; n < times; n++) {
        try {
            throws(n);
        } catch (const std::exception &) {
            errors++;
        } catch (int) {
            numbers++;
        }
    }
    TELL("errors", errors);
    TELL("numbers", numbers);
    TELL("again", again);
}

int main() { return victim_serve(run); }
