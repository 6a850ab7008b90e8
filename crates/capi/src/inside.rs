//! The caller's own process: consumers on (file, offset).
//!
//! In: probes as C describes them. Out: registrations. The engine calls handlers directly, with no code of
//! this crate in between. So what handlers declare is true of all that runs at a hit. Does not: look names up
//! by itself.

use std::ffi::{CStr, c_char, c_void};

use trapline::inside::{self, Consumer, Functions, Request, Returns, Tactic, raw};

use crate::error::{Error, Fault, guard};
use crate::growing::{self, Growing};

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

/// Returns are seen at the function's return instructions. A function that ends in a jump to another, or
/// whose exits cannot all be found or patched, is refused.
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
    /// How many calls may be in flight at once whose return handler is still to be called; 0: a number that
    /// the library chooses.
    pub maxactive: u32,
    /// Bytes from the start of the file to a USDT semaphore, which is raised while the site is probed; 0:
    /// none.
    pub semaphore: u64,
    /// How the ends of calls are seen for the return handler: TRAPLINE_RETURNS_EXITS and so on. Since the
    /// second version.
    pub returns_by: u64,
}

// SAFETY: `repr(C)`, a size, addresses and numbers without padding; functions are nullable.
unsafe impl Growing for Probe {
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
    /// Calls for whose end a return handler was never called, although it was to be.
    pub unreturned: u64,
    /// Number of mappings in which a jump leads from the site.
    pub by_jump: u64,
    /// Number of mappings in which a trap leads from it.
    pub by_trap: u64,
    /// Calls without a return handler because too many calls were in flight.
    pub empty: u64,
}

// SAFETY: `repr(C)`, numbers of one size, so without padding.
unsafe impl Growing for Tally {
    const NAME: &'static str = "trapline_tally";
    const FIRST: usize = 64;
}

/// A registered consumer.
#[derive(Debug)]
pub struct Registration(inside::Registration);

/// Takes a text from C.
///
/// # Safety
/// `at` is null, or points to bytes that end in a zero.
pub(crate) unsafe fn text<'a>(at: *const c_char, what: &str) -> Result<&'a str, Fault> {
    if at.is_null() {
        return Err(Fault::new(Error::NullPointer, format!("{what} is null")));
    }
    // SAFETY: `at` is not null, and the caller promises bytes that end in a zero.
    let bytes = unsafe { CStr::from_ptr(at) };
    bytes.to_str().map_err(|error| Fault::new(Error::NotUtf8, format!("{what}: {error}")))
}

/// Stores a result.
///
/// # Safety
/// `at` is null, or may be written.
pub(crate) unsafe fn leave<T>(at: *mut T, value: T, what: &str) -> Result<(), Fault> {
    if at.is_null() {
        return Err(Fault::new(Error::NullPointer, format!("{what} is null")));
    }
    // SAFETY: `at` is not null, and the caller promises that it may be written.
    unsafe { at.write(value) };
    Ok(())
}

/// # Safety
/// What the header demands of a probe.
unsafe fn request(probe: *const Probe) -> Result<Request, Fault> {
    // SAFETY: the header demands a structure of the size that it states.
    let probe = unsafe { growing::read(probe)? };
    if probe.flags & !FLAGS != 0 {
        let text = format!("trapline_probe: unknown flags {:#x}", probe.flags & !FLAGS);
        return Err(Fault::new(Error::UnknownFlag, text));
    }
    // SAFETY: the header demands texts that end in a zero. This is for both texts.
    let file = unsafe { text(probe.file, "trapline_probe's file")? };
    let (file, offset) = if probe.function.is_null() {
        (file.into(), probe.offset)
    } else {
        // SAFETY: as above.
        let function = unsafe { text(probe.function, "trapline_probe's function")? };
        let (file, start) = inside::find(file, function)?;
        (file, start.wrapping_add(probe.offset))
    };
    let form = match probe.returns_by {
        TRAPLINE_RETURNS_EXITS => Returns::Exits,
        TRAPLINE_RETURNS_AUTO => Returns::Auto,
        TRAPLINE_RETURNS_STACK => Returns::Stack,
        other => {
            let text = format!("trapline_probe: unknown returns_by {other}");
            return Err(Fault::new(Error::UnknownFlag, text));
        }
    };
    // SAFETY: the header demands that the functions are handlers.
    let consumer = unsafe { consumer(&probe) }.returns_by(form);
    let consumer = if probe.maxactive > 0 { consumer.maxactive(probe.maxactive) } else { consumer };
    let request = Request::new(file, offset, consumer);
    let request = if probe.semaphore > 0 { request.semaphore(probe.semaphore) } else { request };
    Ok(if probe.flags & TRAPLINE_PROBE_BY_TRAP != 0 { request.by_trap() } else { request })
}

/// # Safety
/// The probe's functions are handlers, as the header describes them.
unsafe fn consumer(probe: &Probe) -> Consumer {
    // SAFETY: the types differ in names only. `Hit` and `Verdict` are laid out as the engine's (the tests
    // below compare them), and the engine accepts any number for a verdict.
    let handler = |handler: Handler| unsafe { std::mem::transmute::<Handler, Option<raw::Handler>>(handler) };
    // SAFETY: as above.
    let filter = unsafe { std::mem::transmute::<Filter, Option<raw::Filter>>(probe.filter) };
    let (entry, returns) = (handler(probe.entry), handler(probe.returns));
    // SAFETY: the caller promises that the functions are handlers.
    let consumer = unsafe { Consumer::functions(Functions { entry, returns, filter, data: probe.data }) };
    let has = |flag: u32| probe.flags & flag != 0;
    let consumer = if has(TRAPLINE_PROBE_MOVES_IP) { consumer.moves_ip() } else { consumer };
    let consumer = if has(TRAPLINE_PROBE_MOVES_SP) { consumer.moves_sp() } else { consumer };
    if has(TRAPLINE_PROBE_GENERAL_REGS_ONLY) {
        // SAFETY: by setting the flag, the C program makes that promise.
        unsafe { consumer.general_regs_only() }
    } else {
        consumer
    }
}

/// Registers a consumer on (file, offset). It is called in every executable, private, unwritable mapping of
/// the file that this process has or will have (see trapline_rescan), from the return of this function on.
/// trapline_unregister ends it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn trapline_register(
    probe: *const Probe,
    registration: *mut *mut Registration,
) -> Error {
    // SAFETY: the header demands one probe and room for one registration.
    unsafe { trapline_register_all(probe, 1, registration) }
}

/// Registers all, in their order, or none. `probes` is an array of structures, which all have the size of the
/// first one. `registrations` has room for as many.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn trapline_register_all(
    probes: *const Probe,
    count: usize,
    registrations: *mut *mut Registration,
) -> Error {
    guard(|| {
        if registrations.is_null() {
            return Err(Fault::new(Error::NullPointer, "no room for registrations"));
        }
        // SAFETY: the header demands an array of `count` probes.
        let requests = unsafe { requests(probes, count)? };
        for (at, one) in inside::register_all(requests)?.into_iter().enumerate() {
            // SAFETY: the header demands room for `count` registrations, which is the number of requests.
            unsafe { registrations.add(at).write(Box::into_raw(Box::new(Registration(one)))) };
        }
        Ok(())
    })
}

/// # Safety
/// As [`trapline_register_all`].
unsafe fn requests(probes: *const Probe, count: usize) -> Result<Vec<Request>, Fault> {
    if count == 0 {
        return Err(inside::Error::Empty.into());
    }
    // The size of the first tells where the second begins. The first is read as a whole before that, so it is
    // not null and its size is possible.
    // SAFETY: the caller promises an array with at least one probe.
    let (first, stride) = unsafe { (request(probes)?, probes.cast::<usize>().read_unaligned()) };
    let mut requests = vec![first];
    for at in 1..count {
        // SAFETY: the caller promises an array of `count` probes, whose stride is the size of the first.
        let (probe, size) = unsafe {
            let probe = probes.byte_add(at * stride);
            (probe, probe.cast::<usize>().read_unaligned())
        };
        if size != stride {
            let text = format!("trapline_probe {at} of {size} bytes, the first of {stride}");
            return Err(Fault::new(Error::StructSize, text));
        }
        // SAFETY: the probe is within that array.
        requests.push(unsafe { request(probe)? });
    }
    Ok(requests)
}

/// Unregisters a consumer, and returns when no handler of it can still run. The registration is gone then,
/// unless a handler made this call. Null is allowed, and does nothing.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn trapline_unregister(registration: *mut Registration) -> Error {
    // SAFETY: the header demands null or a live registration.
    unsafe { trapline_unregister_all(&raw const registration, 1) }
}

/// Unregisters all, and waits once, until no handler of any of them can still run. Otherwise as
/// trapline_unregister.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn trapline_unregister_all(
    registrations: *const *mut Registration,
    count: usize,
) -> Error {
    guard(|| {
        if registrations.is_null() && count > 0 {
            return Err(Fault::new(Error::NullPointer, "registrations is null"));
        }
        if inside::is_inside_handler() {
            return Err(inside::Error::InsideHandler.into());
        }
        // SAFETY: the header demands an array of `count` registrations.
        let all = (0..count).map(|at| unsafe { registrations.add(at).read() }).filter(|one| !one.is_null());
        // SAFETY: the header demands live registrations: made by `trapline_register_all`, and not ended
        // since.
        let all: Vec<_> = all.map(|one| unsafe { Box::from_raw(one) }.0).collect();
        Ok(inside::unregister_all(all)?)
    })
}

/// Probes what was mapped since the last look (dlopen, mmap), and drops what was unmapped. `sites`, if not
/// null, is set to the number of sites that were patched.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn trapline_rescan(sites: *mut usize) -> Error {
    guard(|| {
        let patched = inside::rescan()?;
        if !sites.is_null() {
            // SAFETY: `sites` is not null, and the header demands that it may be written.
            unsafe { sites.write(patched) };
        }
        Ok(())
    })
}

/// Fills in what the registration's site has counted. The caller sets `tally->size`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn trapline_tally_of(registration: *const Registration, tally: *mut Tally) -> Error {
    guard(|| {
        // SAFETY: the header demands null or a live registration.
        let Some(Registration(one)) = (unsafe { registration.as_ref() }) else {
            return Err(Fault::new(Error::NullPointer, "registration is null"));
        };
        let inside::Tally { hits, nested, unplaced, empty, unreturned } = one.counts();
        let (traps, jumps): (Vec<_>, Vec<_>) = one.sites().into_iter().partition(|way| *way == Tactic::Trap);
        let (by_jump, by_trap) = (jumps.len() as u64, traps.len() as u64);
        let value = Tally { size: 0, hits, nested, unplaced, unreturned, by_jump, by_trap, empty };
        // SAFETY: the header demands a structure of the size that it states, not in use elsewhere.
        unsafe { growing::write(tally, &value) }
    })
}

#[cfg(test)]
mod tests {
    use super::{Growing as _, Hit, Probe, Regs, Tally, Verdict, raw};
    use std::mem::{align_of, offset_of, size_of};
    use trapline::inside::Gpr;

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
