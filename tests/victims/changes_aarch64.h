/* What changes.h and its users need of arm64; the twin of changes_x86_64.h. */

#define GET \
    __asm__(".text\n.p2align 4\n.globl get\n.type get,%function\nget: .cfi_startproc\n ldr w0, [x0]\n add w0, w0, #1\n ret\n" \
            ".globl get_fix\nget_fix: mov w0, #-1\n ret\n .cfi_endproc\n.size get, .-get\n.p2align 4\n")

#define WRAPPED \
    __asm__(".p2align 4\n.globl wrapped\n.type wrapped,%function\nwrapped: .cfi_startproc\n mov x8, x0\n mov x0, x1\n mov x1, x2\n" \
            " mov x2, x3\n mov x3, x4\n svc #0\n ret\n .cfi_endproc\n.size wrapped, .-wrapped\n")

#define STACKED \
    __asm__(".p2align 4\n.globl on_stack\n.type on_stack,%function\non_stack: .cfi_startproc\n mov x9, x30\n bl nothing\n mov x30, x9\n" \
            " ldp x0, x1, [sp, #24]\n ldp x2, x3, [sp, #40]\n ldr x8, [sp, #16]\n svc #0\n ret\n" \
            "nothing: ret\n .cfi_endproc\n.size on_stack, .-on_stack\n"); \
    __asm__(".p2align 4\n.globl stacked\n.type stacked,%function\nstacked: stp x29, x30, [sp, #-64]!\n stp x0, x1, [sp, #16]\n" \
            " stp x2, x3, [sp, #32]\n str x4, [sp, #48]\n bl on_stack\n ldp x29, x30, [sp], #64\n ret\n.size stacked, .-stacked\n.p2align 4\n")

#define RAW(number, a, b, c, size) RAW_BEHIND("", number, a, b, c, size)

/* Compilers like to load a number last, and then it is not held: there is a word behind it. */
#define RAW_HIDDEN(number, a, b, c, size) RAW_BEHIND("nop\n ", number, a, b, c, size)

#define RAW_BEHIND(code, number, a, b, c, size) \
    ({ \
        register long x8_ __asm__("x8") = (number); \
        register long x0_ __asm__("x0") = (long)(a); \
        register long x1_ __asm__("x1") = (long)(b); \
        register long x2_ __asm__("x2") = (long)(c); \
        register long x3_ __asm__("x3") = (long)(size); \
        __asm__ volatile(code "svc #0" : "+r"(x0_) : "r"(x8_), "r"(x1_), "r"(x2_), "r"(x3_) : "memory"); \
        x0_; \
    })

#define RAW_LATE(number, a, b, c, size) \
    ({ \
        register long x0_ __asm__("x0") = (long)(a); \
        register long x1_ __asm__("x1") = (long)(b); \
        register long x2_ __asm__("x2") = (long)(c); \
        register long x3_ __asm__("x3") = (long)(size); \
        __asm__ volatile("ldr x8, %1\n svc #0" : "+r"(x0_) : "m"(number), "r"(x1_), "r"(x2_), "r"(x3_) : "x8", "memory"); \
        x0_; \
    })

#define INTERRUPTED(context) (((ucontext_t *)(context))->uc_mcontext.pc)

/* The kernel returns from a handler by itself. */
#define RESTORER NULL
#define RESTORER_FLAG 0
