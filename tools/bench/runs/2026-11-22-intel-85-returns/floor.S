	.intel_syntax noprefix
	.text
# f0: bare function. loops call one of these `n` times: rdi = n, rsi = function
	.globl loop
	.p2align 6
loop:
	push rbx
	push r12
	mov rbx, rdi
	mov r12, rsi
	.p2align 5
1:	call r12
	dec rbx
	jnz 1b
	pop r12
	pop rbx
	ret

	.globl f_bare
	.p2align 6
f_bare:	nop
	nop
	nop
	nop
	nop
	ret

# replaced return address, jump back (what slots did): one misprediction
	.globl f_jump
	.p2align 6
f_jump:
	jmp 2f
	.p2align 6
2:	mov rax, [rsp]
	mov [rip + real], rax
	lea rax, [rip + 3f]
	mov [rsp], rax
	jmp f_body
	.p2align 6
	nop
3:	push 17
	jmp 4f
	.p2align 6
4:	mov rax, [rip + real]
	mov [rsp], rax
	lea rsp, [rsp + 8]
	jmp [rsp - 8]

# the same, leaving by ret: two or more
	.globl f_ret
	.p2align 6
f_ret:
	jmp 2f
	.p2align 6
2:	mov rax, [rsp]
	mov [rip + real], rax
	lea rax, [rip + 3f]
	mov [rsp], rax
	jmp f_body
	.p2align 6
	nop
3:	push 17
	jmp 4f
	.p2align 6
4:	mov rax, [rip + real]
	mov [rsp], rax
	ret

# paired: the slot's own call enters the function
	.globl f_pair
	.p2align 6
f_pair:
	jmp 2f
	.p2align 6
2:	mov rax, [rsp]
	mov [rip + real], rax
	lea rax, [rip + 5f]
	mov [rsp], rax
	lea rax, [rip + f_body]
	mov [rip + go], rax
	lea rsp, [rsp + 8]
	jmp [rsp - 8]
	.p2align 6
	nop
5:	call [rip + go]
3:	push 17
	jmp 4f
	.p2align 6
4:	mov rax, [rip + real]
	mov [rsp], rax
	ret

	.p2align 6
f_body:	nop
	nop
	nop
	nop
	nop
	ret
	.bss
	.balign 64
real:	.quad 0
go:	.quad 0
	.section .note.GNU-stack,"",@progbits
