__attribute__((noinline, used)) unsigned long plugin_work(unsigned long x) { return x * 23 + 5; }
#ifdef __x86_64__
/* Four bytes at the end of the library's code: a jump must end in the bytes of what follows. */
__asm__(".section .text.zz, \"ax\"\n.p2align 4\n.globl plugin_short\n.type plugin_short, @function\n"
        "plugin_short: lea 1(%rdi), %eax\n ret\n.size plugin_short, . - plugin_short\n.text\n");
#else
__attribute__((noinline, used)) unsigned long plugin_short(unsigned long x) { return x + 1; }
#endif
