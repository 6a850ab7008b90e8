//! The caller's own process: consumers on (file, offset).
//!
//! In: probes as C describes them. Out: requests, and what registrations have counted. The engine calls
//! handlers directly, with no code of this crate in between. So what handlers declare is true of all that runs
//! at a hit. Does not: look names up by itself, or read what a pointer leads to (`functions`).

use std::ffi::{c_char, c_void};

use trapline::inside::{self, Consumer, Request, Returns, Tactic};

use crate::error::{Error, Fault};
use crate::pointers::Growing;

/// Answer of a handler. Other numbers count as TRAPLINE_VERDICT_CONTINUE.
#[repr(u32)]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Verdict {
    /// Go on.
    Continue = 0,
    /// The probe is no longer needed. Once every consumer has answered so at one hit, it is taken out at the
    /// next call that registers, unregisters or rescans.
    Remove = 1,
    /// Do not call this consumer's return handler for this call.
    IgnoreReturn = 2,
}

/// A thread's registers. At a function's entry the arguments are in rdi, rsi, rdx, rcx, r8, r9; at its return
/// the value is in rax.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
#[allow(missing_docs, reason = "the processor's names")]
pub struct Regs {
    pub rax: u64,
    pub rcx: u64,
    pub rdx: u64,
    pub rbx: u64,
    pub rsp: u64,
    pub rbp: u64,
    pub rsi: u64,
    pub rdi: u64,
    pub r8: u64,
    pub r9: u64,
    pub r10: u64,
    pub r11: u64,
    pub r12: u64,
    pub r13: u64,
    pub r14: u64,
    pub r15: u64,
    pub rip: u64,
    pub rflags: u64,
}

/// One hit, as a handler sees it. It may grow at the end.
#[repr(C)]
#[derive(Debug)]
pub struct Hit {
    /// Registers of the thread, which goes on with the values left here. If a handler changes rip, the
    /// original instruction does not run. Changes of rip or rsp must have been declared.
    pub regs: *mut Regs,
    /// Address of the site that was hit; for a return handler, that of the entry.
    pub site: u64,
    /// A word for this consumer and this call: the return handler finds what the entry handler left.
    pub cookie: u64,
}

/// A handler. The thread that hits calls it in the middle of whatever it does, like a signal handler. So it
/// must be async-signal-safe: no allocation, no lock that the interrupted code may hold. It must not unwind,
/// block for long, or call functions of this library. Sites that it hits itself are not probed. It may leave
/// by longjmp or end its thread; it holds nothing then. The answer of a return handler is ignored.
pub type Handler = Option<unsafe extern "C" fn(data: *mut c_void, hit: *mut Hit) -> Verdict>;

/// Called first at every hit: whether this consumer wants the hit.
pub type Filter = Option<unsafe extern "C" fn(data: *mut c_void, hit: *const Hit) -> bool>;

/// The handlers may change rip.
pub const TRAPLINE_PROBE_MOVES_IP: u32 = 1;
/// The handlers may change rsp.
pub const TRAPLINE_PROBE_MOVES_SP: u32 = 2;
/// The handlers, and all that they call, use only general registers (compiled with -mgeneral-regs-only).
/// Vector registers are not saved around them, which makes a hit some ten times as fast.
pub const TRAPLINE_PROBE_GENERAL_REGS_ONLY: u32 = 4;
/// Use a trap even if a jump might fit.
pub const TRAPLINE_PROBE_BY_TRAP: u32 = 8;

/// Returns are seen at the function's return instructions. A function is refused if it ends in a jump to
/// another, or if its exits cannot all be found or patched.
pub const TRAPLINE_RETURNS_EXITS: u64 = 0;
/// As TRAPLINE_RETURNS_EXITS if that is possible, else as TRAPLINE_RETURNS_STACK.
pub const TRAPLINE_RETURNS_AUTO: u64 = 1;
/// The return address of each call is replaced by a return trampoline, which unwinders can walk through. All
/// return handlers at one site have the same form.
pub const TRAPLINE_RETURNS_STACK: u64 = 2;

const FLAGS: u32 = TRAPLINE_PROBE_MOVES_IP
    | TRAPLINE_PROBE_MOVES_SP
    | TRAPLINE_PROBE_GENERAL_REGS_ONLY
    | TRAPLINE_PROBE_BY_TRAP;

/// A site, and the functions that are called there.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Probe {
    /// sizeof; set by the caller.
    pub size: usize,
    /// Path of the file. With a function, also a library's short name ("libc") or the program's own name,
    /// among the files that this process has mapped.
    pub file: *const c_char,
    /// A function in the file: a name that only one function has, or a pattern, of which the first match
    /// counts. Null: the offset alone gives the place.
    pub function: *const c_char,
    /// Bytes from the start of the file to the instruction; with a function, from the function's start.
    pub offset: u64,
    /// Called when the instruction is about to run; may be null.
    pub entry: Handler,
    /// Called when the function returns; may be null.
    pub returns: Handler,
    /// Called before both; may be null.
    pub filter: Filter,
    /// Handed to all of them; must stay valid until unregistering has returned.
    pub data: *mut c_void,
    /// TRAPLINE_PROBE_MOVES_IP and so on.
    pub flags: u32,
    /// How many calls may wait for their return handler at once; 0: a number that the library chooses.
    pub maxactive: u32,
    /// Bytes from the start of the file to a USDT semaphore, which is raised while the site is probed; 0:
    /// none.
    pub semaphore: u64,
    /// How the ends of calls are seen for the return handler: TRAPLINE_RETURNS_EXITS and so on. Since the
    /// second version.
    pub returns_by: u64,
}

impl Growing for Probe {
    const NAME: &'static str = "trapline_probe";
    const FIRST: usize = 80;
}

/// Hits of a site, summed over all its consumers, and how the site is reached now.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Tally {
    /// sizeof; set by the caller.
    pub size: usize,
    /// Hits at which consumers were called.
    pub hits: u64,
    /// Hits missed because another hit of the same thread was going on.
    pub nested: u64,
    /// Hits missed because there were more threads than the library can distinguish.
    pub unplaced: u64,
    /// Calls that ended without a call of their return handler, although it was requested.
    pub unreturned: u64,
    /// Number of mappings in which a jump leads from the site.
    pub by_jump: u64,
    /// Number of mappings in which a trap leads from it.
    pub by_trap: u64,
    /// Calls without a return handler because too many calls were in flight.
    pub empty: u64,
}

impl Growing for Tally {
    const NAME: &'static str = "trapline_tally";
    const FIRST: usize = 64;
}

/// A registered consumer.
#[derive(Debug)]
pub struct Registration(inside::Registration);

impl Probe {
    /// Fails if it has flags that this version does not know.
    pub(crate) fn check_flags(&self) -> Result<(), Fault> {
        let unknown = self.flags & !FLAGS;
        match unknown {
            0 => Ok(()),
            _ => Err(Fault::new(Error::UnknownFlag, format!("trapline_probe: unknown flags {unknown:#x}"))),
        }
    }
    pub(crate) const fn has(&self, flag: u32) -> bool {
        self.flags & flag != 0
    }
    /// The request that it describes, with its texts and its functions.
    pub(crate) fn request(
        &self,
        file: &str,
        function: Option<&str>,
        consumer: Consumer,
    ) -> Result<Request, Fault> {
        let (file, offset) = match function {
            None => (file.into(), self.offset),
            Some(function) => {
                let (file, start) = inside::find(file, function)?;
                (file, start.wrapping_add(self.offset))
            }
        };
        let form = match self.returns_by {
            TRAPLINE_RETURNS_EXITS => Returns::Exits,
            TRAPLINE_RETURNS_AUTO => Returns::Auto,
            TRAPLINE_RETURNS_STACK => Returns::Stack,
            other => {
                let text = format!("trapline_probe: unknown returns_by {other}");
                return Err(Fault::new(Error::UnknownFlag, text));
            }
        };
        let consumer = consumer.returns_by(form);
        let consumer = if self.has(TRAPLINE_PROBE_MOVES_IP) { consumer.moves_ip() } else { consumer };
        let consumer = if self.has(TRAPLINE_PROBE_MOVES_SP) { consumer.moves_sp() } else { consumer };
        let consumer = if self.maxactive > 0 { consumer.maxactive(self.maxactive) } else { consumer };
        let request = Request::new(file, offset, consumer);
        let request = if self.semaphore > 0 { request.semaphore(self.semaphore) } else { request };
        Ok(if self.has(TRAPLINE_PROBE_BY_TRAP) { request.by_trap() } else { request })
    }
}

impl Registration {
    pub(crate) const fn new(registration: inside::Registration) -> Self {
        Self(registration)
    }
    pub(crate) fn into_inner(self) -> inside::Registration {
        self.0
    }
    /// What its site has counted.
    pub(crate) fn tally(&self) -> Tally {
        let inside::Tally { hits, nested, unplaced, empty, unreturned } = self.0.counts();
        let (traps, jumps): (Vec<_>, Vec<_>) =
            self.0.sites().into_iter().partition(|way| *way == Tactic::Trap);
        let (by_jump, by_trap) = (jumps.len() as u64, traps.len() as u64);
        Tally { size: 0, hits, nested, unplaced, unreturned, by_jump, by_trap, empty }
    }
}

#[cfg(test)]
mod tests {
    use super::{Growing as _, Hit, Probe, Regs, Tally, Verdict};
    use std::mem::{align_of, offset_of, size_of};
    use trapline::inside::{Gpr, raw};

    #[test]
    fn registers_and_hits_are_laid_out_as_the_engines() {
        use trapline::inside::Regs as Engine;
        assert_eq!((size_of::<Regs>(), align_of::<Regs>()), (size_of::<Engine>(), align_of::<Engine>()));
        let named = [
            (Gpr::Rax, offset_of!(Regs, rax)),
            (Gpr::Rcx, offset_of!(Regs, rcx)),
            (Gpr::Rdx, offset_of!(Regs, rdx)),
            (Gpr::Rbx, offset_of!(Regs, rbx)),
            (Gpr::Rsp, offset_of!(Regs, rsp)),
            (Gpr::Rbp, offset_of!(Regs, rbp)),
            (Gpr::Rsi, offset_of!(Regs, rsi)),
            (Gpr::Rdi, offset_of!(Regs, rdi)),
            (Gpr::R8, offset_of!(Regs, r8)),
            (Gpr::R9, offset_of!(Regs, r9)),
            (Gpr::R10, offset_of!(Regs, r10)),
            (Gpr::R11, offset_of!(Regs, r11)),
            (Gpr::R12, offset_of!(Regs, r12)),
            (Gpr::R13, offset_of!(Regs, r13)),
            (Gpr::R14, offset_of!(Regs, r14)),
            (Gpr::R15, offset_of!(Regs, r15)),
        ];
        for (register, at) in named {
            assert_eq!(at, offset_of!(Engine, gpr) + 8 * register as usize, "{register:?}");
        }
        assert_eq!(offset_of!(Regs, rip), offset_of!(Engine, rip));
        assert_eq!(offset_of!(Regs, rflags), offset_of!(Engine, rflags));
        assert!(size_of::<Hit>() <= size_of::<raw::Hit>());
        assert_eq!(offset_of!(Hit, regs), offset_of!(raw::Hit, regs));
        assert_eq!(offset_of!(Hit, site), offset_of!(raw::Hit, site));
        assert_eq!(offset_of!(Hit, cookie), offset_of!(raw::Hit, cookie));
        let verdicts = [Verdict::Continue, Verdict::Remove, Verdict::IgnoreReturn].map(|v| v as u32);
        let engine = [raw::Verdict::CONTINUE, raw::Verdict::REMOVE, raw::Verdict::IGNORE_RETURN];
        assert_eq!(verdicts, engine.map(|verdict| verdict.0));
    }

    /// Programs were compiled with these offsets, so they must stay: numbers of the first version, than which
    /// later ones are longer.
    #[test]
    fn the_first_versions_fields_stay_where_they_are() {
        let probe = [
            offset_of!(Probe, size),
            offset_of!(Probe, file),
            offset_of!(Probe, function),
            offset_of!(Probe, offset),
            offset_of!(Probe, entry),
            offset_of!(Probe, returns),
            offset_of!(Probe, filter),
            offset_of!(Probe, data),
            offset_of!(Probe, flags),
            offset_of!(Probe, maxactive),
            offset_of!(Probe, semaphore),
            Probe::FIRST,
            offset_of!(Probe, returns_by),
        ];
        assert_eq!(probe, [0, 8, 16, 24, 32, 40, 48, 56, 64, 68, 72, 80, 80]);
        let tally = [
            offset_of!(Tally, hits),
            offset_of!(Tally, nested),
            offset_of!(Tally, unplaced),
            offset_of!(Tally, unreturned),
            offset_of!(Tally, by_jump),
            offset_of!(Tally, by_trap),
            offset_of!(Tally, empty),
            Tally::FIRST,
        ];
        assert_eq!(tally, [8, 16, 24, 32, 40, 48, 56, 64]);
        assert!(size_of::<Probe>() >= Probe::FIRST && size_of::<Tally>() >= Tally::FIRST);
    }
}
