/* `own_clone KIND`: as `bare`, but threads are made by a system call of the program's own. */
#define OWN_CLONE
#include "bare.c"
