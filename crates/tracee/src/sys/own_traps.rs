//! Traps of our own breakpoints that come without their reason (see [`crate::shield`]).
//!
//! In: a piece of code that traps. Out: its result; such a trap does not end this process. Does not: take SIGTRAP from
//! code that has a handler for it.

use std::io;

/// Does nothing for a trap without a reason. For any other SIGTRAP it does what would have been done without it.
extern "C" fn handler(_: i32, info: *mut libc::siginfo_t, _: *mut libc::c_void) {
    // SAFETY: the kernel passes a live siginfo_t to a handler with SA_SIGINFO.
    let code = unsafe { (*info).si_code };
    if !matches!(code, libc::TRAP_BRKPT | libc::TRAP_HWBKPT) {
        // SAFETY: both are async-signal-safe, and take numbers.
        unsafe {
            libc::signal(libc::SIGTRAP, libc::SIG_DFL);
            libc::raise(libc::SIGTRAP);
        }
    }
}

fn action(new: Option<&libc::sigaction>) -> io::Result<libc::sigaction> {
    // SAFETY: sigaction is plain integers; all-zero is a value of it.
    let mut old: libc::sigaction = unsafe { std::mem::zeroed() };
    let new = new.map_or(std::ptr::null(), std::ptr::from_ref);
    // SAFETY: `new` is null or live, and its handler has the signature that its flags state, and stays; `old` is live.
    super::check(unsafe { libc::sigaction(libc::SIGTRAP, new, &raw mut old) }.into())?;
    Ok(old)
}

/// Runs code whose breakpoints are in this process. `None` if SIGTRAP has a handler already, which would have to know
/// such traps.
pub(crate) fn survived<R>(code: impl FnOnce() -> R) -> Option<R> {
    let before = action(None).ok()?;
    if before.sa_sigaction != libc::SIG_DFL {
        return None;
    }
    // SAFETY: as above.
    let mut own: libc::sigaction = unsafe { std::mem::zeroed() };
    own.sa_sigaction = handler as *const () as usize;
    own.sa_flags = libc::SA_SIGINFO | libc::SA_RESTART;
    action(Some(&own)).ok()?;
    let result = code();
    // Another thread may have put a handler in its place meanwhile, which stays.
    if action(None).is_ok_and(|now| now.sa_sigaction == own.sa_sigaction) {
        drop(action(Some(&before)));
    }
    Some(result)
}

#[cfg(test)]
mod tests {
    use super::{action, survived};

    #[test]
    fn a_trap_without_a_reason_is_survived_and_the_old_action_is_back() {
        let before = action(None).expect("it can be read").sa_sigaction;
        assert_eq!(before, libc::SIG_DFL);
        let sent = survived(|| {
            // SAFETY: siginfo_t is plain integers; all-zero is a value of it.
            let mut info: libc::siginfo_t = unsafe { std::mem::zeroed() };
            (info.si_signo, info.si_code) = (libc::SIGTRAP, libc::TRAP_BRKPT);
            // SAFETY: the call takes numbers and a pointer to a live siginfo_t.
            unsafe {
                let (pid, tid) = (libc::getpid(), libc::gettid());
                libc::syscall(libc::SYS_rt_tgsigqueueinfo, pid, tid, libc::SIGTRAP, &raw const info)
            }
        });
        assert_eq!(sent, Some(0));
        assert_eq!(action(None).expect("it can be read").sa_sigaction, before);
        // SAFETY: SIG_IGN is an action for any signal, and SIG_DFL too.
        let refused = unsafe {
            libc::signal(libc::SIGTRAP, libc::SIG_IGN);
            let refused = survived(|| ());
            libc::signal(libc::SIGTRAP, libc::SIG_DFL);
            refused
        };
        assert_eq!(refused, None);
    }
}
