/* Defines a variable that the program holds. */
int held_total = 5;
__attribute__((noinline, used)) void held_bump(void) { held_total++; }
