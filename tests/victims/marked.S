/* USDT probes as <sys/sdt.h> writes them, with arguments wherever a compiler may put them. */
#if defined(__x86_64__)

.macro MARK name, args
990:    nop
        .pushsection .note.stapsdt, "", "note"
        .balign 4
        .4byte 992f - 991f, 994f - 993f, 3
991:    .asciz "stapsdt"
992:    .balign 4
993:    .8byte 990b, 0, 0
        .asciz "marked"
        .asciz "\name"
        .asciz "\args"
994:    .balign 4
        .popsection
.endm

        .data
        .balign 8
        .local counter
        .type counter, @object
        .size counter, 8
counter: .8byte 0
        .type table, @object
        .size table, 40
table:  .4byte 0, 10, 20, 30, 40, 50, 60, 70, 80, 90

        .text
        .globl pass_marks
        .type pass_marks, @function
/* rdi: n, rsi: text. Returns 1 if all registers are what they were. */
pass_marks:
        pushq %rbp
        movq %rsp, %rbp
        pushq %rbx
        pushq %r12
        subq $32, %rsp
        movq %rdi, -40(%rbp)
        movq %rsi, -48(%rbp)
        movq %rdi, counter(%rip)
        leaq 1(%rdi), %rax
        leaq 2(%rdi), %r11
        movq %rsi, %rbx
        movl $3, %r12d
        leaq table(%rip), %rcx
        movq %rdi, %r10
        xorl %edi, %edi
        xorl %esi, %esi
        movl $5, %edx
        movl $8, %r8d
        movl $9, %r9d
        MARK registers, "8@%rax -4@%r11d 8@%rbx -1@$-7 8@%rsp 8@%rbp"
        leaq (%rdi), %rdi
        leaq (%rsi), %rsi
        MARK memory, "8@-40(%rbp) 4@counter+0(%rip) 8@-48(%rbp) 4@4(%rcx,%r12,8) 8@(%rdi) 1@%ah"
        leaq (%rdi), %rdi
        leaq (%rsi), %rsi
        MARK twice, "8@%r10 8@$1"
        leaq (%rdi), %rdi
        leaq (%rsi), %rsi
        MARK twice, "8@-40(%rbp) 4@%edx"
        leaq (%rdi), %rdi
        leaq (%rsi), %rsi
        /* Checks that each register is what it was. */
        subq %r10, %rax
        subq %r10, %r11
        leaq (%rax,%r11), %rax
        addq %rdi, %rax
        addq %rsi, %rax
        addq %rdx, %rax
        addq %r8, %rax
        addq %r9, %rax
        addq %r12, %rax
        leaq table(%rip), %rdx
        subq %rdx, %rcx
        addq %rcx, %rax
        subq -40(%rbp), %r10
        addq %r10, %rax
        subq -48(%rbp), %rbx
        addq %rbx, %rax
        cmpq $28, %rax
        sete %al
        movzbl %al, %eax
        addq $32, %rsp
        popq %r12
        popq %rbx
        popq %rbp
        ret
        .size pass_marks, . - pass_marks

#else
        .text
        .globl pass_marks
pass_marks:
        mov x0, #1
        ret
#endif

        .section .note.GNU-stack, "", %progbits
