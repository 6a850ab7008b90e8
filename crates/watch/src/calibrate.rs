//! The cost of a trap on this machine, measured in our own process with the samples that the target will
//! write.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use trapline_record::RemoteAddr;
use trapline_tracee::Shield;
use trapline_tracee::perf::{Access, Breakpoint, Family, NotArmed, SampleOptions, SampleRings, this_thread};

use crate::accounts::Reserved;
use crate::error::{ENOSPC, WatchError, explain};
use crate::holders::no_registers;
use crate::native;
use crate::watching::Options;

/// Number of writes that are timed, in some 4 ms.
const WRITES: u64 = 400;
/// Pages of a ring that holds their samples.
const PAGES: u64 = 256;

/// What was measured.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Cost {
    /// Nanoseconds by which one access took longer, sample included; the least of a few rounds.
    pub ns_per_trap: f64,
    /// Number of debug registers of a CPU, found by trying.
    pub registers: u32,
}

/// A word that no other code writes.
static CELL: AtomicU64 = AtomicU64::new(0);

fn write() -> f64 {
    let begun = Instant::now();
    for value in 0..WRITES {
        CELL.store(value, Ordering::Relaxed);
    }
    begun.elapsed().as_nanos() as f64 / WRITES as f64
}

/// Measures the cost.
///
/// # Errors
/// When nothing can be watched here, or breakpoints can be opened and do not trap.
pub fn cost(options: Options) -> Result<Cost, WatchError> {
    let handled = || WatchError::Kernel {
        tid: this_thread(),
        source: std::io::Error::other("SIGTRAP has a handler here"),
    };
    Shield::over_own(|| measured(options)).ok_or_else(handled)?
}

fn measured(options: Options) -> Result<Cost, WatchError> {
    let sampled = SampleOptions {
        family: Family::Alone,
        registers: options.values,
        stack: options.stack,
        values: options.values && options.bpf && !native::TRAPS_BEFORE,
        kernel: false,
        pages: PAGES,
    };
    let rings = SampleRings::open(sampled).map_err(|source| WatchError::Rings { source })?;
    let at = Breakpoint {
        addr: RemoteAddr((&raw const CELL).expose_provenance() as u64),
        len: 8,
        access: Access::Write,
    };
    let tid = this_thread();
    let full = || WatchError::NoRegisters(Box::new(no_registers(&rings, tid, &[tid], &[at])));
    let reserved = Reserved::take(tid, &[at]).map_err(|_| full())?;
    let failed = |error: NotArmed| match error.source.raw_os_error() {
        Some(ENOSPC) => full(),
        _ => explain(error),
    };
    let registers = rings.free_registers(tid, at).map_err(failed)?;
    let bare = write();
    let armed = rings.arm(tid, at).map_err(failed)?;
    let (mut ns_per_trap, mut traps) = (f64::MAX, 0);
    for _ in 0..3 {
        ns_per_trap = ns_per_trap.min(write() - bare);
        rings.drain(|_, _, _| traps += 1);
    }
    drop((armed, reserved));
    if traps == 0 {
        return Err(WatchError::NoHardware { why: format!("{} writes of our own did not trap", 3 * WRITES) });
    }
    Ok(Cost { ns_per_trap: ns_per_trap.max(0.0), registers })
}
