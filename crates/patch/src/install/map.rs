//! Memory and signal actions in the target, set up by one stopped thread, or by our own process for itself:
//! step I5 of `protocol`, and its undoing.
//!
//! In: regions with fixed addresses, a handler's code. Out: a segment in state Building, mapped; the handler
//! in place.
//! Invariants: code is mapped R-X from the start; an action is journaled before it is replaced (SAFE-3).
//! Does not: write sites.

use trapline_plan::x86_64::stub::{TrapHandler, trap_handler};
use trapline_plan::{DataLayout, Region};
use trapline_record::RemoteAddr;
use trapline_record::control::{MEMFD_NAME, RegionKind, State, at};
use trapline_record::trampolines::Trampolines;
use trapline_tracee::{Batch, Handler, RemoteOptions, SharedMap, TargetError};

use crate::attached::{Attached, Installed};
use crate::error::PatchError;
use crate::install::caller::Caller;
use crate::install::prepare::Prepared;
use crate::install::survey::{SIGBUS, SIGILL, SIGSEGV, SIGTRAP, Survey};
use crate::memory::segment::{Contents, MadeTrampolines, Region3, Segment};
use crate::native::traps;
use crate::threads::blocked::bit;

/// libc's constants, so that this crate does not need libc.
pub(crate) mod flags {
    pub(crate) const READ: i32 = 1;
    pub(crate) const WRITE: i32 = 2;
    pub(crate) const EXEC: i32 = 4;
    pub(crate) const SHARED: i32 = 0x01;
    pub(crate) const PRIVATE: i32 = 0x02;
    pub(crate) const ANONYMOUS: i32 = 0x20;
    pub(crate) const NORESERVE: i32 = 0x4000;
    pub(crate) const FIXED_NOREPLACE: i32 = 0x10_0000;
    pub(crate) const SA_SIGINFO: u64 = 4;
    pub(crate) const SA_RESTORER: u64 = 0x0400_0000;
    pub(crate) const SA_ONSTACK: u64 = 0x0800_0000;
    pub(crate) const SA_NODEFER: u64 = 0x4000_0000;
    pub(crate) const SA_RESETHAND: u64 = 0x8000_0000;
}

/// A signal that the handler serves: where its old action is journaled, and its bit of `HANDLES`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Served {
    pub(crate) signal: i32,
    pub(crate) old: u64,
    pub(crate) bit: u64,
}

/// All signals: of traps, and of faults.
pub(crate) const SERVED: [Served; 4] = [
    Served { signal: SIGTRAP, old: at::OLD_SIGTRAP, bit: 1 },
    Served { signal: SIGILL, old: at::OLD_SIGILL, bit: 2 },
    Served { signal: SIGSEGV, old: at::OLD_SIGSEGV, bit: 4 },
    Served { signal: SIGBUS, old: at::OLD_SIGBUS, bit: 8 },
];

/// The mappings that plans and stamps need, and the bytes of the memfd behind them.
fn regions(prepared: &Prepared) -> (Vec<Region3>, u64) {
    let Prepared { layout, plans, stamps, .. } = prepared;
    let mut end = layout.len;
    let mut regions = Vec::new();
    if let Some(region) = *stamps {
        regions.push(Region3 { region, off: 0, kind: RegionKind::Stamps });
    }
    if let Some(region) = prepared.far {
        regions.push(Region3 { region, off: layout.near, kind: RegionKind::Data });
    }
    for plan in plans {
        regions.push(Region3 { region: plan.data, off: 0, kind: RegionKind::Data });
        for &region in std::iter::once(&plan.code).chain(&plan.pun_regions) {
            regions.push(Region3 { region, off: end, kind: RegionKind::Code });
            end += region.len;
        }
    }
    if let Some((MadeTrampolines { trampolines, .. }, code)) = &prepared.trampolines {
        let len = (code.len() as u64).next_multiple_of(4096);
        let region = Region { addr: RemoteAddr(trampolines.code), len };
        regions.push(Region3 { region, off: end, kind: RegionKind::Code });
        end += len;
        let region = Region { addr: RemoteAddr(trampolines.table), len: trampolines.table_len() };
        regions.push(Region3 { region, off: 0, kind: RegionKind::Trampolines });
    }
    (regions, end)
}

/// Maps the memory, fills its control block, and replaces the actions if code of ours is to serve traps.
pub(crate) fn map(
    attached: &mut Attached,
    batch: &mut Batch<'_>,
    prepared: &Prepared,
    survey: &Survey,
    remote: &RemoteOptions,
) -> Result<Segment, PatchError> {
    let pid = batch.process().pid();
    let mut caller = batch.remote(remote, &|addr| attached.resume(addr))?;
    let result = map_by(attached, &mut caller, pid, prepared, survey);
    caller.finish()?;
    batch.set_trap_handler(attached.installed.and_then(|i| i.trap()));
    batch.set_illegal_handler(attached.installed.and_then(|i| i.illegal()));
    result
}

/// The same by any caller.
pub(crate) fn map_by(
    attached: &mut Attached,
    caller: &mut impl Caller,
    pid: u32,
    prepared: &Prepared,
    survey: &Survey,
) -> Result<Segment, PatchError> {
    let (regions, len) = regions(prepared);
    let first = &prepared.plans[0];
    let control = first.data.addr;
    let (entries, guards) = (prepared.entries(), prepared.guards());
    let trampolines = prepared.trampolines.as_ref().map(|(made, _)| *made).or(attached.own_trampolines);
    let contents = Contents { pid, control, regions, entries, guards, trampolines };
    let mut code = Vec::new();
    let handler = trap_handler(&mut code, first.spare.addr.0, control.0);
    let illegal = prepared.plans.iter().any(|p| p.k.to_le_bytes() != [0xcc; 4]);
    let faults = prepared.plans.iter().any(|p| !p.fixups.is_empty());
    let wanted = [true, illegal, faults, faults];

    let mut made = Vec::new();
    let result = map_regions(caller, contents, &prepared.layout, len, &mut made).and_then(|segment| {
        if !traps::NEEDED || survey.no_traps.is_some() || attached.serves_itself {
            return Ok(segment);
        }
        if attached.installed.is_none() {
            segment.write_code(first.spare.addr, &code)?;
            attached.installed = Some(Installed::new(handler));
        }
        let taken = take_actions(attached, caller, &segment, wanted);
        if taken.is_err() && attached.segments.is_empty() {
            put_back(attached, caller, &segment);
        }
        taken.map(|()| segment)
    });
    if result.is_err() {
        for region in made {
            // The error that led here is the one that counts. If this fails too, the process is gone or the
            // region is inert.
            drop(caller.munmap(region.addr, region.len));
        }
    }
    result
}

fn map_regions(
    caller: &mut impl Caller,
    contents: Contents,
    layout: &DataLayout,
    len: u64,
    made: &mut Vec<Region>,
) -> Result<Segment, PatchError> {
    let (fd, ours) = caller.memfd(MEMFD_NAME)?;
    let mapped = || {
        let segment = Segment::begin(SharedMap::new(ours, len)?, *layout, contents)?;
        for r in &segment.regions {
            map_region(caller, fd, r)?;
            made.push(r.region);
        }
        Ok::<_, PatchError>(segment)
    };
    let segment = mapped();
    let closed = caller.close(fd);
    let segment = segment?;
    closed?;
    Ok(segment)
}

fn map_region(caller: &mut impl Caller, fd: i32, r: &Region3) -> Result<(), TargetError> {
    let (prot, how, fd) = match r.kind {
        RegionKind::Data => (flags::READ | flags::WRITE, flags::SHARED, fd),
        RegionKind::Code => (flags::READ | flags::EXEC, flags::SHARED, fd),
        RegionKind::Stamps | RegionKind::Trampolines => {
            (flags::READ | flags::WRITE, flags::PRIVATE | flags::ANONYMOUS | flags::NORESERVE, -1)
        }
    };
    caller.mmap(r.region.addr, r.region.len, prot, how | flags::FIXED_NOREPLACE, fd, r.off)?;
    Ok(())
}

impl Installed {
    const fn new(handler: TrapHandler) -> Self {
        Self { entry: handler.entry, restorer: handler.restorer, actions: [None; SERVED.len()] }
    }
    /// The action that we set over an old one. If the program has no handler of its own, no signal interrupts
    /// ours. If it has one, what the program requested for it (stack, mask, restarts) holds for ours, which
    /// passes traps on to it. One thing differs: traps stay unblocked (PATCH-13).
    fn action(&self, signal: i32, old: &Handler) -> Handler {
        let traps = [SIGTRAP, SIGILL];
        let (more, mask) = if old.handler <= 1 {
            (flags::SA_ONSTACK, u64::MAX)
        } else if traps.contains(&signal) {
            let bits = traps.iter().fold(0, |bits, &trap| bits | bit(trap as u32));
            (flags::SA_NODEFER, old.mask & !bits)
        } else {
            (0, old.mask)
        };
        let kept = old.flags & !flags::SA_RESETHAND;
        Handler {
            handler: self.entry,
            flags: kept | flags::SA_SIGINFO | flags::SA_RESTORER | more,
            restorer: self.restorer,
            mask,
        }
    }
}

/// Replaces the action of SIGTRAP, of SIGILL if a displacement holds bytes that are no instruction, and of
/// SIGSEGV and SIGBUS if code of ours may fault; unless they are replaced already.
fn take_actions(
    attached: &mut Attached,
    caller: &mut impl Caller,
    segment: &Segment,
    wanted: [bool; SERVED.len()],
) -> Result<(), PatchError> {
    let Some(mut installed) = attached.installed else { return Ok(()) };
    let view = attached.segments.first().unwrap_or(segment).view();
    view.set(at::HANDLER, installed.entry);
    for (nth, served) in SERVED.iter().enumerate().filter(|(nth, _)| wanted[*nth]) {
        if installed.actions[nth].is_some() {
            continue;
        }
        let old = caller.sigaction(served.signal, None)?;
        let journal = |old: &Handler| {
            for (n, word) in [old.handler, old.flags, old.restorer, old.mask].into_iter().enumerate() {
                view.set(served.old + n as u64 * 8, word);
            }
        };
        journal(&old);
        view.set(at::HANDLES, view.get(at::HANDLES) | served.bit);
        let ours = installed.action(served.signal, &old);
        let replaced = caller.sigaction(served.signal, Some(&ours))?;
        if replaced != old {
            // Another thread changed it between the two calls.
            journal(&replaced);
        }
        installed.actions[nth] = Some(ours);
        attached.installed = Some(installed);
    }
    if installed.faults().iter().all(Option::is_some) {
        segment.view().set(at::FAULT_HANDLER, installed.entry);
    }
    Ok(())
}

/// Puts back the actions of a handler that this segment brought. Returns whether all of them are back.
fn put_back(attached: &mut Attached, caller: &mut impl Caller, segment: &Segment) -> bool {
    let Some(installed) = attached.installed.take() else { return true };
    let mut all = true;
    for (served, ours) in SERVED.iter().zip(installed.actions) {
        let word = |n: u64| segment.view().get(served.old + n * 8);
        let old = Handler { handler: word(0), flags: word(1), restorer: word(2), mask: word(3) };
        if ours.is_some() {
            // This is on a path that reports another error already.
            all &= caller.sigaction(served.signal, Some(&old)).is_ok();
        }
    }
    all
}

/// Undoes [`map`] before any site was written. Puts back the actions if this segment brought the handler, and
/// unmaps everything except the handler's code and data, which a thread may be in.
pub(crate) fn unmap(
    attached: &mut Attached,
    batch: &mut Batch<'_>,
    remote: &RemoteOptions,
    segment: &Segment,
) {
    let Ok(mut caller) = batch.remote(remote, &|addr| attached.resume(addr)) else { return };
    unmap_by(attached, &mut caller, segment);
    drop(caller.finish());
}

fn of_trampolines(trampolines: &Trampolines, r: &Region3) -> bool {
    [trampolines.code, trampolines.table].contains(&r.region.addr.0)
}

/// The same by any caller.
pub(crate) fn unmap_by(attached: &mut Attached, caller: &mut impl Caller, segment: &Segment) {
    let handler = attached.installed.filter(|_| attached.segments.is_empty()).map(|i| RemoteAddr(i.entry));
    if handler.is_some() && put_back(attached, caller, segment) {
        // What stays mapped is in no tracer's way.
        segment.set_state(State::Removed);
    }
    // An unwinder that may have been informed keeps the registration (UNW-1).
    let unwinding =
        segment.trampolines.filter(|_| segment.view().get(at::UNWIND_TOLD) != 0).map(|made| made.trampolines);
    for r in &segment.regions {
        let used = handler.is_some_and(|pc| r.region.contains(pc) || r.kind == RegionKind::Data);
        if !used && !unwinding.is_some_and(|trampolines| of_trampolines(&trampolines, r)) {
            // The control block may stay, and later tracers unmap what it names: other memory may be there then.
            segment.disown(r.kind);
            drop(caller.munmap(r.region.addr, r.region.len));
        }
    }
}
