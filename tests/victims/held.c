/* Adds to a variable of its library. The linker gives the program a copy of it, which the library uses from then on. */
#include "victim.h"
extern int held_total;
void held_bump(void);
PROBED void own_bump(void) { held_total += 10; }
static void run(u64 times) {
    for (u64 i = 0; i < times; i++) {
        own_bump();
        held_bump();
    }
    TELL("writes", 2 * times);
    TELL("total", held_total);
}
int main(void) { return victim_serve(run); }
