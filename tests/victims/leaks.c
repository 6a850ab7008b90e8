/* Allocates in all of the C library's ways, and gives back some of it. */
#include <stdlib.h>

static void *volatile kept[64];

int main(void) {
    for (int n = 0; n < 32; n++) {
        kept[n] = malloc(100 + n);
        kept[n + 32] = calloc(3, 10 + n);
    }
    for (int n = 0; n < 32; n += 2) free(kept[n]);
    for (int n = 32; n < 64; n += 4) free(kept[n]);
    for (int n = 1; n < 32; n += 4) kept[n] = realloc(kept[n], 5000);
    for (int n = 33; n < 64; n += 8) kept[n] = realloc(kept[n], 7);
    kept[0] = realloc(NULL, 77);
    free(realloc(malloc(10), 20000));
    return 0;
}
