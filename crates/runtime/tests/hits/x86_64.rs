//! setjmp and longjmp, with a buffer that each thread passes itself (`leave`).

std::arch::global_asm!(
    ".globl trapline_test_catch",
    "trapline_test_catch:", // (jump: *mut u64, f: fn(data), data)
    "push rbp",
    "push rbx",
    "push r12",
    "push r13",
    "push r14",
    "push r15",
    "sub rsp, 8",
    "mov [rdi], rsp",
    "mov rax, rsi",
    "mov rdi, rdx",
    "call rax",
    "0: add rsp, 8",
    "pop r15",
    "pop r14",
    "pop r13",
    "pop r12",
    "pop rbx",
    "pop rbp",
    "ret",
    ".globl trapline_test_throw",
    "trapline_test_throw:", // (jump: *mut u64) -> !
    "mov rsp, [rdi]",
    "jmp 0b",
);
