/* USDT probes as sys/sdt.h would write them, at instructions that are reached in different ways. The
 * program has a fixed address, so a jump with a displacement that ends in a code byte of 0x80 or more leads
 * below all memory. */
        .macro semaphore name
        .pushsection .probes, "aw"
        .balign 2
        .globl \name\()_semaphore
\name\()_semaphore:
        .2byte 0
        .popsection
        .endm
/* At label 990. */
        .macro marker name
        .pushsection .note.stapsdt, "", "note"
        .balign 4
        .4byte 992f - 991f, 994f - 993f, 3
991:    .asciz "stapsdt"
992:    .balign 4
993:    .8byte 990b, _.stapsdt.base, \name\()_semaphore
        .asciz "markers"
        .asciz "\name"
        .asciz ""
994:    .balign 4
        .popsection
        .endm
        .macro begin name
        .globl \name
        .type \name, @function
\name:
        .endm
        .macro end name
        .size \name, . - \name
        .endm
/* So much code that no padding is in reach of a short jump. */
        .macro far
        .rept 80
        lea 1(%rdi), %rdi
        .endr
        .endm

        .pushsection .stapsdt.base, "aG", "progbits", .stapsdt.base, comdat
        .weak _.stapsdt.base
        .hidden _.stapsdt.base
_.stapsdt.base: .space 1
        .popsection
        semaphore jumped
        semaphore kernel
        semaphore unprobed

        .text
        .p2align 4
begin   by_jump
        mov     %rdi, %rax
990:    nopl    0(%rax,%rax)
        marker  jumped
        ret
end     by_jump

/* One byte, and behind it an instruction that is a branch target: no jump has room, and a punned one leads
 * nowhere. */
begin   by_kernel
        mov     %rdi, %rcx
        xor     %eax, %eax
        far
2:
990:    nop
        marker  kernel
3:      add     $0x800000, %eax
        dec     %rcx
        jz      4f
        test    $1, %cl
        jz      3b
        jmp     2b
4:      far
        ret
end     by_kernel

/* The same at an instruction on which the kernel sets no breakpoint: a branch with an operand-size prefix,
 * which processors of different vendors decode differently. */
begin   by_unprobed
        mov     %rdi, %rcx
        far
        jmp     5f
990:    .byte   0x66, 0x74, 0x00
        marker  unprobed
3:      add     $-0x80000000, %r8
5:      dec     %rcx
        jz      4f
        jns     3b
        jmp     990b
4:      far
        mov     $7, %eax
        ret
end     by_unprobed
        .section .note.GNU-stack, "", @progbits
