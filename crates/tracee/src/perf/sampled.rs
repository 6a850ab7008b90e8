//! One ring for each CPU, and breakpoint events of any task that write their samples into it.
//!
//! Two rules of the kernel shape this (perf_event_open(2); `perf record` does the same for the same reason).
//! A ring may be mapped with `inherit` only by an event that is bound to a CPU. An event may write into
//! another event's ring only on the same CPU. So a thread gets one event for each CPU, redirected to that
//! CPU's ring, which belongs to an event of our own. Where BPF is permitted, that event also takes what the
//! program reads at the trap, so value and sample stand one after the other.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use trapline_record::RemoteAddr;

use super::breakpoint::Access;
use super::cpus::{NotArmed, online_cpus, ring};
use super::{TaskRings, USER_REGS, program};
use crate::sys::bpf;
use crate::sys::perf::{self, Attr, Ring};

const TYPE_SOFTWARE: u32 = 1;
const SW_DUMMY: u64 = 9;
const SW_BPF_OUTPUT: u64 = 10;

const SAMPLE_IP: u64 = 1;
const SAMPLE_TID: u64 = 1 << 1;
const SAMPLE_TIME: u64 = 1 << 2;
const SAMPLE_ADDR: u64 = 1 << 3;
const SAMPLE_CALLCHAIN: u64 = 1 << 5;
const SAMPLE_CPU: u64 = 1 << 7;
const SAMPLE_RAW: u64 = 1 << 10;
const SAMPLE_REGS_USER: u64 = 1 << 12;
const SAMPLE_IDENTIFIER: u64 = 1 << 16;

/// `PERF_FORMAT_LOST`.
const FORMAT_LOST: u64 = 1 << 4;

/// The number of debug registers for addresses. An x86-64 processor has four, for data and instructions alike
/// (Intel SDM 3B, 18.2.1). Most arm64 processors have four for data (2 to 16: Arm ARM D2.8).
pub const DEBUG_REGISTERS: u8 = 4;

/// Whether the kernel counts samples that find no room.
fn counts_lost() -> bool {
    let attr = Attr {
        kind: TYPE_SOFTWARE,
        config: SW_DUMMY,
        read_format: FORMAT_LOST,
        flags: perf::DISABLED | perf::EXCLUDE_KERNEL,
        ..Attr::default()
    };
    perf::open(attr, 0, -1).is_ok()
}

/// What a debug register is to hold.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Breakpoint {
    /// First byte; a multiple of `len`.
    pub addr: RemoteAddr,
    /// 1, 2, 4 or 8 bytes; 1 for [`Access::Execute`].
    pub len: u8,
    /// What traps.
    pub access: Access,
}

/// Which tasks inherit a thread's events. Inherited or not, the events end when the task executes another
/// program. Those of [`Family::Alone`] end when they are dropped.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Family {
    /// No task inherits them.
    Alone,
    /// The threads that it creates, and those that they create.
    Threads,
    /// Threads and forked processes.
    Forks,
}

/// What the samples hold, and which tasks and accesses they come from.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SampleOptions {
    /// Which tasks inherit the events.
    pub family: Family,
    /// User registers, see [`USER_REGS`].
    pub registers: bool,
    /// The user's call chain, by frame pointers.
    pub stack: bool,
    /// The watched bytes, which a BPF program reads at the trap where that is permitted.
    pub values: bool,
    /// Also accesses that the kernel makes for the program, such as `read(2)` into a buffer, where that is
    /// permitted.
    pub kernel: bool,
    /// Pages of each ring, a power of two. Fewer are taken if the user's limit of locked memory does not
    /// suffice.
    pub pages: u64,
}

/// One CPU's ring.
#[derive(Debug)]
struct CpuRing {
    cpu: u32,
    ring: Ring,
}

/// The rings, and the program that fills them with values.
#[derive(Debug)]
pub struct SampleRings {
    rings: Vec<CpuRing>,
    options: SampleOptions,
    program: Option<OwnedFd>,
    _array: Option<OwnedFd>,
    value_ids: Vec<u64>,
    no_values: Option<String>,
    /// Whether an event counts the samples that found no room in its ring (from Linux 6.0 on).
    counts_lost: bool,
}

/// A breakpoint of one thread: an event for each CPU.
#[derive(Debug)]
pub struct Armed {
    events: Vec<OwnedFd>,
    attr: Attr,
}

impl SampleRings {
    /// Makes one ring for each CPU that is on.
    ///
    /// # Errors
    /// When the kernel does not permit perf events at all, or has no memory to lock.
    pub fn open(options: SampleOptions) -> io::Result<Self> {
        let mut rings = Self {
            rings: Vec::new(),
            options,
            program: None,
            _array: None,
            value_ids: Vec::new(),
            no_values: None,
            counts_lost: counts_lost(),
        };
        if options.values {
            match rings.with_values() {
                Ok(()) => return Ok(rings),
                Err(error) => {
                    rings.no_values = Some(error.to_string());
                    (rings.rings, rings.value_ids) = (Vec::new(), Vec::new());
                }
            }
        }
        let attr = Attr { kind: TYPE_SOFTWARE, config: SW_DUMMY, ..rings.owner() };
        rings.make(attr, 0)?;
        Ok(rings)
    }
    /// Opens rings with events that take a BPF program's output.
    fn with_values(&mut self) -> io::Result<()> {
        let attr = Attr {
            kind: TYPE_SOFTWARE,
            config: SW_BPF_OUTPUT,
            sample_type: SAMPLE_IDENTIFIER | SAMPLE_RAW,
            sample_period: 1,
            ..self.owner()
        };
        self.make(attr, -1)?;
        let entries = self.rings.iter().map(|one| one.cpu + 1).max().unwrap_or(1);
        let array = bpf::map(bpf::PERF_EVENT_ARRAY, 4, 4, entries)?;
        for one in &self.rings {
            bpf::put(array.as_fd(), one.cpu, one.ring.event())?;
            perf::enable(one.ring.event())?;
            self.value_ids.push(perf::id(one.ring.event())?);
        }
        self.program = Some(bpf::overflow_program(&program::read_value(array.as_fd()))?);
        self._array = Some(array);
        Ok(())
    }
    /// The attributes that all owners of rings have in common. The watermark of a ring is its owner's.
    fn owner(&self) -> Attr {
        let wakeup = u32::try_from(self.options.pages * 512).unwrap_or(u32::MAX);
        Attr {
            flags: perf::WATERMARK | perf::USE_CLOCKID | perf::EXCLUDE_KERNEL,
            wakeup,
            clockid: libc::CLOCK_MONOTONIC,
            ..Attr::default()
        }
    }
    fn make(&mut self, attr: Attr, pid: i32) -> io::Result<()> {
        for cpu in online_cpus() {
            match perf::open(attr, pid, cpu as i32) {
                Ok(event) => self.rings.push(CpuRing { cpu, ring: ring(event, self.options.pages)? }),
                // That CPU went offline since the list was read.
                Err(error) if error.raw_os_error() == Some(libc::ENODEV) => {}
                Err(error) => return Err(error),
            }
        }
        if self.rings.is_empty() { Err(io::Error::from_raw_os_error(libc::ENODEV)) } else { Ok(()) }
    }
    /// The number of CPUs with a ring, which is the number of events for each breakpoint of a thread.
    #[must_use]
    pub fn cpus(&self) -> usize {
        self.rings.len()
    }
    /// Why no BPF program reads values, if one was requested and none does.
    #[must_use]
    pub fn no_values(&self) -> Option<&str> {
        self.no_values.as_deref()
    }
    /// Whether a BPF program reads values.
    #[must_use]
    pub const fn reads_values(&self) -> bool {
        self.program.is_some()
    }
    /// The identifiers that the program's records carry.
    #[must_use]
    pub fn value_ids(&self) -> &[u64] {
        &self.value_ids
    }
    /// What the samples hold.
    #[must_use]
    pub const fn options(&self) -> SampleOptions {
        self.options
    }
    fn attr(&self, at: Breakpoint) -> Attr {
        let SampleOptions { family, registers, stack, kernel, .. } = self.options;
        let mut flags = perf::EXCLUDE_HV | perf::WATERMARK | perf::USE_CLOCKID;
        flags |= perf::EXCLUDE_CALLCHAIN_KERNEL;
        flags |= match family {
            // No flags, so that this works also on kernels that lack the other flags.
            Family::Alone => 0,
            Family::Threads => perf::INHERIT | perf::INHERIT_THREAD | perf::REMOVE_ON_EXEC,
            Family::Forks => perf::INHERIT | perf::REMOVE_ON_EXEC,
        };
        flags |= if kernel { 0 } else { perf::EXCLUDE_KERNEL };
        let mut sample = SAMPLE_IDENTIFIER | SAMPLE_IP | SAMPLE_TID | SAMPLE_TIME | SAMPLE_ADDR | SAMPLE_CPU;
        sample |= if registers { SAMPLE_REGS_USER } else { 0 } | if stack { SAMPLE_CALLCHAIN } else { 0 };
        let (bp_type, len) = match at.access {
            Access::Write => (2, at.len),
            Access::ReadWrite => (3, at.len),
            // For execution the kernel accepts only the size of a long, and watches one byte.
            Access::Execute => (4, 8),
        };
        Attr {
            kind: perf::BREAKPOINT,
            sample_period: 1,
            sample_type: sample,
            flags,
            wakeup: 1,
            bp_type,
            config1: at.addr.0,
            config2: len.into(),
            read_format: if self.counts_lost { FORMAT_LOST } else { 0 },
            sample_regs_user: if registers { USER_REGS } else { 0 },
            clockid: libc::CLOCK_MONOTONIC,
            ..Attr::default()
        }
    }
    /// Opens a breakpoint of one thread on every CPU. It is enabled from its beginning.
    ///
    /// It is not opened disabled and enabled later, because the kernel's inheriting and enabling can miss each other.
    /// When two threads with equal events follow each other on a CPU, the kernel exchanges their lists of events
    /// (`perf_event_context_sched_out`). From then on, enabling takes the lock of another list than the one under which
    /// the maker's event is copied. A thread that is created at that moment then has a copy that stays disabled, and so
    /// have all threads that it creates, or with which it exchanges lists.
    ///
    /// # Errors
    /// [`NotArmed`]; no event of it stays open.
    pub fn arm(&self, tid: u32, at: Breakpoint) -> Result<Armed, NotArmed> {
        self.open_all(tid, self.attr(at))
    }
    fn open_all(&self, tid: u32, attr: Attr) -> Result<Armed, NotArmed> {
        let mut events = Vec::with_capacity(self.rings.len());
        for CpuRing { cpu, ring } in &self.rings {
            let failed = |source| NotArmed { tid, cpu: *cpu, source };
            let event = perf::open(attr, tid as i32, *cpu as i32).map_err(failed)?;
            perf::redirect(event.as_fd(), ring.event()).map_err(failed)?;
            if let Some(program) = &self.program {
                perf::set_program(event.as_fd(), program.as_fd()).map_err(failed)?;
            }
            events.push(event);
        }
        Ok(Armed { events, attr })
    }
    /// How many more breakpoints of that kind one thread can have now, on every CPU. Found by opening and
    /// closing them.
    ///
    /// # Errors
    /// When opening fails for another reason than full debug registers.
    pub fn free_registers(&self, tid: u32, at: Breakpoint) -> Result<u32, NotArmed> {
        /// More than any processor has.
        const MOST: u32 = 64;
        let mut attr = self.attr(at);
        attr.flags |= perf::DISABLED;
        let mut held = Vec::new();
        while (held.len() as u32) < MOST {
            match self.open_all(tid, attr) {
                Ok(armed) => held.push(armed),
                Err(error) if error.source.raw_os_error() == Some(libc::ENOSPC) => break,
                Err(error) => return Err(error),
            }
        }
        Ok(held.len() as u32)
    }
    /// Takes all records, and calls `each` with CPU, type and body. Returns the CPUs with doubtful records:
    /// the ring may have been full since its last record, so that a loss is not recorded yet; or it held
    /// something that makes no sense.
    pub fn drain(&self, mut each: impl FnMut(u32, u32, &[u8])) -> Vec<u32> {
        /// Bytes. Longer than any record: without a call chain, and with one (`perf_event_max_stack`).
        const LONGEST: [u64; 2] = [1 << 10, 36 << 10];
        let longest = LONGEST[usize::from(self.options.stack)];
        let mut doubtful = Vec::new();
        for one in &self.rings {
            let drained = one.ring.drain(|kind, _, body| each(one.cpu, kind, body));
            if !drained.sound || drained.room < longest {
                doubtful.push(one.cpu);
            }
        }
        doubtful
    }
    /// Takes all records, and looks at none.
    pub fn discard(&self) {
        self.rings.iter().for_each(|one| _ = one.ring.drain(|_, _, _| {}));
    }
    /// Waits at most `at_most`, until a ring begins to fill or something happens to a followed thread.
    pub fn wait(&self, tasks: &TaskRings, at_most: Duration) {
        let rings = self.rings.iter().map(|one| one.ring.event());
        let events: Vec<BorrowedFd<'_>> = rings.chain(tasks.events()).collect();
        perf::wait(&events, at_most);
    }
}

impl Armed {
    /// The number of its samples that found no room in their rings, those of tasks that inherited it included. `None` if
    /// the kernel does not count them. The records of losses in a ring are no such number: the last ones are written
    /// only with the next sample, and with a BPF program each trap makes two records.
    #[must_use]
    pub fn lost(&self) -> Option<u64> {
        if self.attr.read_format & FORMAT_LOST == 0 {
            return None;
        }
        // The value, and the number of lost samples.
        self.events.iter().map(|event| Some(perf::read::<2>(event.as_fd()).ok()?[1])).sum()
    }
    /// The identifiers that its samples carry, including samples of tasks that inherited it.
    ///
    /// # Errors
    /// None is known for an open event.
    pub fn ids(&self) -> io::Result<Vec<u64>> {
        self.events.iter().map(|event| perf::id(event.as_fd())).collect()
    }
    /// Moves it to another address with the same or another length, in all tasks that inherited it too.
    ///
    /// # Errors
    /// When the kernel refuses the address.
    pub fn move_to(&mut self, at: Breakpoint) -> io::Result<()> {
        self.attr.config1 = at.addr.0;
        (self.attr.bp_type, self.attr.config2) = match at.access {
            Access::Write => (2, at.len.into()),
            Access::ReadWrite => (3, at.len.into()),
            Access::Execute => (4, 8),
        };
        self.events.iter().try_for_each(|event| perf::modify(event.as_fd(), self.attr))
    }
}
