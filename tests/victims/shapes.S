/* Shapes that break tools: functions shorter than a jump with and without padding, branches back into the
 * first five bytes, an entry that is its own loop head, and the caller of the register check. */
        .text
        .macro begin name
        .globl \name
        .type \name, @function
\name:
        .endm
        .macro end name
        .size \name, . - \name
        .endm

/* One byte and no padding: only `ret`. The next function begins right behind it. */
        .p2align 4
begin   just_ret
        ret
end     just_ret
begin   three_bytes
        xor     %eax, %eax
        ret
end     three_bytes
begin   four_bytes
        lea     1(%rdi), %eax
        ret
end     four_bytes
        .p2align 4

/* Short, with padding behind. */
begin   padded_ret
        ret
end     padded_ret
        .p2align 4
begin   padded_four
        mov     %rdi, %rax
        ret
end     padded_four
        .p2align 4, 0xcc

/* The back edge goes to the second instruction, inside the first five bytes. */
begin   branch_back
        xor     %eax, %eax
1:      inc     %eax
        dec     %rdi
        jnz     1b
        ret
end     branch_back
        .p2align 4

/* The back edge goes to the entry itself: every turn is a hit. */
begin   own_loop
        dec     %rdi
        jnz     own_loop
        mov     $3, %eax
        ret
end     own_loop
        .p2align 4

/* endbr64 with a branch to the instruction behind it, at +4. */
begin   endbr_loop
        endbr64
2:      dec     %rdi
        jnz     2b
        mov     $4, %eax
        ret
end     endbr_loop
        .p2align 4

/* A call is the first instruction; its return address must stay the original one. */
begin   call_first
        call    caller_address
        ret
end     call_first
        .p2align 4
begin   caller_address
        mov     (%rsp), %rax
        ret
end     caller_address
        .p2align 4

/* loop and jrcxz have no long form. */
begin   loop_first
        jrcxz   3f
        loop    loop_first
3:      mov     $5, %eax
        ret
end     loop_first
        .p2align 4
        .section .note.GNU-stack,"",@progbits
