/* call_with_state(target, in, out): loads every general register, the arithmetic flags, all vector and mask registers
 * from `in`, jumps to `target` with a return address on the stack, and stores all of them to `out`. What lies below the
 * stack pointer at an entry is not in use (psABI), so red zones are checked by functions that use their own.
 *
 * struct state: 0 general registers (15 words, rsp left out) | 120 flags | 128 unused (128 bytes)
 *               | 256 mask registers (8 words) | 320 vector registers (32 of 64 bytes)
 */
        .bss
        .p2align 4
target_word:    .quad 0
in_word:        .quad 0
out_word:       .quad 0
saved_rsp:      .quad 0
saved_rax:      .quad 0
        .globl  wide
wide:   .long   0               /* 2: AVX-512, 1: AVX, 0: SSE */

        .text
        .globl  call_with_state
        .type   call_with_state, @function
call_with_state:
        push    %rbx
        push    %rbp
        push    %r12
        push    %r13
        push    %r14
        push    %r15
        mov     %rdi, target_word(%rip)
        mov     %rsi, in_word(%rip)
        mov     %rdx, out_word(%rip)
        mov     %rsp, saved_rsp(%rip)

        cmpl    $1, wide(%rip)
        ja      1f
        je      2f
        .irp n, 0,1,2,3,4,5,6,7,8,9,10,11,12,13,14,15
        movdqu  320+64*\n(%rsi), %xmm\n
        .endr
        jmp     3f
2:      .irp n, 0,1,2,3,4,5,6,7,8,9,10,11,12,13,14,15
        vmovdqu 320+64*\n(%rsi), %ymm\n
        .endr
        jmp     3f
1:      .irp n, 0,1,2,3,4,5,6,7
        kmovq   256+8*\n(%rsi), %k\n
        .endr
        .irp n, 0,1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16,17,18,19,20,21,22,23,24,25,26,27,28,29,30,31
        vmovdqu64 320+64*\n(%rsi), %zmm\n
        .endr
3:
        /* A frame well below, so that a return address and its red zone are ours. */
        sub     $1024, %rsp
        and     $-64, %rsp
        pushq   120(%rsi)
        popfq
        lea     after(%rip), %rax
        push    %rax
        /* mov leaves the flags alone. */
        mov     0(%rsi), %rax
        mov     8(%rsi), %rcx
        mov     16(%rsi), %rdx
        mov     24(%rsi), %rbx
        mov     32(%rsi), %rbp
        mov     48(%rsi), %rdi
        mov     56(%rsi), %r8
        mov     64(%rsi), %r9
        mov     72(%rsi), %r10
        mov     80(%rsi), %r11
        mov     88(%rsi), %r12
        mov     96(%rsi), %r13
        mov     104(%rsi), %r14
        mov     112(%rsi), %r15
        mov     40(%rsi), %rsi
        jmp     *target_word(%rip)
after:
        mov     %rax, saved_rax(%rip)
        mov     out_word(%rip), %rax
        mov     %rcx, 8(%rax)
        mov     %rdx, 16(%rax)
        mov     %rbx, 24(%rax)
        mov     %rbp, 32(%rax)
        mov     %rsi, 40(%rax)
        mov     %rdi, 48(%rax)
        mov     %r8, 56(%rax)
        mov     %r9, 64(%rax)
        mov     %r10, 72(%rax)
        mov     %r11, 80(%rax)
        mov     %r12, 88(%rax)
        mov     %r13, 96(%rax)
        mov     %r14, 104(%rax)
        mov     %r15, 112(%rax)
        mov     saved_rax(%rip), %rcx
        mov     %rcx, 0(%rax)
        pushfq
        popq    120(%rax)
        cmpl    $1, wide(%rip)
        ja      1f
        je      2f
        .irp n, 0,1,2,3,4,5,6,7,8,9,10,11,12,13,14,15
        movdqu  %xmm\n, 320+64*\n(%rax)
        .endr
        jmp     3f
2:      .irp n, 0,1,2,3,4,5,6,7,8,9,10,11,12,13,14,15
        vmovdqu %ymm\n, 320+64*\n(%rax)
        .endr
        vzeroupper
        jmp     3f
1:      .irp n, 0,1,2,3,4,5,6,7
        kmovq   %k\n, 256+8*\n(%rax)
        .endr
        .irp n, 0,1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16,17,18,19,20,21,22,23,24,25,26,27,28,29,30,31
        vmovdqu64 %zmm\n, 320+64*\n(%rax)
        .endr
        vzeroupper
3:      mov     saved_rsp(%rip), %rsp
        pop     %r15
        pop     %r14
        pop     %r13
        pop     %r12
        pop     %rbp
        pop     %rbx
        ret
        .size   call_with_state, . - call_with_state

/* The same body twice: `state_X` is probed, `bare_X` never. */
#define ONE(name, ...) .p2align 5; .globl name; .type name, @function; name: 6: __VA_ARGS__; ret; .size name, . - name
#define PAIR(name, ...) ONE(state_##name, __VA_ARGS__); ONE(bare_##name, __VA_ARGS__)

        PAIR(nops,      nopl 0(%rax,%rax,1))
        PAIR(push,      push %rbp; mov %rsp, %rbp; pop %rbp)
        PAIR(endbr,     endbr64; mov %rdi, %rax)
        PAIR(sub,       sub $24, %rsp; add $24, %rsp)
        PAIR(lea,       lea 5(%rdi,%rsi,2), %rax)
        PAIR(riprel,    mov wide(%rip), %eax; lea wide(%rip), %rdx)
        /* Its own red zone, written and read back; +10 is between. */
        PAIR(redzone,   mov %rdi, -24(%rsp); mov %rsi, -40(%rsp); mov -24(%rsp), %rax; mov -40(%rsp), %rdx)
        /* The same right below the stack pointer, stored by the first instruction: behind it the red zone is in use. */
        PAIR(spill,     mov %rdi, -8(%rsp); test %rsi, %rsi; mov -8(%rsp), %rax; mov -4(%rsp), %edx)
        PAIR(flags,     adc %rdi, %rax; setc %cl; cmovz %rsi, %rdx)
        PAIR(branch,    test %rdi, %rdi; js 9f; mov $1, %eax; 9: cmc)
        PAIR(vector,    movaps %xmm1, %xmm2; paddd %xmm3, %xmm2)
        PAIR(short,     cmc)
        PAIR(call,      call empty_callee; mov %rax, %rdx)
        /* A branch back to the entry while the red zone is in use: two hits a call. */
        PAIR(redloop,   btsq $63, %rcx; jc 8f; mov %rdi, -32(%rsp); jmp 7f; 8: mov -32(%rsp), %rax; ret; 7: jmp 6b)
        .p2align 4
empty_callee:
        ret
        .section .note.GNU-stack,"",@progbits
