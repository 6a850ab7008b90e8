//! Memory and signal actions in the target, set up by one stopped thread, or by our own process for itself:
//! step I5 of `protocol`, and its undoing.
//!
//! In: regions with fixed addresses, a handler's code. Out: a segment in state Building, mapped; the handler
//! in place.
//! Invariants: code is mapped R-X from the start; an action is journaled before it is replaced (SAFE-3).
//! Does not: write sites.

use trapline_plan::{DataLayout, ModulePlan, Region};
use trapline_record::RemoteAddr;
use trapline_record::control::{MEMFD_NAME, RegionKind, State, at};
use trapline_record::trampolines::Trampolines;
use trapline_tracee::{Batch, RemoteOptions, SharedMap, TargetError};

use crate::batches::Batches;
use crate::error::PatchError;
use crate::install::caller::{Caller, flags};
use crate::install::prepared::Prepared;
use crate::install::survey::Survey;
use crate::memory::segment::{Contents, MadeTrampolines, MappedRegion, Segment};
use crate::native::handler::{handler, signals};

/// The mappings that plans and stamps need, and the bytes of the memfd behind them.
fn regions(prepared: &Prepared) -> (Vec<MappedRegion>, u64) {
    let Prepared { plans, room, .. } = prepared;
    let mut end = room.layout.len;
    let mut regions = Vec::new();
    if let Some(region) = room.stamps {
        regions.push(MappedRegion { region, off: 0, kind: RegionKind::Stamps });
    }
    if let Some(region) = room.own {
        regions.push(MappedRegion { region, off: 0, kind: RegionKind::Own });
    }
    if let Some(region) = room.far {
        regions.push(MappedRegion { region, off: room.layout.near, kind: RegionKind::Data });
    }
    for plan in plans {
        regions.push(MappedRegion { region: plan.data, off: 0, kind: RegionKind::Data });
        for &region in std::iter::once(&plan.code).chain(&plan.pun_regions) {
            regions.push(MappedRegion { region, off: end, kind: RegionKind::Code });
            end += region.len;
        }
    }
    if let Some((MadeTrampolines { trampolines, .. }, code)) = &prepared.trampolines {
        let len = (code.len() as u64).next_multiple_of(4096);
        let region = Region { addr: RemoteAddr(trampolines.code), len };
        regions.push(MappedRegion { region, off: end, kind: RegionKind::Code });
        end += len;
        let region = Region { addr: RemoteAddr(trampolines.table), len: trampolines.table_len() };
        regions.push(MappedRegion { region, off: 0, kind: RegionKind::Trampolines });
    }
    (regions, end)
}

/// Maps the memory, fills its control block, and replaces the actions if code of ours is to serve traps.
pub(crate) fn map(
    batches: &mut Batches,
    batch: &mut Batch<'_>,
    prepared: &Prepared,
    survey: &Survey,
    remote: &RemoteOptions,
) -> Result<Segment, PatchError> {
    let pid = batch.process().pid();
    let mut caller = batch.remote(remote, &|addr| batches.resume(addr))?;
    let result = map_by(batches, &mut caller, pid, prepared, survey);
    caller.finish()?;
    batch.set_trap_handler(batches.installed.and_then(|i| i.trap()));
    batch.set_illegal_handler(batches.installed.and_then(|i| i.illegal()));
    result
}

/// The same by any caller.
pub(crate) fn map_by(
    batches: &mut Batches,
    caller: &mut impl Caller,
    pid: u32,
    prepared: &Prepared,
    survey: &Survey,
) -> Result<Segment, PatchError> {
    let (regions, len) = regions(prepared);
    let first = &prepared.plans[0];
    let control = first.data.addr;
    let (entries, guards, deliveries) = (prepared.entries(), prepared.guards(), prepared.deliveries());
    let trampolines = prepared.trampolines.as_ref().map(|(made, _)| *made).or(batches.own_trampolines);
    let contents = Contents { pid, control, regions, entries, guards, deliveries, trampolines };
    let handler = handler(first.spare.addr.0, control.0)
        .filter(|_| survey.no_traps.is_none() && !batches.serves_itself);

    let mut made = Vec::new();
    let result = map_regions(caller, contents, &prepared.room.layout, len, &mut made).and_then(|segment| {
        let Some((code, handler)) = handler else { return Ok(segment) };
        if batches.installed.is_none() {
            segment.write_code(first.spare.addr, &code)?;
            batches.installed = Some(handler);
        }
        let taken = take_actions(batches, caller, &segment, &prepared.plans);
        if taken.is_err() && batches.segments.is_empty() {
            put_back(batches, caller, &segment);
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

fn map_region(caller: &mut impl Caller, fd: i32, r: &MappedRegion) -> Result<(), TargetError> {
    let (prot, how, fd) = match r.kind {
        RegionKind::Data => (flags::READ | flags::WRITE, flags::SHARED, fd),
        RegionKind::Code => (flags::READ | flags::EXEC, flags::SHARED, fd),
        RegionKind::Stamps | RegionKind::Trampolines | RegionKind::Own => {
            (flags::READ | flags::WRITE, flags::PRIVATE | flags::ANONYMOUS | flags::NORESERVE, -1)
        }
    };
    caller.mmap(r.region.addr, r.region.len, prot, how | flags::FIXED_NOREPLACE, fd, r.off)?;
    if r.kind == RegionKind::Own { caller.wipe_on_fork(r.region.addr, r.region.len) } else { Ok(()) }
}

/// Replaces the actions of the signals that the plans need, unless they are replaced already.
fn take_actions(
    batches: &mut Batches,
    caller: &mut impl Caller,
    segment: &Segment,
    plans: &[ModulePlan],
) -> Result<(), PatchError> {
    let Some(installed) = &mut batches.installed else { return Ok(()) };
    let view = batches.segments.first().unwrap_or(segment).view();
    installed.take(caller, view, signals(plans))?;
    if installed.faults().iter().all(Option::is_some) {
        segment.view().set(at::FAULT_HANDLER, installed.entry);
    }
    Ok(())
}

/// Puts back the actions of a handler that this segment brought. Returns whether all of them are back.
fn put_back(batches: &mut Batches, caller: &mut impl Caller, segment: &Segment) -> bool {
    batches.installed.take().is_none_or(|installed| installed.put_back(caller, segment.view()))
}

/// Undoes [`map`] before any site was written. Puts back the actions if this segment brought the handler, and
/// unmaps everything except the handler's code and data, which a thread may be in.
pub(crate) fn unmap(batches: &mut Batches, batch: &mut Batch<'_>, remote: &RemoteOptions, segment: &Segment) {
    let Ok(mut caller) = batch.remote(remote, &|addr| batches.resume(addr)) else { return };
    unmap_by(batches, &mut caller, segment);
    drop(caller.finish());
}

fn of_trampolines(trampolines: &Trampolines, r: &MappedRegion) -> bool {
    [trampolines.code, trampolines.table].contains(&r.region.addr.0)
}

/// The same by any caller.
pub(crate) fn unmap_by(batches: &mut Batches, caller: &mut impl Caller, segment: &Segment) {
    let handler = batches.installed.filter(|_| batches.segments.is_empty()).map(|i| RemoteAddr(i.entry));
    if handler.is_some() && put_back(batches, caller, segment) {
        // What stays mapped is in no tracer's way.
        segment.set_state(State::Removed);
    }
    // An unwinder that may have been informed keeps the registration (UNW-1).
    let unwinding = segment
        .trampolines
        .filter(|_| segment.view().get(at::UNWIND_REGISTERED) != 0)
        .map(|made| made.trampolines);
    for r in &segment.regions {
        let used = handler.is_some_and(|pc| r.region.contains(pc) || r.kind == RegionKind::Data);
        if !used && !unwinding.is_some_and(|trampolines| of_trampolines(&trampolines, r)) {
            // The control block may stay, and later tracers unmap what it names: other memory may be there then.
            segment.disown(r.kind);
            drop(caller.munmap(r.region.addr, r.region.len));
        }
    }
}
