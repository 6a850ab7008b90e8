/* A library through which `callers` calls. */
__attribute__((noinline, used, optimize("no-omit-frame-pointer"))) unsigned long from_library(unsigned long (*f)(unsigned long), unsigned long x) {
    unsigned long y = f(x);
    __asm__ volatile("");
    return y + 1;
}
