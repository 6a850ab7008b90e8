/* What changes.h and its users need of x86-64. */

/* The load is the first instruction. It must fault at its own address, or the handler does not find it. */
#define GET \
    __asm__(".text\n.p2align 4\n.globl get\n.type get,@function\nget: .cfi_startproc\n movl (%rdi), %eax\n addl $1, %eax\n ret\n" \
            ".globl get_fix\nget_fix: movl $-1, %eax\n ret\n .cfi_endproc\n.size get, .-get\n.p2align 4\n")

/* A function that takes the number as C's `syscall` does. */
#define WRAPPED \
    __asm__(".p2align 4\n.globl wrapped\n.type wrapped,@function\nwrapped: .cfi_startproc\n movq %rdi, %rax\n movq %rsi, %rdi\n" \
            " movq %rdx, %rsi\n movq %rcx, %rdx\n movq %r8, %r10\n syscall\n ret\n .cfi_endproc\n.size wrapped, .-wrapped\n")

/* A function that takes all on the stack, and one that puts it there. */
#define STACKED \
    __asm__(".p2align 4\n.globl on_stack\n.type on_stack,@function\non_stack: .cfi_startproc\n call nothing\n movq 16(%rsp), %rdi\n" \
            " movq 24(%rsp), %rsi\n movq 32(%rsp), %rdx\n movq 40(%rsp), %r10\n movq 8(%rsp), %rax\n syscall\n ret\n" \
            "nothing: ret\n .cfi_endproc\n.size on_stack, .-on_stack\n"); \
    __asm__(".p2align 4\n.globl stacked\n.type stacked,@function\nstacked: pushq %r8\n pushq %rcx\n pushq %rdx\n pushq %rsi\n pushq %rdi\n" \
            " call on_stack\n addq $40, %rsp\n ret\n.size stacked, .-stacked\n.p2align 4\n")

#define RAW(number, a, b, c, size) \
    ({ \
        long raw_; \
        register long r10_ __asm__("r10") = (size); \
        __asm__ volatile("syscall" : "=a"(raw_) : "a"(number), "D"(a), "S"(b), "d"(c), "r"(r10_) : "rcx", "r11", "memory"); \
        raw_; \
    })

/* The same with a number that no code tells. */
#define RAW_HIDDEN RAW

/* The same, with a number that is loaded just before the instruction. */
#define RAW_LATE(number, a, b, c, size) \
    ({ \
        long raw_; \
        register long r10_ __asm__("r10") = (size); \
        __asm__ volatile("movq %1, %%rax\n syscall" : "=&a"(raw_) : "m"(number), "D"(a), "S"(b), "d"(c), "r"(r10_) : "rcx", "r11", "memory"); \
        raw_; \
    })

#define INTERRUPTED(context) (((ucontext_t *)(context))->uc_mcontext.gregs[REG_RIP])

/* The kernel does not return from a handler by itself. */
static void restore(void) { __asm__ volatile("mov $15, %eax\n syscall"); }
#define RESTORER restore
#define RESTORER_FLAG 0x04000000
