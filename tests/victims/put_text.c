// Its namesake in another library takes other things.
long put(const char *text, long n) { return text[0] ? n + 1 : n; }
