//! What stubs and the kernel can do on x86-64, and what code shows by its bytes.

use memchr::memmem;
use trapline_image::Image;
use trapline_insn::x86_64::{Flow, sweep};
pub(crate) use trapline_plan::x86_64::stub::arguments::held_in_go;
use trapline_record::Svma;

/// Threads that find a compact ring full can wait for the reader (`stub/wait.rs`).
pub(crate) const CAN_WAIT: bool = true;

/// Number of registers that hold integer arguments, in C.
pub(crate) const GENERAL_ARGUMENTS: u8 = 6;
/// General registers in which functions return.
pub(crate) const RETURNED: u8 = 2;
/// The same for functions of Go's.
pub(crate) const GO_RETURNED: u8 = 9;
/// Hardware numbers of the first six of them.
pub(crate) const ARGUMENTS: [u8; 6] = [7, 6, 2, 1, 8, 9];
/// Distance from the stack pointer at a function's entry to the first argument there: behind the return address.
pub(crate) const FIRST_ON_STACK: i32 = 8;
/// Names of the general registers, by their hardware numbers.
pub(crate) const REGISTERS: [&str; 16] = [
    "rax", "rcx", "rdx", "rbx", "rsp", "rbp", "rsi", "rdi", "r8", "r9", "r10", "r11", "r12", "r13", "r14",
    "r15",
];
/// Whether rows that belong to threads can be filtered by thread names.
pub(crate) const FILTERS_ROWS_BY_NAME: bool = true;
/// Whether a register holds Go's goroutine, so that every return finds what its entry left.
pub(crate) const GOROUTINE_IN_REGISTER: bool = false;
/// Why writes by the kernel are not seen, where they are not.
pub(crate) const KERNEL_UNSEEN: &str = "without CAP_PERFMON";
/// Whether handlers of faults can be shown the original addresses of faults in copies.
pub(crate) const DELIVERS_FAULTS: bool = true;
/// Whether the kernel reports only one of several watched places that one store touches.
pub(crate) const REPORTS_ONE_PLACE: bool = false;

/// Places in code at which the distance to an address stands: calls, jumps, and instructions that load the
/// address. Few are parts of other instructions. `at` is the address of the code.
pub(crate) fn references(code: &[u8], at: u64, to: u64) -> impl Iterator<Item = u64> {
    let places = code.windows(4).zip(at..);
    let distance = |word: &[u8]| word.try_into().map_or(0, i32::from_le_bytes);
    places
        .filter(move |(word, at)| (at + 4).wrapping_add_signed(distance(word).into()) == to)
        .map(|(_, at)| at)
}

const SYSCALL: [u8; 2] = [0x0f, 0x05];

/// Places in code at which a thread may be made by a system call of its own: `mov $56, %eax` (clone) or
/// `mov $435, %eax` (clone3), and then straight to a `syscall`; or `mov $435, %edi`, and then straight to a call
/// of a function that takes the number. Each with the function that is called, if it is one and is known.
pub(crate) fn thread_calls(code: &[u8], at: u64) -> impl Iterator<Item = (u64, Option<u64>)> {
    const NEAR: usize = 64;
    const NUMBERS: [[u8; 5]; 2] = [[0xb8, 56, 0, 0, 0], [0xb8, 0xb3, 1, 0, 0]];
    const ARGUMENT: [u8; 5] = [0xbf, 0xb3, 1, 0, 0];
    let leads_to = move |from: usize| {
        let near = &code[from..code.len().min(from + NEAR)];
        sweep(near, at + from as u64).map(|insn| insn.flow()).find(|flow| *flow != Flow::Next)
    };
    // Texts of megabytes are searched at each attach, so for what is rare: a call, or an argument's first bytes.
    let is_number = move |from: &usize| NUMBERS.iter().any(|load| code[*from..].starts_with(load));
    let calls = memmem::find_iter(code, &SYSCALL)
        .flat_map(move |call| (call.saturating_sub(NEAR)..call).filter(is_number))
        .filter(move |from| leads_to(*from) == Some(Flow::Syscall))
        .map(|from| (from, None));
    let by_function = memmem::find_iter(code, &ARGUMENT[..3])
        .filter(move |from| code[*from..].starts_with(&ARGUMENT))
        .filter_map(move |from| match leads_to(from) {
            Some(Flow::Call(to) | Flow::Jump(to)) => Some((from, to)),
            _ => None,
        });
    calls.chain(by_function).map(move |(from, to)| (at + from as u64, to))
}

/// Whether a function may make a system call of the number that it is called with: it has a `syscall`, or it calls a
/// function that has one, as the C library's `syscall`. Many functions are called with 435 for other reasons. Follows one
/// call, and into no other file: calls of their own that other files make are not looked for either. Code in no known
/// function (a stripped program's cold part, a wrapper in assembly) is looked at to its first jump or return, at
/// most 256 bytes.
pub(crate) fn takes_number(image: &Image, at: Svma) -> bool {
    const OF_UNKNOWN: u64 = 256;
    let library = image.pointer_words("syscall", Svma(0));
    let function_at = |at: Svma| image.function_at(at).map(|function| image.function(function));
    let straight = |at: Svma| {
        let code = (1..=OF_UNKNOWN).rev().find_map(|len| image.text(at, len))?;
        let last = sweep(code, at.0).find(|insn| !insn.flow().falls_through());
        Some((last.map_or(code, |last| &code[..(last.end() - at.0) as usize]), at))
    };
    let code_at = |at: Svma| match function_at(at) {
        Some(function) => Some((image.text(function.start, function.len)?, function.start)),
        None => straight(at),
    };
    let is_syscall =
        |(code, start): (&[u8], Svma)| sweep(code, start.0).any(|insn| insn.flow() == Flow::Syscall);
    let has_call = |at: Svma| match jump_through(image, at) {
        Some(word) => library.contains(&word),
        None => code_at(at).is_none_or(is_syscall),
    };
    let leads_to_one = |(code, start): (&[u8], Svma)| {
        sweep(code, start.0).any(|insn| {
            let by_word = insn.ip_rel().is_some_and(|word| library.contains(&Svma(word)));
            by_word || insn.flow().target().is_some_and(|to| has_call(Svma(to)))
        })
    };
    has_call(at) || (jump_through(image, at).is_none() && code_at(at).is_some_and(leads_to_one))
}

/// The word through which the code at `at` jumps, as an entry of a PLT does.
fn jump_through(image: &Image, at: Svma) -> Option<Svma> {
    const ENTRY: u64 = 16;
    let jump = sweep(image.text(at, ENTRY)?, at.0).find(|insn| insn.flow() != Flow::Next)?;
    jump.ip_rel().filter(|_| jump.flow() == Flow::Jump(None)).map(Svma)
}

#[cfg(test)]
mod tests {
    use super::{references, thread_calls};

    #[test]
    fn places_are_found_by_their_bytes() {
        // call 0x1010; jmp 0x1010; lea 0x1010(%rip), %rax
        let code = [0xe8, 0x0b, 0, 0, 0, 0xe9, 0x06, 0, 0, 0, 0x48, 0x8d, 0x05, 0xff, 0xff, 0xff, 0xff];
        assert_eq!(references(&code, 0x1000, 0x1010).collect::<Vec<_>>(), [0x1001, 0x1006, 0x100d]);
        // mov $56, %eax; mov %rsi, %rdi; syscall; mov $56, %eax; ret
        let code = [0xb8, 56, 0, 0, 0, 0x48, 0x89, 0xf7, 0x0f, 0x05, 0xb8, 56, 0, 0, 0, 0xc3];
        assert_eq!(thread_calls(&code, 0x1000).collect::<Vec<_>>(), [(0x1000, None)]);
        // mov $435, %edi; call …
        let code = [0xbf, 0xb3, 1, 0, 0, 0xe8, 0, 0, 0, 0];
        assert_eq!(thread_calls(&code, 0x1000).collect::<Vec<_>>(), [(0x1000, Some(0x100a))]);
        // mov $56, %eax; mov $0x50f, %ecx: no syscall
        assert_eq!(thread_calls(&[0xb8, 56, 0, 0, 0, 0xb9, 0x0f, 5, 0, 0, 0xc3], 0x1000).count(), 0);
    }
}
