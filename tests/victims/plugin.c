__attribute__((noinline, used)) unsigned long plugin_work(unsigned long x) { return x * 23 + 5; }
