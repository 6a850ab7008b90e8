/* Calls `one` once and ends; `one wait` waits for the end of its standard input first. */
#include <unistd.h>
__attribute__((noinline, noipa)) int one(int x) { return x * 1000 + 3; }
int main(int count, char **args) {
    char c;
    (void)args;
    if (count > 1)
        while (read(0, &c, 1) > 0) {}
    return one(count) != count * 1000 + 3;
}
