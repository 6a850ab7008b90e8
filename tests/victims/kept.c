/* Functions that return texts, fill buffers and take long texts. Prints how often each was called, and a checksum. */
#include "victim.h"

static char line[5000];

PROBED const char *named(int n) {
    if (n % 5 == 4) return NULL;
    snprintf(line, sizeof line, "name %d", n);
    return line;
}
PROBED const char *lengthy(int n) {
    memset(line, 'a' + n % 26, sizeof line);
    line[n * 97 % 4999] = 0;
    return line;
}
/* As read(2): fills a buffer, and returns how much, or -1. */
PROBED int filled(int n, char *into, int room) {
    if (n % 7 == 6) return -1;
    int len = n % room;
    memset(into, '0' + n % 10, (size_t)len);
    return len;
}
PROBED long takes(const char *text, const char *bytes, long n) { return text[0] + bytes[n - 1]; }
/* Ends as another function. */
PROBED const char *passes_on(int n) { return named(n + 1); }

static void run(u64 times) {
    u64 check = 0;
    char buffer[300], text[700], bytes[3000];
    for (u64 n = 0; n < times; n++) {
        const char *name = named((int)n);
        check += name ? strlen(name) : 1;
        check += strlen(lengthy((int)n));
        memset(buffer, '?', sizeof buffer);
        check += (u64)filled((int)n, buffer, 250);
        memset(text, 'x', sizeof text);
        text[n * 17 % 699] = 0;
        memset(bytes, 'b', sizeof bytes);
        check += (u64)takes(text, bytes, 1 + (long)(n * 71 % 2999));
        check += passes_on((int)n) != NULL;
    }
    TELL("named", times);
    TELL("lengthy", times);
    TELL("filled", times);
    TELL("takes", times);
    TELL("passes_on", times);
    TELL("check", check);
}

int main(void) { return victim_serve(run); }
