//! //! Writes the measured functions as assembly: of each case one copy for each of four threads, and tens of
//! thousands of functions more.

use std::fmt::Write as _;
use std::path::Path;

/// Name and body of each case, without the final `ret`. The cost of a kernel uprobe depends on the first
/// instruction.
const CASES: [(&str, &str); 12] = [
    ("nop", "nop"),
    ("push", "push %rbp\n pop %rbp"),
    ("deep", "push %rbp\n pop %rbp"),
    ("text", "push %rbp\n pop %rbp"),
    ("edge", "push %rbp\n pop %rbp"),
    ("returned", "mov %rdi, %rax"),
    ("mark", "990: nop"),
    ("endbr64", "endbr64"),
    ("sub", "sub $0x18, %rsp\n add $0x18, %rsp"),
    ("mov", "mov %rdi, %rax"),
    ("ret", ""),
    ("generic", "lea 4(%rdi,%rdi,2), %rax\n imul $77, %rax, %rax\n xor %rdi, %rax\n shr $3, %rax"),
];
/// Calls the function in rdi as many times as rsi says, with rdx extra frames on the stack. The chain of
/// frame pointers ends with 0.
const DEEP: &str = "\
.p2align 6
.globl bench_stack
.type bench_stack, @function
bench_stack:
 push %rbp
 xor %ebp, %ebp
 call bench_stack_frame
 pop %rbp
 ret
.size bench_stack, .-bench_stack
.p2align 6
.type bench_stack_frame, @function
bench_stack_frame:
 push %rbp
 mov %rsp, %rbp
 test %rdx, %rdx
 je 1f
 dec %rdx
 call bench_stack_frame
 pop %rbp
 ret
1: push %rbx
 push %r12
 mov %rdi, %r12
 mov %rsi, %rbx
2: mov %rbx, %rdi
 call *%r12
 dec %rbx
 jne 2b
 pop %r12
 pop %rbx
 pop %rbp
 ret
.size bench_stack_frame, .-bench_stack_frame
";
/// Copies of each case: one for each thread.
const COPIES: u32 = 4;
/// Functions that `walk` visits and `attach` patches.
const WALK: u32 = 10_000;
/// Functions that a process probes in itself. They lie 16 bytes apart.
const MANY: u32 = 50_000;

fn function(text: &mut String, name: &str, align: u32, body: &str) {
    let _ = write!(
        text,
        ".p2align {align}\n.globl {name}\n.type {name}, @function\n{name}:\n {body}\n ret\n.size {name}, .-{name}\n"
    );
}

/// The note of the USDT probe at the nop before: three operands, two of them in registers.
fn note(text: &mut String, copy: u32) {
    let _ = write!(
        text,
        ".pushsection .note.stapsdt, \"\", \"note\"\n.balign 4\n.4byte 992f-991f, 994f-993f, 3\n\
         991: .asciz \"stapsdt\"\n992: .balign 4\n993: .8byte 990b, 0, 0\n.asciz \"bench\"\n.asciz \"mark_{copy}\"\n\
         .asciz \"8@%rdi -4@%esi 8@$5\"\n994: .balign 4\n.popsection\n"
    );
}

/// A heap's two functions, and one that calls both: it takes an address that was never taken before, and gives back the one
/// that was taken a hundred calls before.
fn heap(text: &mut String, copy: u32) {
    function(text, &format!("bench_take_{copy}"), 6, "push %rbp\n mov %rdi, %rax\n shl $6, %rax\n pop %rbp");
    function(text, &format!("bench_give_{copy}"), 6, "push %rbp\n pop %rbp");
    let take = format!(
        "incq bench_taken_{copy}(%rip)\n mov bench_taken_{copy}(%rip), %rdi\n call bench_take_{copy}"
    );
    let give = format!("lea -6400(%rax), %rdi\n call bench_give_{copy}");
    let body = format!("push %rbp\n mov %rsp, %rbp\n {take}\n {give}\n pop %rbp");
    function(text, &format!("bench_heap_{copy}"), 6, &body);
    let _ = write!(text, ".local bench_taken_{copy}\n.comm bench_taken_{copy}, 8, 64\n");
}

/// A function that no five-byte jump fits on: a branch from elsewhere leads to its third byte.
fn narrow(text: &mut String, name: &str) {
    function(text, name, 0, &format!("push %rbp\n nop\n{name}_inner:\n pop %rbp"));
    function(text, &format!("lure_{name}"), 0, &format!("push %rbp\n jmp {name}_inner"));
}

fn main() {
    if std::env::var("CARGO_CFG_TARGET_ARCH").is_ok_and(|arch| arch != "x86_64") {
        return;
    }
    let mut text = String::from(".text\n");
    for copy in 0..COPIES {
        for (case, body) in CASES {
            function(&mut text, &format!("bench_{case}_{copy}"), 6, body);
            if case == "mark" {
                note(&mut text, copy);
            }
        }
        heap(&mut text, copy);
        // Padding in reach: the site can be reached by a short jump to an island.
        text += ".p2align 6\n";
        narrow(&mut text, &format!("bench_push_short_{copy}"));
        text += ".p2align 6\n";
        // No padding in reach: the bytes that follow become part of the displacement.
        let dense = "mov $0x11223344, %eax\n ".repeat(40);
        function(&mut text, &format!("bench_dense_before_{copy}"), 6, &dense);
        narrow(&mut text, &format!("bench_push_pun_{copy}"));
        function(&mut text, &format!("bench_dense_after_{copy}"), 0, &dense);
    }
    text += DEEP;
    for index in 0..WALK {
        function(&mut text, &format!("bench_walk_{index}"), 4, "push %rbp\n mov %rsp, %rbp\n pop %rbp");
    }
    text += ".p2align 4\n.globl bench_many\nbench_many:\n";
    for index in 0..MANY {
        function(&mut text, &format!("bench_many_{index}"), 4, "push %rbp\n mov %rsp, %rbp\n pop %rbp");
    }
    text += ".section .data.rel.ro.bench_walk,\"aw\",@progbits\n.p2align 3\n.globl bench_walk_table\nbench_walk_table:\n";
    for index in 0..WALK {
        let _ = writeln!(text, " .quad bench_walk_{index}");
    }
    text += ".text\n";
    let out = std::env::var_os("OUT_DIR").unwrap_or_default();
    let written = std::fs::write(Path::new(&out).join("functions.s"), text);
    written.unwrap_or_else(|error| panic!("OUT_DIR: {error}"));
    println!("cargo::rerun-if-changed=build.rs");
}
