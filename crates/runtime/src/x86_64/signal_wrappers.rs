//! Signal wrappers: the program's handlers are called with a context without addresses of copies. They are
//! for signals that are sent, which may arrive while a thread is in displaced code.
//!
//! In: the program's dispositions, as it sets them and as they are. Out: the same, with a *signal wrapper*
//! in place of each handler's address: code of ours that calls the handler. Invariants: TRAP-1;
//! TRAP-2; STD-1 a wrapper belongs to one handler for good. So nothing else has to be kept: flags, mask and
//! restorer stay in the kernel, and are the program's own.
//! Does not: touch the signals that [`install`](fn@super::install) handles, or SIGKILL and SIGSTOP, or the
//! two that C libraries use themselves (32 and 33: a cancelled thread is unwound through their handler).
//!
//! A handler sees the original's address in its context (as `Windows` knows it). If it leaves that address
//! there, the thread goes on in the copy, so no instruction is executed twice, and no hit is counted twice.
//! The handler runs on the kernel's signal frame; our frame is between it and the restorer.
//!
//! ```text
//!   wrapper n, first + 16 · n    endbr64; mov ecx, n; jmp on_signal; padding
//!   at its start                 edi = signal, rsi = siginfo, rdx = context, [rsp] = the restorer
//!   on_signal                    the same, and ecx = n: its fourth argument
//!   the handler                  the same arguments; [rsp] = return address in on_signal
//! ```
//!
//! # Interleavings
//!
//! | thread A | thread B | |
//! |---|---|---|
//! | is in a wrapper | changes the disposition | A calls the handler that the kernel chose, as without us |
//! | `put`: reads an action, sets it with a wrapper | sets another between the two | A gets B's from the exchange, |
//! | | | and sets that with its wrapper |
//! | the same | a signal arrives; its action has SA_RESETHAND | the exchange gives the default, which is put back |
//! | claims a place for a handler | the same handler | one of both compare-and-swaps wins; |
//! | | | a second place for one handler would do no harm |
//! | a child of `vfork` sets actions | its parent, asleep | the kernel keeps them separate, and places are only ever added |
//!
//! # What is not hidden
//!
//! - A handler that was set by a raw system call gets its wrapper at the next [`put_all`]; until then it has
//!   none, and neither has the 257th.
//! - A handler may move the instruction pointer, so that the thread returns to the shown address later
//!   (goroutines are preempted so). Then it returns to the probed instruction, which is hit once more. The
//!   kernel, which holds signals back until its copy has run, shows the next instruction there.
//! - One instruction may be several in the copy (a relative call is). Then its address is shown from the
//!   first of them to the last, and the stack pointer as it is.
//! - In stubs, before the first displaced instruction, the address is the stub's.
//! - Tools that read registers from outside (ptrace, perf) read the copy's address.

use core::arch::global_asm;
use core::sync::atomic::{AtomicU64, Ordering::AcqRel, Ordering::Acquire};

use super::context::Context;
use super::sys::{self, SignalAction};
use crate::trap::Info;
use crate::trap::block::{ALL, block};

/// Maximum number of handlers. The assembly contains the same number.
const ROOM: usize = 256;
/// Length of one wrapper in bytes.
const LEN: u64 = 16;

/// The handler that each wrapper calls; 0: none yet.
static HANDLERS: [AtomicU64; ROOM] = [const { AtomicU64::new(0) }; ROOM];

// Each wrapper: endbr64; mov ecx, its number; jmp on_signal.
global_asm!(
    ".pushsection .text.trapline_stand_ins, \"ax\", @progbits",
    ".hidden trapline_runtime_stand_ins",
    ".globl trapline_runtime_stand_ins",
    ".type trapline_runtime_stand_ins, @function",
    ".balign 16",
    "trapline_runtime_stand_ins:",
    ".set .Ltrapline_stand_in, 0",
    ".rept 256",
    "endbr64",
    ".byte 0xb9",
    ".long .Ltrapline_stand_in",
    "jmp {on_signal}",
    ".balign 16",
    ".set .Ltrapline_stand_in, .Ltrapline_stand_in + 1",
    ".endr",
    ".size trapline_runtime_stand_ins, . - trapline_runtime_stand_ins",
    ".popsection",
    on_signal = sym on_signal,
);

unsafe extern "C" {
    fn trapline_runtime_stand_ins();
}

fn first() -> u64 {
    trapline_runtime_stand_ins as *const () as u64
}

/// # Safety
/// Called by the kernel, through wrapper `index`.
unsafe extern "C" fn on_signal(signal: i32, info: *mut Info, context: *mut Context, index: u32) {
    let Some(handler) = HANDLERS.get(index as usize).map(|handler| handler.load(Acquire)) else { return };
    // SAFETY: the kernel's frame has both for every signal, with or without SA_SIGINFO.
    let (pc, original) = unsafe {
        let pc = (*context).pc();
        (pc, block().and_then(|block| block.original(pc)))
    };
    if let Some(original) = original {
        // SAFETY: as above. In SIGSYS, siginfo contains the address behind the call.
        unsafe {
            (*context).set_pc(original);
            if (*info).is_forced() && (*info).addr == pc {
                (*info).addr = original;
            }
        }
    }
    // SAFETY: the program installed this address. A handler that did not request the other arguments gets
    // them from the kernel, too.
    unsafe {
        let handler: extern "C" fn(i32, *mut Info, *mut Context) = core::mem::transmute(handler as *const ());
        handler(signal, info, context);
        if original == Some((*context).pc()) {
            (*context).set_pc(pc);
        }
    }
}

/// Whether a signal's handlers get wrappers.
fn is_sent(signal: i32) -> bool {
    const KILL: i32 = 9;
    const STOP: i32 = 19;
    let is_ours = ALL.iter().any(|of| *of as i32 == signal);
    (1..=64).contains(&signal) && ![KILL, STOP, 32, 33].contains(&signal) && !is_ours
}

/// The handler that the wrapper at an address calls.
fn behind(address: u64) -> Option<u64> {
    let into = address.wrapping_sub(first());
    let handler = HANDLERS.get((into / LEN) as usize)?.load(Acquire);
    (handler != 0 && into.is_multiple_of(LEN)).then_some(handler)
}

/// Address of a handler's wrapper. `None`: all are used.
fn wrapper(handler: u64) -> Option<u64> {
    let claimed = |place: &AtomicU64| match place.compare_exchange(0, handler, AcqRel, Acquire) {
        Ok(_) => true,
        Err(found) => found == handler,
    };
    let index = HANDLERS.iter().position(claimed)?;
    Some(first() + index as u64 * LEN)
}

/// An action with a wrapper in place of its handler.
fn shown(signal: i32, action: &SignalAction) -> SignalAction {
    let is_handler = action.handler > sys::IGNORE && behind(action.handler).is_none();
    let wrapper = if is_sent(signal) && is_handler { wrapper(action.handler) } else { None };
    SignalAction { handler: wrapper.unwrap_or(action.handler), ..*action }
}

/// Installs wrappers for all handlers that exist.
pub fn put_all() {
    (1..=64).filter(|signal| is_sent(*signal)).for_each(put);
}

fn put(signal: i32) {
    let Ok(mut there) = sys::action(signal) else { return };
    let mut wanted = shown(signal, &there);
    if wanted == there {
        return;
    }
    loop {
        // SAFETY: the program's own action, or the same through a wrapper.
        let Ok(replaced) = (unsafe { sys::set_action(signal, &wanted) }) else { return };
        if replaced == there {
            return;
        }
        // Another thread set this action meanwhile, so it is the one to be installed.
        there = wanted;
        wanted = shown(signal, &replaced);
    }
}

/// rt_sigaction as the program sees it: handlers go in and come out as its own.
///
/// # Errors
/// The kernel's error number.
///
/// # Safety
/// As for the system call: `new` leads to a handler for its signal. An action without a restorer gets ours.
pub unsafe fn change(signal: i32, new: Option<&SignalAction>) -> Result<SignalAction, i32> {
    let old = match new {
        Some(new) => {
            let mut new = shown(signal, new);
            if new.flags & sys::RESTORER == 0 {
                (new.flags, new.restorer) = (new.flags | sys::RESTORER, sys::restorer());
            }
            // SAFETY: the caller promises it.
            unsafe { sys::set_action(signal, &new) }
        }
        None => sys::action(signal),
    }?;
    Ok(SignalAction { handler: behind(old.handler).unwrap_or(old.handler), ..old })
}

#[cfg(test)]
mod tests {
    use super::{behind, first, shown, wrapper};
    use crate::x86_64::sys::SignalAction;

    #[test]
    fn a_handler_has_one_stand_in_and_a_stand_in_one_handler() {
        let (a, b) = (wrapper(0x1234_5678).unwrap(), wrapper(0x2345_6789).unwrap());
        assert_ne!(a, b);
        assert_eq!(
            (wrapper(0x1234_5678), behind(a), behind(b)),
            (Some(a), Some(0x1234_5678), Some(0x2345_6789))
        );
        assert_eq!((behind(a + 1), behind(first() - 16), behind(first() + 256 * 16)), (None, None, None));
    }

    #[test]
    fn what_is_no_handler_or_not_ours_to_front_stays() {
        let action = |handler| SignalAction { handler, ..SignalAction::default() };
        for (signal, handler) in [(10, 0), (10, 1), (9, 0x77), (19, 0x77), (32, 0x77), (11, 0x77), (5, 0x77)]
        {
            assert_eq!(shown(signal, &action(handler)), action(handler), "{signal}");
        }
        let once = shown(10, &action(0x77));
        assert_eq!((behind(once.handler), shown(10, &once)), (Some(0x77), once));
    }
}
