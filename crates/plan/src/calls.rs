//! What stubs call in a program that probes itself: which functions, for which probes, and what is saved around
//! them.
//!
//! In: addresses and code that the runtime gives. Out: plain values for the planner and for x86-64's gates.
//! Does not: generate code (`x86_64::stub::call`).

/// The functions that are called: `extern "C" fn(number, *mut Regs) -> u64`.
///
/// S is the site's stack pointer. Registers that no column names are the program's, or undefined:
///
/// ```text
///                    rdi       rsi     rdx   rcx   r12      rbx        may overwrite
///   entry, exit      number    Regs    -     -     -        -          as any C function
///   general, general_exit
///                    number    Regs    -     -     number   Regs - 8   all but rbx, rbp, rsp; with answer 3, r12
///   begin            number    site    S     -     -        -          rcx, rdx, r8 to r11
///   begins           number    site    S     -     -        -          rcx, rdx, r8, r9
///   arms             number    site    S     -     -        -          rcx, rdx, r8, r9      [rsp] = GO
///   ends             -         Regs    -     S     number   Regs - 8   all but rbx, rbp      rsp: a multiple of 16
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct CallFunctions {
    /// For entries and single instructions; called with the extended state saved.
    pub entry: u64,
    /// For entries and single instructions; called first, without that state saved, for probes that do not
    /// ask for it. It leaves the extended state as it is. It may answer 3: call `entry` after all. With that
    /// answer r12 must still hold the number.
    pub general: u64,
    /// Called first at entries if [`only_returns`](crate::Callee::only_returns). It answers in ecx: 0, or
    /// otherwise: call `general` after all.
    pub begin: u64,
    /// Inlined by the gate before `begin`, if present. Its common path: done. Its other path: call `begin`.
    pub begins: Option<InlinedPath>,
    /// Inlined where calls may also be [armed](crate::Callee::arms); if absent, none is armed. Its common
    /// path: the stack word holds a return trampoline, at [`ENTER`](trapline_record::trampolines::ENTER). Its
    /// other path: call `general` after all.
    pub arms: Option<InlinedPath>,
    /// For exits; called with the extended state saved.
    pub exit: u64,
    /// For exits, what `general` is for entries; the other function is `exit`.
    pub general_exit: u64,
    /// Inlined before `general_exit` if [`only_returns`](crate::Callee::only_returns), if present. It may
    /// leave rsp anywhere below. Its common path: the answer is 0. Its other path: the answer is in eax; 3:
    /// call `general_exit`.
    pub ends: Option<InlinedPath>,
    /// Components of the extended state that are saved.
    pub state: ExtendedState,
}

/// Code that is inlined, at a multiple of 64. It names no address, so it does the same wherever it lies. Its
/// common path goes on in its gap, which has room for the gate's own code; its other path goes on at its end.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct InlinedPath {
    /// All bytes of the code.
    pub text: &'static [u8],
    /// Offset of the gap, and its length.
    pub room: (usize, usize),
}

/// Components of the extended state, and the room that they take.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ExtendedState {
    /// Component bits, as XSAVEC takes them in eax. x87, SSE, AVX and AVX-512 have bits 0, 1, 2, 5, 6, 7.
    pub mask: u32,
    /// Bytes of their XSAVE area in the compacted format; the code here rounds it up to a multiple of 64.
    pub len: u32,
    /// XGETBV reports what is in use, and opmasks, if there are any, have 64 bits (AVX512BW).
    pub shows_use: bool,
}

/// What stubs call at a hit in a program that probes itself; the same for all modules of a segment.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct CallInput<'a> {
    /// The functions that all stubs call.
    pub functions: CallFunctions,
    /// Indexed by [`ActionRequest::probe`](crate::ActionRequest::probe): the argument of the call, and what is saved
    /// around it.
    pub callees: &'a [Callee],
    /// A site that no jump reaches gets an int3, from which the guard table leads to the stub.
    pub may_trap: bool,
}

/// How one probe's consumers are called.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Callee {
    /// First argument of the called function.
    pub argument: u64,
    /// The extended state is saved before the call, and restored after it.
    pub saves_state: bool,
    /// No consumer is called at the entry: all wait for the return only.
    pub only_returns: bool,
    /// The function's return address may be replaced ([`Action::CallArmed`](crate::Action::CallArmed)).
    pub arms: bool,
    /// Use an int3 even if a jump would fit.
    pub by_trap: bool,
}
