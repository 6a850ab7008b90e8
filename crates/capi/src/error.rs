//! Errors: as a number, as a few words for each number, and as a sentence.
//!
//! In: errors of the `trapline` crate and of this boundary. Out: an [`Error`], and the sentence kept for the
//! thread in which the call failed. Invariants: CAP-1: every function that can fail runs inside [`guard`].

use std::cell::RefCell;
use std::ffi::{CStr, CString, c_char};
use std::fmt::Display;
use std::panic::{AssertUnwindSafe, catch_unwind};

use trapline::error::PatchError;
use trapline::inside::Error as Inside;

/// Result of a function. Numbers keep their meaning; later versions may have more of them.
#[repr(i32)]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Error {
    /// Done.
    None = 0,
    /// A pointer is null that must not be.
    NullPointer = 1,
    /// A structure's size is smaller than its first version, or larger than 4096 bytes.
    StructSize = 2,
    /// A structure has bytes that this version does not know, and they are not zero.
    UnknownField = 3,
    /// A flag that this version does not know.
    UnknownFlag = 4,
    /// A text is not UTF-8.
    NotUtf8 = 5,
    /// There is no row with this number.
    NoRow = 6,
    /// This library has a fault; what the call was about is in an unknown state.
    Panic = 7,

    /// Nothing to register.
    Empty = 16,
    /// There are more probes than there is room for.
    TooMany = 17,
    /// A consumer without an entry or return handler.
    NoHandler = 18,
    /// The file is no program or library, or has no such function.
    File = 19,
    /// The offset is beyond the file's end.
    BehindEnd = 20,
    /// The offset is not in the file's code.
    NotCode = 21,
    /// A return handler at another place than a function's start.
    NotAnEntry = 22,
    /// The site cannot be patched.
    Refused = 23,
    /// The processor cannot save vector registers as handlers need it.
    NoExtendedState = 24,
    /// There is no memory for the engine.
    NoEngine = 25,
    /// A handler may not call this: it would wait for itself.
    InsideHandler = 26,
    /// Another tracer has patched the process.
    InUse = 27,
    /// The process cannot be patched, because of another tracer or for want of memory.
    Patch = 28,
    /// The file cannot be read.
    Unreadable = 29,
    /// The file was written to since it was first registered.
    Changed = 30,
    /// The offset is inside an instruction.
    InsideInstruction = 31,
    /// The file itself has a breakpoint there.
    Breakpoint = 32,
    /// The code in memory is not the file's.
    Differs = 33,
    /// The semaphore's offset is not possible.
    BadSemaphore = 34,
    /// The site is registered with another semaphore, or with none.
    OtherSemaphore = 35,
    /// The system refuses to install a signal handler.
    Signals = 36,
    /// The program has installed a SIGTRAP handler over the engine's.
    TrapsTaken = 37,
    /// The process' code cannot be written at all.
    Locked = 38,
    /// There is no room for so many calls in flight.
    Instances = 39,

    /// The process does not exist, or may not be traced.
    Target = 48,
    /// A probe cannot be parsed.
    BadProbe = 49,
    /// No process and no file is named.
    NoTarget = 50,
    /// There is no file with this name.
    NoFile = 51,
    /// No process that may be traced maps the file.
    NobodyMaps = 52,
    /// No probe matches a function.
    NoMatch = 53,
    /// All that was found was refused.
    AllRefused = 54,

    /// The command does not take these words.
    Usage = 64,
    /// The command found nothing to probe, or all of it was refused.
    NothingProbed = 65,
    /// The command failed, or a script is wrong.
    Failed = 66,
    /// The command cannot be started.
    NoCommand = 67,

    /// An error for which this interface has no number.
    Other = 127,
}

/// All errors, with a few words for each.
pub(crate) const TEXTS: [(Error, &CStr); 44] = [
    (Error::None, c"no error"),
    (Error::NullPointer, c"a pointer is null"),
    (Error::StructSize, c"a structure's size is out of range"),
    (Error::UnknownField, c"a structure has fields that this version does not know"),
    (Error::UnknownFlag, c"a flag that this version does not know"),
    (Error::NotUtf8, c"a text is not UTF-8"),
    (Error::NoRow, c"no row of that number"),
    (Error::Panic, c"a fault of the library"),
    (Error::Empty, c"nothing to register"),
    (Error::TooMany, c"too many probes"),
    (Error::NoHandler, c"a consumer without an entry or return handler"),
    (Error::File, c"the file cannot be used"),
    (Error::BehindEnd, c"the offset lies behind the file's end"),
    (Error::NotCode, c"the offset is not in the file's code"),
    (Error::NotAnEntry, c"a return handler somewhere else than at a function's start"),
    (Error::Refused, c"the site cannot be patched"),
    (Error::NoExtendedState, c"the processor cannot save vector registers"),
    (Error::NoEngine, c"the engine's memory cannot be made"),
    (Error::InsideHandler, c"a handler may not do that"),
    (Error::InUse, c"another tracer has patched the process"),
    (Error::Patch, c"the process cannot be patched"),
    (Error::Unreadable, c"the file cannot be read"),
    (Error::Changed, c"the file was changed since it was looked at"),
    (Error::InsideInstruction, c"the offset is inside an instruction"),
    (Error::Breakpoint, c"the file has a breakpoint of its own there"),
    (Error::Differs, c"the code in memory is not the file's"),
    (Error::BadSemaphore, c"the offset is no semaphore"),
    (Error::OtherSemaphore, c"the site is registered with another semaphore"),
    (Error::Signals, c"the system refuses a signal handler"),
    (Error::TrapsTaken, c"the program has installed its own handler for SIGTRAP"),
    (Error::Locked, c"the process' code cannot be written"),
    (Error::Instances, c"so many calls cannot be in flight at once"),
    (Error::Target, c"no such process, or no right to trace it"),
    (Error::BadProbe, c"a probe that cannot be read"),
    (Error::NoTarget, c"no process and no file is named"),
    (Error::NoFile, c"no file of that name"),
    (Error::NobodyMaps, c"no process maps the file"),
    (Error::NoMatch, c"no probe found a function"),
    (Error::AllRefused, c"all that was found was refused"),
    (Error::Usage, c"the command does not take these words"),
    (Error::NothingProbed, c"the command found nothing to probe"),
    (Error::Failed, c"the command failed"),
    (Error::NoCommand, c"the command cannot be started"),
    (Error::Other, c"another error"),
];

/// An error with its sentence.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Fault {
    error: Error,
    errno: i32,
    text: String,
}

impl Fault {
    /// A call that is wrong by itself, with no errno of the kernel's.
    pub(crate) fn new(error: Error, text: impl Display) -> Self {
        Self { error, errno: 0, text: text.to_string() }
    }
    #[cfg(test)]
    pub(crate) const fn number(&self) -> Error {
        self.error
    }
}

impl From<Inside> for Fault {
    fn from(fault: Inside) -> Self {
        let error = match &fault {
            Inside::Empty => Error::Empty,
            Inside::TooMany { .. } => Error::TooMany,
            Inside::NoHandler => Error::NoHandler,
            Inside::File { .. } => Error::File,
            Inside::BehindEnd { .. } => Error::BehindEnd,
            Inside::NotCode { .. } => Error::NotCode,
            Inside::NotAnEntry { .. } => Error::NotAnEntry,
            Inside::Refused { .. } | Inside::NoTrampolines { .. } => Error::Refused,
            Inside::Unreadable { .. } => Error::Unreadable,
            Inside::Changed { .. } => Error::Changed,
            Inside::InsideInstruction { .. } => Error::InsideInstruction,
            Inside::Breakpoint { .. } => Error::Breakpoint,
            Inside::Differs { .. } => Error::Differs,
            Inside::BadSemaphore { .. } => Error::BadSemaphore,
            Inside::OtherSemaphore { .. } => Error::OtherSemaphore,
            Inside::Signals(_) => Error::Signals,
            Inside::TrapsTaken => Error::TrapsTaken,
            Inside::Locked(_) => Error::Locked,
            Inside::Instances { .. } => Error::Instances,
            Inside::NoExtendedState => Error::NoExtendedState,
            Inside::NoEngine => Error::NoEngine,
            Inside::InsideHandler => Error::InsideHandler,
            Inside::Patch(
                PatchError::InUse { .. } | PatchError::IsTracer { .. } | PatchError::LeftBehind { .. },
            ) => Error::InUse,
            Inside::Patch(_) => Error::Patch,
            _ => Error::Other,
        };
        Self { error, errno: fault.errno(), text: fault.to_string() }
    }
}

impl From<trapline::Error> for Fault {
    fn from(fault: trapline::Error) -> Self {
        use trapline::Error as Outside;
        let error = match &fault {
            Outside::Target(_) => Error::Target,
            Outside::Patch(
                PatchError::InUse { .. } | PatchError::IsTracer { .. } | PatchError::LeftBehind { .. },
            ) => Error::InUse,
            Outside::Patch(_) => Error::Patch,
            Outside::Spec(_) => Error::BadProbe,
            Outside::NoTarget { .. } => Error::NoTarget,
            Outside::NoFile { .. } => Error::NoFile,
            Outside::NotMapped { .. } => Error::NobodyMaps,
            Outside::NoMatch { .. } | Outside::LeftOut { .. } => Error::NoMatch,
            Outside::AllRefused { .. } => Error::AllRefused,
            _ => Error::Other,
        };
        Self::new(error, fault)
    }
}

thread_local! {
    static LAST: RefCell<(i32, CString)> = RefCell::new((0, CString::default()));
}

/// Runs the body of a function, and keeps its error for the calling thread. A panic becomes an error.
pub(crate) fn guard(call: impl FnOnce() -> Result<(), Fault>) -> Error {
    // A panic may leave only the library's own state half changed; that is behind locks that accept it. The
    // caller gets an error.
    let result = catch_unwind(AssertUnwindSafe(call));
    let Fault { error, errno, text } = match result {
        Ok(Ok(())) => return Error::None,
        Ok(Err(fault)) => fault,
        Err(_) => Fault::new(Error::Panic, "a fault of the library; it wrote where to stderr"),
    };
    let text = CString::new(text.replace('\0', " ")).unwrap_or_default();
    // If a thread's local storage is gone, nothing is left that could read it.
    LAST.try_with(|last| *last.borrow_mut() = (errno, text)).unwrap_or_default();
    error
}

/// An error in a few words.
pub(crate) fn text_of(error: i32) -> &'static CStr {
    let found = TEXTS.iter().find(|(one, _)| *one as i32 == error);
    found.map_or(c"an error of a later version", |(_, text)| *text)
}

/// Address of the text of this thread's last failure. It stays until the next one.
pub(crate) fn last_text() -> *const c_char {
    LAST.try_with(|last| last.borrow().1.as_ptr()).unwrap_or(c"".as_ptr())
}

/// Number of this thread's last failure, as the kernel has it.
pub(crate) fn last_errno() -> i32 {
    LAST.try_with(|last| last.borrow().0).unwrap_or_default()
}
