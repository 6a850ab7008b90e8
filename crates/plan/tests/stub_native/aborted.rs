//! RSEQ: a restartable sequence that the kernel aborts at any of its instructions begins again with what it needs.
//!
//! A trap is placed at each instruction of a stub in turn. The kernel aborts the sequence, if the thread is in one,
//! before it delivers the signal. The handler takes the trap out, and the stub goes on where the kernel says.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use iced_x86::{Decoder, DecoderOptions, FlowControl};

/// Where the trap is, and the byte that belongs there; how many traps were met, and how many of these aborted a
/// sequence.
static AT: AtomicU64 = AtomicU64::new(0);
static BYTE: AtomicU64 = AtomicU64::new(0);
static MET: AtomicU64 = AtomicU64::new(0);
static ABORTED: AtomicU64 = AtomicU64::new(0);

const INT3: u8 = 0xCC;

fn write(at: u64, byte: u8) -> u8 {
    // SAFETY: a byte of generated code, in an arena that is writable; this thread alone runs it.
    unsafe { core::ptr::replace(at as *mut u8, byte) }
}

extern "C" fn on_trap(_: i32, _: *mut libc::siginfo_t, context: *mut libc::c_void) {
    let at = AT.load(Relaxed);
    write(at, BYTE.load(Relaxed) as u8);
    MET.fetch_add(1, Relaxed);
    // SAFETY: the kernel passes this signal's own context; the thread goes on at the trap's own address.
    unsafe {
        let rip = &mut (*context.cast::<libc::ucontext_t>()).uc_mcontext.gregs[libc::REG_RIP as usize];
        match *rip as u64 == at + 1 {
            true => *rip = at as i64,
            false => _ = ABORTED.fetch_add(1, Relaxed),
        }
    }
}

/// The instructions that code at `begin` leads to. Constants lie between them.
fn instructions(code: &[u8], begin: u64) -> BTreeSet<u64> {
    let (mut all, mut open) = (BTreeSet::new(), vec![begin]);
    while let Some(at) = open.pop() {
        let Some(bytes) = code.get(at.wrapping_sub(begin) as usize..).filter(|bytes| !bytes.is_empty())
        else {
            continue;
        };
        if !all.insert(at) {
            continue;
        }
        let insn = Decoder::with_ip(64, bytes, at, DecoderOptions::NONE).decode();
        let flow = insn.flow_control();
        if matches!(flow, FlowControl::ConditionalBranch | FlowControl::UnconditionalBranch) {
            open.push(insn.near_branch_target());
        }
        if matches!(flow, FlowControl::ConditionalBranch | FlowControl::Next | FlowControl::Call) {
            open.push(insn.next_ip());
        }
    }
    all
}

/// Calls `hit` once for each instruction of the code in `begin..end`, with a trap there. Returns how many sequences
/// were aborted.
pub(crate) fn at_each_instruction(begin: u64, end: u64, mut hit: impl FnMut()) -> u64 {
    [&MET, &ABORTED].into_iter().for_each(|count| count.store(0, Relaxed));
    // SAFETY: the handler changes one byte of code, its own context, and statics. The code lies in the arena.
    let (before, code) = unsafe {
        let mut action: libc::sigaction = core::mem::zeroed();
        action.sa_sigaction = on_trap as *const () as usize;
        action.sa_flags = libc::SA_SIGINFO;
        let mut before: libc::sigaction = core::mem::zeroed();
        assert_eq!(libc::sigaction(libc::SIGTRAP, &raw const action, &raw mut before), 0);
        (before, core::slice::from_raw_parts(begin as *const u8, (end - begin) as usize).to_vec())
    };
    for at in instructions(&code, begin) {
        AT.store(at, Relaxed);
        BYTE.store(write(at, INT3).into(), Relaxed);
        hit();
        // It is still there if no thread came by.
        write(at, BYTE.load(Relaxed) as u8);
    }
    // SAFETY: the action that was there before.
    unsafe { libc::sigaction(libc::SIGTRAP, &raw const before, core::ptr::null_mut()) };
    assert!(MET.load(Relaxed) > ABORTED.load(Relaxed), "instructions outside sequences too");
    ABORTED.load(Relaxed)
}
