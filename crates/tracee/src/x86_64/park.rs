//! Instructions that hold a program at its entry point.
//!
//! The stack in [`waiting`], rsp being the program's at its entry:
//!
//! ```text
//!   rsp - 32    the word at ALIVE, as it was before the turns
//!   rsp - 24    turns that are left
//!   rsp - 8     ALIVE's word on its way to rsp - 32; rax during the comparison
//!   rsp         the program's: argc and what follows
//! ```
//!
//! ```text
//!   + 0     [rsp - 32] = [+ 56];  [rsp - 24] = turns
//!   + 19    [rsp - 24] -= 1 until it is 0
//!   + 28    + 0 again if [+ 56] differs from [rsp - 32], else jmp [+ 64]
//!   + 56    ALIVE: a word that the tracer changes
//!   + 64    the entry's address
//! ```

use std::sync::OnceLock;
use std::time::{Duration, Instant};

/// `int3`
pub(crate) const TRAP: [u8; 1] = [0xcc];
/// Distance from the trap to the pc of a thread that has taken it, in bytes.
pub(crate) const BEHIND: u64 = 1;
/// Whether a breakpoint of the processor can hold a thread before an instruction.
pub(crate) const IS_HELD: bool = true;
/// Length of [`waiting`] in bytes.
pub(crate) const LEN: usize = 72;
/// Offset in it of the word that shows that the tracer lives.
pub(crate) const ALIVE: u64 = 56;
/// Time between two looks at that word: CPU time where the program spins, so that it waits longer on a busy machine. The
/// word must stay the same from one look to the next, so a program waits up to twice as long for a tracer that died.
const BETWEEN_LOOKS: Duration = Duration::from_millis(400);

/// Turns between two looks. A `pause` takes 10 to 140 cycles, depending on the processor.
fn turns() -> u32 {
    const SOME: u32 = 1 << 12;
    static TURNS: OnceLock<u32> = OnceLock::new();
    *TURNS.get_or_init(|| {
        let took = || {
            let start = Instant::now();
            (0..SOME).for_each(|_| std::hint::spin_loop());
            start.elapsed()
        };
        // The shortest measurement was not interrupted.
        let shortest = (0..8).map(|_| took()).min().unwrap_or_default().max(Duration::from_micros(1));
        let turns = BETWEEN_LOOKS.as_nanos() * u128::from(SOME) / shortest.as_nanos();
        u32::try_from(turns).unwrap_or(u32::MAX).clamp(1 << 22, 1 << 30)
    })
}

/// Code that waits as long as the word at [`ALIVE`] changes, then goes to `entry`. It changes no register. On
/// the stack it changes only what lies 8 to 32 bytes below the stack pointer. Signal handlers, which
/// constructors may have installed, leave that area alone, and a program has nothing there at its entry.
pub(crate) fn waiting(entry: u64) -> [u8; LEN] {
    let mut code = [0x90; LEN];
    let turns = turns().to_le_bytes();
    let parts: [&[u8]; 11] = [
        &[0xff, 0x35, 50, 0, 0, 0],       // 0: push [rip → 56]
        &[0x8f, 0x44, 0x24, 0xe0],        // 6: pop [rsp − 32]
        &[0x48, 0xc7, 0x44, 0x24, 0xe8],  // 10: mov qword [rsp − 24], turns
        &turns,                           // 15
        &[0xf3, 0x90],                    // 19: pause
        &[0x48, 0xff, 0x4c, 0x24, 0xe8],  // 21: dec qword [rsp − 24]
        &[0x75, 0xf7],                    // 26: jnz 19
        &[0x50],                          // 28: push rax
        &[0x48, 0x8b, 0x05, 20, 0, 0, 0], // 29: mov rax, [rip → 56]
        &[0x48, 0x3b, 0x44, 0x24, 0xe8],  // 36: cmp rax, [rsp − 24], which is that of 6
        &[0x58, 0x75, 0xd4],              // 41: pop rax; 42: jne 0
    ];
    let mut at = 0;
    for part in parts {
        code[at..at + part.len()].copy_from_slice(part);
        at += part.len();
    }
    code[at..at + 6].copy_from_slice(&[0xff, 0x25, 14, 0, 0, 0]); // 44: jmp [rip → 64]
    code[56..64].fill(0);
    code[64..].copy_from_slice(&entry.to_le_bytes());
    code
}

/// Length of [`ambush`] in bytes.
pub(crate) const AMBUSH: usize = 120;
/// Offset in it of the word that shows that the tracer lives.
pub(crate) const AMBUSH_ALIVE: u64 = 88;
/// Bytes of the jump to it.
pub(crate) const LEAP: usize = 5;
/// Number of sleeps between two looks at that word, and the length of each.
const SLEEPS: u32 = BETWEEN_LOOKS.as_millis() as u32;
const SLEEP: Duration = Duration::from_millis(1);
const NANOSLEEP: u8 = libc::SYS_nanosleep as u8;

/// Code in place of a loader's function that only returns ([`crate::ambush`]). `list`: the address of its
/// `r_debug`. When that says that all libraries are mapped, it says that it was reached, and waits as long as the
/// word at [`AMBUSH_ALIVE`] changes. `may_call`: no filter forbids system calls, so it sleeps in between, and takes no
/// CPU from others; else it spins.
///
/// ```text
///   + 0     r8 = [+ 96];  ret if [r8 + 4] = 2, or [r8 + 8] = 0, or [r8 + 24] is not 0
///   + 28    [r8 + 4] = 1
///   + 36    r9 = [+ 88], r10d = turns
///   + 49    a sleep, or a pause;  r10d -= 1;  until it is 0
///   + 70    + 36 again if [+ 88] differs from r9
///   + 79    [r8 + 4] = 2;  ret
///   + 88    the word that the tracer changes
///   + 96    list
///   + 104   the length of a sleep: seconds, nanoseconds
///
///   uses    rax, rcx, rsi, rdi, r8 to r11 and flags, as any function may; no stack
/// ```
pub(crate) fn ambush(list: u64, may_call: bool) -> [u8; AMBUSH] {
    let mut code = [0x90; AMBUSH];
    let turns = if may_call { SLEEPS } else { turns() }.to_le_bytes();
    // lea rdi, [rip -> 104]; xor esi, esi; mov eax, nanosleep; syscall
    let sleep = [0x48, 0x8d, 0x3d, 48, 0, 0, 0, 0x31, 0xf6, 0xb8, NANOSLEEP, 0, 0, 0, 0x0f, 0x05];
    let mut pause = [0x90; 16];
    pause[..2].copy_from_slice(&[0xf3, 0x90]);
    let parts: [&[u8]; 16] = [
        &[0x4c, 0x8b, 0x05, 89, 0, 0, 0],       // 0: mov r8, [rip -> 96]
        &[0x41, 0x83, 0x78, 0x04, 2, 0x74, 73], // 7: cmp dword [r8 + 4], 2; 12: je 87
        &[0x49, 0x83, 0x78, 0x08, 0],           // 14: cmp qword [r8 + 8], 0
        &[0x74, 66],                            // 19: je 87
        &[0x41, 0x83, 0x78, 0x18, 0, 0x75, 59], // 21: cmp dword [r8 + 24], 0; 26: jne 87
        &[0x41, 0xc7, 0x40, 0x04, 1, 0, 0, 0],  // 28: mov dword [r8 + 4], 1
        &[0x4c, 0x8b, 0x0d, 45, 0, 0, 0],       // 36: mov r9, [rip -> 88]
        &[0x41, 0xba],                          // 43: mov r10d, turns
        &turns,                                 // 45
        if may_call { &sleep } else { &pause }, // 49
        &[0x41, 0xff, 0xca],                    // 65: dec r10d
        &[0x75, 0xeb],                          // 68: jnz 49
        &[0x4c, 0x3b, 0x0d, 11, 0, 0, 0],       // 70: cmp r9, [rip -> 88]
        &[0x75, 0xd5],                          // 77: jne 36
        &[0x41, 0xc7, 0x40, 0x04, 2, 0, 0, 0],  // 79: mov dword [r8 + 4], 2
        &[0xc3],                                // 87: ret
    ];
    let mut at = 0;
    for part in parts {
        code[at..at + part.len()].copy_from_slice(part);
        at += part.len();
    }
    code[88..96].fill(0);
    code[96..104].copy_from_slice(&list.to_le_bytes());
    code[104..112].fill(0);
    code[112..].copy_from_slice(&u64::from(SLEEP.subsec_nanos()).to_le_bytes());
    code
}

/// The jump from a function to that code, if the function only returns, and what follows in it is padding.
pub(crate) fn leap(at: u64, bytes: [u8; LEAP], to: u64) -> Option<[u8; LEAP]> {
    const PADDING: [[u8; 4]; 7] = [
        [0x66, 0x66, 0x2e, 0x0f],
        [0x66, 0x2e, 0x0f, 0x1f],
        [0x2e, 0x0f, 0x1f, 0x84],
        [0x0f, 0x1f, 0x80, 0x00],
        [0x0f, 0x1f, 0x84, 0x00],
        [0x90; 4],
        [0xcc; 4],
    ];
    let is_bare = bytes[0] == 0xc3 && PADDING.iter().any(|padding| bytes[1..] == *padding);
    let rel = i32::try_from(to.wrapping_sub(at + LEAP as u64).cast_signed()).ok().filter(|_| is_bare)?;
    let mut jump = [0xe9; LEAP];
    jump[1..].copy_from_slice(&rel.to_le_bytes());
    Some(jump)
}

#[cfg(test)]
mod tests {
    use super::{ALIVE, AMBUSH, AMBUSH_ALIVE, LEN, ambush, waiting};

    #[test]
    fn turns_take_about_as_long_as_is_wanted() {
        let one = super::BETWEEN_LOOKS.as_secs_f64() / f64::from(super::turns());
        assert!((0.5e-9..300e-9).contains(&one), "{one} s a turn");
    }

    #[test]
    fn jumps_and_words_are_where_they_name_each_other() {
        let code = waiting(0x1122_3344_5566_7788);
        let rel = |at: usize| i32::from_le_bytes(code[at..at + 4].try_into().expect("four"));
        assert_eq!(6 + i64::from(rel(2)), ALIVE as i64);
        assert_eq!(36 + i64::from(rel(32)), ALIVE as i64);
        assert_eq!(50 + i64::from(rel(46)), LEN as i64 - 8);
        assert_eq!((28 + i32::from(code[27] as i8), 44 + i32::from(code[43] as i8)), (19, 0));
        assert_eq!(code[64..], 0x1122_3344_5566_7788_u64.to_le_bytes());
    }

    /// Each displacement, by the picture at its head.
    #[test]
    fn an_ambush_names_its_own_words_and_its_end() {
        for may_call in [false, true] {
            let code = ambush(0x1122_3344_5566_7788, may_call);
            let rel = |at: usize| {
                at as i64 + 4 + i64::from(i32::from_le_bytes(code[at..at + 4].try_into().expect("4")))
            };
            let short = |at: usize| at as i64 + 2 + i64::from(code[at + 1] as i8);
            assert_eq!((rel(3), rel(39), rel(73)), (96, AMBUSH_ALIVE as i64, AMBUSH_ALIVE as i64));
            assert_eq!((short(12), short(19), short(26)), (87, 87, 87));
            assert_eq!((short(68), short(77), code[87]), (49, 36, 0xc3));
            assert_eq!(code[96..104], 0x1122_3344_5566_7788_u64.to_le_bytes());
            if may_call {
                assert_eq!((rel(52), &code[63..65]), (104, &[0x0f, 0x05][..]));
            }
            assert_eq!(code.len(), AMBUSH);
        }
    }
}
