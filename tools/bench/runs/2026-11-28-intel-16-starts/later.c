long later(long x) { return x + 1; }
__attribute__((constructor)) static void begins(void) { later(3); }
