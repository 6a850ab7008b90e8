//! Which system calls notice that their thread was stopped for a moment.
//!
//! Input: a call's number and arguments. Output: whether the kernel restarts it by itself. If it returns
//! EINTR: whether a restart would begin a finite timeout anew. And whether a thread in it holds locks. Does not:
//! look at the thread.

/// What an interruption does to a call.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Interruption {
    /// The kernel continues it; timeouts keep their end.
    Restarts,
    /// It returns EINTR. When it is made again it waits without limit, as before.
    EintrEndless,
    /// It returns EINTR. When it is made again it waits its whole timeout again.
    EintrTimeout,
}

/// What was done for a call that a stop interrupted (`regs`).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Repair {
    /// The thread was in no call, or the call was done.
    None,
    /// The call goes on as the kernel would have continued it (on arm64, except for its timeout).
    Restarted,
    /// The call had returned EINTR and is made again.
    Again,
    /// The call returned EINTR and must stay so, because a signal is pending.
    Eintr,
}

use Interruption::{EintrEndless, EintrTimeout, Restarts};

use crate::numbers::{EPOLL_WAIT, IO_PGETEVENTS, forgets_timeout, waits_outside_calls};

/// Classifies a call. `has_timeout(fd, sending)` returns whether a socket has a timeout, `None` if that
/// cannot be known.
pub(crate) fn classify(
    nr: i64,
    args: &[u64; 6],
    has_timeout: &dyn Fn(i32, bool) -> Option<bool>,
) -> Interruption {
    let endless_if = |endless: bool| if endless { EintrEndless } else { EintrTimeout };
    let socket = |sending: bool| match has_timeout(args[0] as i32, sending) {
        Some(false) => Restarts,
        _ => EintrTimeout,
    };
    match nr {
        EPOLL_WAIT | libc::SYS_epoll_pwait => endless_if((args[3] as i32) < 0),
        libc::SYS_epoll_pwait2 | libc::SYS_semtimedop => endless_if(args[3] == 0),
        libc::SYS_semop => EintrEndless,
        libc::SYS_rt_sigtimedwait => endless_if(args[2] == 0),
        libc::SYS_io_getevents | IO_PGETEVENTS => endless_if(args[4] == 0),
        // Bit 3 announces an extended argument, which may hold a timeout.
        libc::SYS_io_uring_enter => endless_if(args[3] & 8 == 0),
        libc::SYS_read
        | libc::SYS_readv
        | libc::SYS_recvfrom
        | libc::SYS_recvmsg
        | libc::SYS_recvmmsg
        | libc::SYS_accept
        | libc::SYS_accept4 => socket(false),
        libc::SYS_write
        | libc::SYS_writev
        | libc::SYS_sendto
        | libc::SYS_sendmsg
        | libc::SYS_sendmmsg
        | libc::SYS_connect => socket(true),
        _ if forgets_timeout(nr, args) => EintrTimeout,
        _ => Restarts,
    }
}

/// FUTEX_WAIT_BITSET, in the low bits of the operation. Conditions, semaphores and joins wait with it.
const WAIT_BITSET: u64 = 9;

/// Whether a thread that waits in this call holds no lock of the allocator, the loader or the unwinder.
pub(crate) const fn waits_outside(nr: i64, args: &[u64; 6]) -> bool {
    match nr {
        libc::SYS_futex => args[1] & 0x7f == WAIT_BITSET,
        libc::SYS_nanosleep
        | libc::SYS_clock_nanosleep
        | libc::SYS_ppoll
        | libc::SYS_pselect6
        | libc::SYS_epoll_pwait
        | libc::SYS_wait4
        | libc::SYS_waitid
        | libc::SYS_rt_sigsuspend
        | libc::SYS_rt_sigtimedwait
        | libc::SYS_accept
        | libc::SYS_accept4
        | libc::SYS_recvfrom
        | libc::SYS_recvmsg => true,
        _ => waits_outside_calls(nr),
    }
}

#[cfg(test)]
mod tests {
    use super::{EintrEndless, EintrTimeout, Restarts, classify};

    #[test]
    fn timeouts_are_distinguished() {
        let plain = |_: i32, _: bool| Some(false);
        let timed = |_: i32, sending: bool| Some(!sending);
        let unknown = |_: i32, _: bool| None;
        assert_eq!(classify(libc::SYS_epoll_pwait, &[3, 0, 1, u64::MAX, 0, 0], &plain), EintrEndless);
        assert_eq!(classify(libc::SYS_epoll_pwait, &[3, 0, 1, 0xffff_ffff, 0, 0], &plain), EintrEndless);
        assert_eq!(classify(libc::SYS_epoll_pwait, &[3, 0, 1, 700, 0, 0], &plain), EintrTimeout);
        assert_eq!(classify(libc::SYS_recvfrom, &[3, 0, 1, 0, 0, 0], &plain), Restarts);
        assert_eq!(classify(libc::SYS_recvfrom, &[3, 0, 1, 0, 0, 0], &timed), EintrTimeout);
        assert_eq!(classify(libc::SYS_sendto, &[3, 0, 1, 0, 0, 0], &timed), Restarts);
        assert_eq!(classify(libc::SYS_accept, &[3, 0, 1, 0, 0, 0], &unknown), EintrTimeout);
        assert_eq!(classify(libc::SYS_clock_nanosleep, &[1, 1, 0, 0, 0, 0], &unknown), Restarts);
    }
}
