//! DLV-1, DLV-2: the program's handler sees the original address of a fault in a copy, and nothing else changes.

use std::sync::atomic::{AtomicU64, Ordering};

use trapline_plan::x86_64::stub::deliver;
use trapline_record::control::{at, delivery};

use crate::arena::{call, get, set};
use crate::traps::{Served, child, exited};

const FAULTS: [u8; 6] = [0x31, 0xC9, 0x48, 0x8B, 0x01, 0xC3]; // xor ecx, ecx; mov rax, [rcx]; ret
const ORIGINAL: u64 = 0x1234_5678;

static SEEN: AtomicU64 = AtomicU64::new(0);

/// Where threads go on: a function, in place of the one that faulted.
extern "C" fn answer() -> u64 {
    42
}

/// The program's handler: notes the address, and goes on elsewhere.
extern "C" fn note(signal: i32, info: *mut libc::siginfo_t, context: *mut libc::c_void) {
    // SAFETY: the kernel passes this signal's own information and context; the test that calls it itself passes
    // its own, of the same form.
    unsafe {
        assert!(signal == libc::SIGSEGV && !info.is_null());
        let context = context.cast::<libc::ucontext_t>();
        let rip = &mut (*context).uc_mcontext.gregs[libc::REG_RIP as usize];
        SEEN.store(rip.cast_unsigned(), Ordering::SeqCst);
        *rip = (answer as *const () as u64).cast_signed();
    }
}

/// A handler with a patched entry, and code that faults.
struct Program {
    served: Served,
    entry: u64,
    site: u64,
    /// `sa_flags` of the handler.
    flags: u64,
}

impl Program {
    fn new(red_zone: bool, informed: bool) -> Self {
        let mut served = Served::new();
        let mut out = Vec::new();
        deliver(&mut out, served.arena.next(), (served.segment(0), informed), red_zone);
        out.extend([0x48, 0xB8]); // mov rax, note
        out.extend((note as *const () as u64).to_le_bytes());
        out.extend([0xFF, 0xE0]); // jmp rax
        let entry = served.arena.put(&out);
        let site = served.arena.put(&FAULTS);
        let flags = 0x0400_0000 | if informed { libc::SA_SIGINFO as u64 } else { 0 };
        Self { served, entry, site, flags }
    }
    /// The instruction that faults.
    const fn copy(&self) -> u64 {
        self.site + 2
    }
    /// The address that the handler sees; with SIGTRAP blocked, if `blocked`.
    fn seen(&self, blocked: bool) -> Option<u64> {
        let action: [u64; 4] = [self.entry, self.flags, self.served.handler.restorer, 0];
        let trap = 1u64 << (libc::SIGTRAP - 1);
        let status = child(|| {
            // SAFETY: the kernel's own layouts, with a handler and a restorer that stay mapped.
            unsafe {
                libc::syscall(libc::SYS_rt_sigaction, libc::SIGSEGV, action.as_ptr(), 0, 8);
                if blocked {
                    libc::syscall(libc::SYS_rt_sigprocmask, libc::SIG_BLOCK, &raw const trap, 0, 8);
                }
            }
            let done = call(self.site, 0) == 42;
            let data = self.served.arena.data() + 0x1800;
            set(data, SEEN.load(Ordering::SeqCst));
            done.into()
        });
        (exited(status) == Some(1)).then(|| get(self.served.arena.data() + 0x1800))
    }
}

#[test]
fn the_handler_sees_the_original_of_a_copy() {
    for (red_zone, informed) in [(false, true), (true, true), (false, false)] {
        let program = Program::new(red_zone, informed);
        let (first, copy) = (program.served.segment(0), program.copy());
        assert_eq!(program.seen(false), Some(copy), "nothing is known of it");
        let others = [(copy - 1, 1), (copy, 2), (copy + 1, 3)];
        program.served.guards(first, &others);
        assert_eq!(program.seen(false), Some(copy), "guards are no copies");
        let entry = (copy | delivery::COPY, ORIGINAL);
        program.served.guards(first, &[others[0], others[1], others[2], entry]);
        assert_eq!(program.seen(false), Some(ORIGINAL));
        assert_eq!(program.seen(true), Some(ORIGINAL), "no guard is met there");
        program.served.guards(first, &[((copy - 1) | delivery::COPY, 1), ((copy + 1) | delivery::COPY, 2)]);
        assert_eq!(program.seen(false), Some(copy), "only the instruction itself");
    }
}

#[test]
fn copies_of_later_segments_are_found() {
    let program = Program::new(false, true);
    let (first, second) = (program.served.segment(0), program.served.segment(1));
    program.served.guards(first, &[(1, 2)]);
    program.served.guards(second, &[(program.copy() | delivery::COPY, ORIGINAL)]);
    assert_eq!(program.seen(false), Some(program.copy()), "not linked");
    set(first + at::NEXT_SEGMENT, second);
    assert_eq!(program.seen(false), Some(ORIGINAL));
}

#[test]
fn no_thread_is_sent_to_a_guard_that_it_cannot_trap_at() {
    let program = Program::new(false, true);
    let entry = (program.copy() | delivery::COPY, ORIGINAL | delivery::TRAPS);
    program.served.guards(program.served.segment(0), &[entry]);
    assert_eq!(program.seen(false), Some(ORIGINAL));
    assert_eq!(program.seen(true), Some(program.copy()));
}

/// What the program calls itself keeps what it passes, even if it looks like a fault's.
#[test]
fn a_handler_that_is_called_as_a_function_gets_what_it_is_given() {
    let program = Program::new(false, true);
    let copy = program.copy();
    program.served.guards(program.served.segment(0), &[(copy | delivery::COPY, ORIGINAL)]);
    // SAFETY: zeros are values of both types. The entry is a handler's, and touches nothing else.
    unsafe {
        let mut info: libc::siginfo_t = core::mem::zeroed();
        (info.si_signo, info.si_code) = (libc::SIGSEGV, 1);
        let mut context: libc::ucontext_t = core::mem::zeroed();
        context.uc_mcontext.gregs[libc::REG_RIP as usize] = copy.cast_signed();
        type Handler = extern "C" fn(i32, *mut libc::siginfo_t, *mut libc::c_void);
        let handler = core::mem::transmute::<u64, Handler>(program.entry);
        handler(libc::SIGSEGV, &raw mut info, (&raw mut context).cast());
    }
    assert_eq!(SEEN.load(Ordering::SeqCst), copy);
}
