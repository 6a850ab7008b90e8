//! Whether a thread may make our calls: shadow stacks, seccomp, and user dispatch of system calls.
//!
//! Input: the status of a stopped thread. Output: a refusal with its reason, or filters that are suspended.
//! Invariant: TGT-1, as far as a filter that works again could break it. Does not: lift a suspension
//! (`session` does), or make calls.

use trapline_record::RemoteAddr;

use crate::error::{TargetError, caller_gone_or};
use crate::filter::harmful;
use crate::process::Process;
use crate::remote_options::RemoteOptions;
use crate::status::{Seccomp, ThreadStatus};
use crate::sys::ptrace;

const PTRACE_O_SUSPEND_SECCOMP: i32 = 1 << 21;

/// Refuses a thread that could not come back from our calls, or would be killed for one.
pub(crate) fn check_thread(pid: u32, status: &ThreadStatus) -> Result<(), TargetError> {
    let refuse = |why: &str| Err(TargetError::NoCaller { pid, why: why.to_owned() });
    match status {
        s if s.shadow_stack => refuse("it runs under a shadow stack, which forbids the way our calls return"),
        s if s.seccomp == Seccomp::Strict => {
            refuse("it is in seccomp strict mode, which kills it for any call of ours")
        }
        _ => Ok(()),
    }
}

/// Refuses a stopped thread whose calls the kernel would hand to the program just now, as signals.
pub(crate) fn check_dispatch(process: &Process, tid: u32) -> Result<(), TargetError> {
    let Some(selector) = ptrace::user_dispatch(tid) else { return Ok(()) };
    let mut byte = [0];
    let makes_calls = selector != 0 && process.read(RemoteAddr(selector), &mut byte).is_ok() && byte[0] == 0;
    if makes_calls {
        return Ok(());
    }
    let why = "it gets its system calls back as signals (PR_SET_SYSCALL_USER_DISPATCH)".to_owned();
    Err(TargetError::NoCaller { pid: process.pid(), why })
}

/// Suspends a thread's seccomp filters, so that our calls pass. The kernel ends the suspension when the
/// tracer dies, perhaps in the middle of a call. So the filters must not harm the process for our calls even
/// then (TGT-1). Filters of other threads are assumed to allow what this one's allow; those threads only
/// return from our trap handler. Returns whether filters are suspended now.
pub(crate) fn suspend_seccomp(
    pid: u32,
    status: &ThreadStatus,
    options: &RemoteOptions,
) -> Result<bool, TargetError> {
    if status.seccomp != Seccomp::Filter {
        return Ok(false);
    }
    let refuse = |why: String| Err(TargetError::NoCaller { pid, why });
    let suspended = ptrace::set_options(status.tid, ptrace::OPTIONS | PTRACE_O_SUSPEND_SECCOMP).is_ok();
    if options.risk_seccomp {
        return Ok(suspended);
    }
    if !suspended {
        return refuse(
            "it runs under a seccomp filter that may kill it for our calls, and we may neither read nor suspend the \
             filter; run trapline as root (CAP_SYS_ADMIN, in a kernel with CONFIG_CHECKPOINT_RESTORE)"
                .into(),
        );
    }
    let why = match ptrace::seccomp_filters(status.tid) {
        Err(error) => format!("its seccomp filter cannot be read: {error}"),
        Ok(filters) => match harmful(&filters) {
            None => return Ok(true),
            Some(call) => format!(
                "its seccomp filter may kill it for {}, should trapline be killed in that call; allow that call in the \
                 filter, or let it return an error",
                call.name
            ),
        },
    };
    ptrace::set_options(status.tid, ptrace::OPTIONS)
        .map_err(|e| caller_gone_or(pid, "let its seccomp filter work again", e))?;
    refuse(why)
}

#[cfg(test)]
mod tests {
    use super::{Seccomp, ThreadStatus, check_thread};

    /// Under a shadow stack a return address counts only if a call instruction pushed it. Our calls' way back
    /// is none.
    #[test]
    fn threads_that_cannot_make_our_calls_are_refused_by_name() {
        let shadowed = ThreadStatus { shadow_stack: true, ..ThreadStatus::default() };
        let strict = ThreadStatus { seccomp: Seccomp::Strict, ..ThreadStatus::default() };
        let checked = |status: &ThreadStatus| check_thread(1, status).map_err(|why| why.to_string());
        assert!(checked(&ThreadStatus::default()).is_ok());
        assert!(checked(&shadowed).is_err_and(|why| why.contains("shadow stack")));
        assert!(checked(&strict).is_err_and(|why| why.contains("strict mode")));
    }
}
