//! What a signal would have met without us: the disposition that was there before, with all that the kernel
//! does for it.
//!
//! In: a signal that is not ours, as the kernel delivered it. Out: the program's handler called, or the
//! default action about to happen. Invariants: TRAP-1: a foreign signal ends as it would have: same handler,
//! same arguments, same mask, SA_NODEFER and SA_RESETHAND honoured; an ignored fault kills, as in the kernel.
//!
//! Two things are decided when the kernel builds the frame, before any handler can find out what the signal
//! belongs to: the stack, and whether a system call is restarted. Our own action takes both over from the
//! earlier one ([`Saved::inherited`]).
//!
//! | thread A | thread B | |
//! |---|---|---|
//! | delivers, SA_RESETHAND: takes the handler by exchange | the same | one of them calls it, |
//! | | | the other meets the default, as in the kernel |
//! | delivers | `uninstall` puts the action back | A calls what it loaded: as if the signal had come a moment earlier |

use core::sync::atomic::{AtomicU64, Ordering::Relaxed};

use crate::native::sys::{self, MaskChange, SignalAction, flags};
use crate::native::{Context, Info};

/// The disposition before ours. It is written before ours is installed; afterwards only SA_RESETHAND changes
/// it.
#[derive(Debug, Default)]
pub(super) struct Saved {
    handler: AtomicU64,
    flags: AtomicU64,
    restorer: AtomicU64,
    mask: AtomicU64,
}

/// Result of delivering a signal.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Delivered {
    /// The program's handler has returned, or there was nothing to do. The context is as the handler left it.
    Handled,
    /// The default action happens as soon as our handler returns.
    Dying,
}

const fn bit(signal: i32) -> u64 {
    1 << ((signal as u32).wrapping_sub(1) % 64)
}

impl Saved {
    pub(super) const fn new() -> Self {
        Self {
            handler: AtomicU64::new(0),
            flags: AtomicU64::new(0),
            restorer: AtomicU64::new(0),
            mask: AtomicU64::new(0),
        }
    }
    pub(super) fn store(&self, action: &SignalAction) {
        // Relaxed: the system call that installs our action comes between this and any handler that reads it.
        self.handler.store(action.handler, Relaxed);
        self.flags.store(action.flags, Relaxed);
        self.restorer.store(action.restorer, Relaxed);
        self.mask.store(action.mask, Relaxed);
    }
    pub(super) fn load(&self) -> SignalAction {
        SignalAction {
            handler: self.handler.load(Relaxed),
            flags: self.flags.load(Relaxed),
            restorer: self.restorer.load(Relaxed),
            mask: self.mask.load(Relaxed),
        }
    }
    /// The flags of `action` that the kernel acts on before a handler runs. An ignored signal interrupts no
    /// system call; restarting it is the closest to that.
    pub(super) const fn inherited(action: &SignalAction) -> u64 {
        let restart = if action.handler == sys::IGNORE { flags::RESTART } else { 0 };
        action.flags & (flags::ON_STACK | flags::RESTART) | restart
    }

    /// Delivers a signal to the program's own disposition.
    ///
    /// # Safety
    /// Called by our handler of `signal`, or by that of the trap that the signal is about, with the kernel's
    /// own structures.
    pub(super) unsafe fn deliver(&self, signal: i32, info: &mut Info, context: &mut Context) -> Delivered {
        let mut action = self.load();
        if action.handler > sys::IGNORE && action.flags & flags::RESET_HAND != 0 {
            action.handler = self.handler.swap(sys::DEFAULT, Relaxed);
        }
        match action.handler {
            sys::IGNORE if !info.is_forced() => Delivered::Handled,
            sys::DEFAULT | sys::IGNORE => {
                die(signal, info, context);
                Delivered::Dying
            }
            handler => {
                let own = if action.flags & flags::NO_DEFER != 0 { 0 } else { bit(signal) };
                let before = sys::mask(MaskChange::Block, action.mask | own);
                // SAFETY: the program installed this address for this signal. Handlers that did not request
                // the other arguments get them too, as from the kernel.
                unsafe {
                    let handler: extern "C" fn(i32, *mut Info, *mut Context) =
                        core::mem::transmute(handler as *const ());
                    handler(signal, info, context);
                }
                sys::mask(MaskChange::Set, before);
                Delivered::Handled
            }
        }
    }
}

/// Makes the default action happen, at the state in `context` and with the kernel's own siginfo: the signal
/// is pending and blocked until our handler returns to that state.
pub(super) fn die(signal: i32, info: &Info, context: &mut Context) {
    // SAFETY: the default action has no address that could be called.
    let _ = unsafe { sys::set_action(signal, &SignalAction::default()) };
    sys::mask(MaskChange::Block, bit(signal));
    sys::raise(signal, info);
    context.mask &= !bit(signal);
}
