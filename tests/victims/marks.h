/* USDT probes, written from the public description of the format (SystemTap's wiki, "UserSpaceProbeImplementation"): a
 * nop, and a note with its address, provider, name, and one `size@operand` for each argument, as the compiler placed it. */
#ifndef MARKS_H
#define MARKS_H

#define MARK_SIGNED(x) (((__typeof__(x))-1) < (__typeof__(x))1)
#define MARK_INT(n, x) [s##n] "i"((MARK_SIGNED(x) ? -1 : 1) * (int)sizeof(x)), [a##n] "nor"(x)
#if defined(__x86_64__)
#define MARK_REAL(n, x) [s##n] "i"((int)sizeof(x)), [a##n] "mx"(x)
#else
#define MARK_REAL(n, x) [s##n] "i"((int)sizeof(x)), [a##n] "mw"(x)
#endif
#define I(n) "%c[s" #n "]@%[a" #n "] "
#define F(n) "%c[s" #n "]f@%[a" #n "] "

#define MARK(provider, name, forms, ...)                                                                     \
    __asm__ __volatile__("990: nop\n"                                                                        \
                         ".pushsection .note.stapsdt,\"\",\"note\"\n"                                        \
                         ".balign 4\n"                                                                       \
                         ".4byte 992f-991f, 994f-993f, 3\n"                                                  \
                         "991: .asciz \"stapsdt\"\n"                                                         \
                         "992: .balign 4\n"                                                                  \
                         "993: .8byte 990b, _.stapsdt.base, 0\n"                                             \
                         ".asciz \"" provider "\"\n"                                                         \
                         ".asciz \"" name "\"\n"                                                             \
                         ".asciz \"" forms "\"\n"                                                            \
                         "994: .balign 4\n"                                                                  \
                         ".popsection\n"                                                                     \
                         ".ifndef _.stapsdt.base\n"                                                          \
                         ".pushsection .stapsdt.base,\"aG\",\"progbits\",.stapsdt.base,comdat\n"             \
                         ".weak _.stapsdt.base\n"                                                            \
                         ".hidden _.stapsdt.base\n"                                                          \
                         "_.stapsdt.base: .space 1\n"                                                        \
                         ".size _.stapsdt.base, 1\n"                                                         \
                         ".popsection\n"                                                                     \
                         ".endif\n" ::__VA_ARGS__)
#endif
