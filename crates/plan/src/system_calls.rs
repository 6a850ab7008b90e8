//! System calls of a program's own by which it may change what patches rely on.
//!
//! In: an image. Out: for each such call an instruction before it in the same straight stretch of code, and
//! where the call's number and arguments come from there. Invariant: SYS-1 nothing is known to jump between
//! that instruction and the call, and a patch there covers no system call. So no thread returns from the
//! kernel into a window.
//! Does not: plan patches; find calls outside functions, or by other instructions than `syscall` and `svc`.
//! Each processor's twin finds them.

use trapline_image::{FunctionIndex, Image, Machine};
use trapline_record::Svma;

use crate::request::Hold;
use crate::{aarch64, x86_64};

/// A system call of a program's own.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SystemCall {
    /// The function that makes it.
    pub function: FunctionIndex,
    /// The instruction at which it can be held.
    pub at: Svma,
    /// How it is recognized there.
    pub hold: Hold,
    /// Facts that it may change (`record::control::fact`).
    pub facts: u64,
}

/// The system calls that may change a fact.
#[must_use]
pub fn system_calls(image: &Image) -> Vec<SystemCall> {
    let (calls, numbers) = match image.machine() {
        Machine::X86_64 => (x86_64::system_calls::calls(image), x86_64::stub::NUMBERS),
        Machine::Aarch64 => (aarch64::system_calls::calls(image), aarch64::stub::NUMBERS),
    };
    let call = |(function, at, words)| SystemCall {
        function,
        at,
        hold: Hold::Call(words),
        facts: numbers.may_change(words),
    };
    calls.into_iter().map(call).collect()
}
