/* A library whose constructor calls its own function seven times. */
__attribute__((noinline, used)) int early(int x) {
    for (volatile int i = 0; i < 2; i++) x += 5 * i;
    return x + 5;
}
__attribute__((constructor)) static void begin(void) {
    for (int i = 0; i < 7; i++) early(i);
}
