// Two functions whose names have the first 300 letters in common.
#include "victim.h"
#define LONG a_namespace_with_a_name_of_one_hundred_letters_so_that_three_of_them_are_longer_than_any_line_would_be
namespace LONG { namespace LONG { namespace LONG {
template <class T> PROBED void called(T) { __asm__ volatile(""); }
} } }
static void run(u64 times) {
    for (u64 i = 0; i < times; i++) {
        LONG::LONG::LONG::called(1);
        LONG::LONG::LONG::called(1L);
        LONG::LONG::LONG::called(2L);
    }
    TELL("ints", times);
    TELL("longs", 2 * times);
}
int main() { return victim_serve(run); }
