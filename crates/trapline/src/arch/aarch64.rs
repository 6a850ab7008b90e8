//! What stubs and the kernel can do on arm64, and what code shows by its words.

use trapline_image::Image;
use trapline_record::Svma;

/// Threads that find a compact ring full can wait for the reader (`stub/wait.rs`).
pub(crate) const CAN_WAIT: bool = false;

/// Number of registers that hold integer arguments, in C.
pub(crate) const GENERAL_ARGUMENTS: u8 = 8;
/// General registers in which functions return, as far as records hold them.
pub(crate) const RETURNED: u8 = 8;
/// The same for functions of Go's.
pub(crate) const GO_RETURNED: u8 = 8;
/// Hardware numbers of the first six of them.
pub(crate) const ARGUMENTS: [u8; 6] = [0, 1, 2, 3, 4, 5];
/// Distance from the stack pointer at a function's entry to the first argument there.
pub(crate) const FIRST_ON_STACK: i32 = 0;
/// Names of the general registers, by their hardware numbers.
pub(crate) const REGISTERS: [&str; 32] = [
    "x0", "x1", "x2", "x3", "x4", "x5", "x6", "x7", "x8", "x9", "x10", "x11", "x12", "x13", "x14", "x15",
    "x16", "x17", "x18", "x19", "x20", "x21", "x22", "x23", "x24", "x25", "x26", "x27", "x28", "x29", "x30",
    "sp",
];
/// Whether rows that belong to threads can be filtered by thread names: only the reader knows names here.
pub(crate) const FILTERS_ROWS_BY_NAME: bool = false;
/// Whether a register holds Go's goroutine, so that every return finds what its entry left.
pub(crate) const GOROUTINE_IN_REGISTER: bool = true;
/// Why writes by the kernel are not seen, where they are not.
pub(crate) const KERNEL_UNSEEN: &str = "on arm64";
/// Whether handlers of faults can be shown the original addresses of faults in copies.
pub(crate) const DELIVERS_FAULTS: bool = false;
/// Whether the kernel reports only one of several watched places that one store touches.
pub(crate) const REPORTS_ONE_PLACE: bool = true;

/// Which general register holds the program's value of a register while a stub of a Go function runs: itself.
pub(crate) const fn held_in_go(register: u8) -> u8 {
    register
}

/// Places in code from which a call or jump leads to an address. `at` is the address of the code.
pub(crate) fn references(code: &[u8], at: u64, to: u64) -> impl Iterator<Item = u64> {
    words(code, at)
        .filter(move |&(word, at)| word & 0x7c00_0000 == 0x1400_0000 && branch(word, at) == to)
        .map(|(_, at)| at)
}

/// Where `b` or `bl` leads to.
fn branch(word: u32, at: u64) -> u64 {
    at.wrapping_add_signed(i64::from((word << 6).cast_signed() >> 6) * 4)
}

/// Places in code at which a thread may be made by a system call of its own: `mov x8, #220` (clone) or
/// `mov x8, #435` (clone3) shortly before a `svc`; or `mov x0, #435`, for a function that takes the number. Which
/// function that is is not looked for.
pub(crate) fn thread_calls(code: &[u8], at: u64) -> impl Iterator<Item = (u64, Option<u64>)> {
    const NEAR: usize = 16;
    const SVC: u32 = 0xd400_0001;
    let moves =
        |word: u32, number: u32, register: u32| word & 0x7fff_ffff == 0x5280_0000 | number << 5 | register;
    words(code, at)
        .filter(move |&(word, place)| {
            let behind = &code[(place - at) as usize..];
            let calls = || words(behind, place).take(NEAR).any(|(word, _)| word == SVC);
            moves(word, 435, 0) || ((moves(word, 220, 8) || moves(word, 435, 8)) && calls())
        })
        .map(|(_, at)| (at, None))
}

/// Whether a function may make a system call of the number that it is called with.
pub(crate) const fn takes_number(_: &Image, _: Svma) -> bool {
    true
}

fn words(code: &[u8], at: u64) -> impl Iterator<Item = (u32, u64)> {
    let words = code.chunks_exact(4).map(|word| word.try_into().map_or(0, u32::from_le_bytes));
    words.zip((at..).step_by(4))
}

#[cfg(test)]
mod tests {
    use super::{references, thread_calls};

    fn code(words: &[u32]) -> Vec<u8> {
        words.iter().flat_map(|word| word.to_le_bytes()).collect()
    }

    #[test]
    fn places_are_found_by_their_words() {
        // bl 0x1008; b 0x1008; b 0x1004
        let branches = code(&[0x9400_0002, 0x1400_0001, 0x17ff_ffff]);
        assert_eq!(references(&branches, 0x1000, 0x1008).collect::<Vec<_>>(), [0x1000, 0x1004]);
        assert_eq!(references(&branches, 0x1000, 0x1004).collect::<Vec<_>>(), [0x1008]);
        // mov x8, #220; svc #0; mov w8, #220; ret
        let calls = code(&[0xd280_1b88, 0xd400_0001, 0x5280_1b88, 0xd65f_03c0]);
        assert_eq!(thread_calls(&calls, 0x1000).collect::<Vec<_>>(), [(0x1000, None)]);
        // mov w0, #435
        assert_eq!(thread_calls(&code(&[0x5280_3660]), 0x1000).collect::<Vec<_>>(), [(0x1000, None)]);
    }
}
