        .text
        .globl other
        .type same, %function
        .p2align 4
other:
same:
#if defined(__x86_64__)
        leaq 1(%rdi), %rax
        leaq 1(%rax), %rax
        ret
#else
        add x0, x0, #1
        add x0, x0, #1
        ret
#endif
        .size same, . - same
        .section .note.GNU-stack, "", %progbits
