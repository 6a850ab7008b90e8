//! Memory to run generated code in: code and shared data within reach of each other, and private stamps.

use trapline_plan::TrampolineCode;
use trapline_plan::x86_64::stub::{Latency, Machine, Rseq, trampoline_code, trampoline_code_len};
use trapline_record::hist;
use trapline_record::latency::{STAMPS_LEN, STRIDE, Stamps, at};
use trapline_record::trampolines::Trampolines;

unsafe extern "C" {
    safe static __rseq_offset: isize;
    safe static __rseq_size: u32;
}

pub(crate) const LINES: u32 = 65;
const CODE_LEN: u64 = 4 << 20;
const DATA_LEN: u64 = 112 << 20;
/// Offset of the latency area in the data; counters and a control block come before it.
const LATENCY: u64 = 1 << 20;
/// Offset of the rows for counting by thread, behind all that.
const ROWS: u64 = 48 << 20;
/// Number of functions that fit.
pub(crate) const FUNCTIONS: u32 = 64;

pub(crate) struct Arena {
    base: u64,
    used: u64,
    stamps: u64,
    trampolines: u64,
    /// Address and length of the places where entries leave records for returns.
    places: (u64, u64),
}

pub(crate) fn map(len: u64, protection: i32, flags: i32) -> u64 {
    // SAFETY: a fresh anonymous mapping at an address that the kernel chooses replaces nothing.
    let at = unsafe {
        libc::mmap(core::ptr::null_mut(), len as usize, protection, flags | libc::MAP_ANONYMOUS, -1, 0)
    };
    assert_ne!(at, libc::MAP_FAILED);
    at as u64
}

impl Arena {
    pub(crate) fn new() -> Self {
        const RW: i32 = libc::PROT_READ | libc::PROT_WRITE;
        let base = map(CODE_LEN + DATA_LEN, RW | libc::PROT_EXEC, libc::MAP_SHARED | libc::MAP_NORESERVE);
        let stamps = map(STAMPS_LEN, RW, libc::MAP_PRIVATE | libc::MAP_NORESERVE);
        Self { base, used: 0, stamps, trampolines: 0, places: (0, 0) }
    }
    /// Unmaps the arena. No code may run in it any more.
    pub(crate) fn unmap(self) {
        // SAFETY: both mappings are this arena's own, and it is not used again.
        unsafe {
            libc::munmap(self.base as *mut libc::c_void, (CODE_LEN + DATA_LEN) as usize);
            libc::munmap(self.stamps as *mut libc::c_void, STAMPS_LEN as usize);
            if self.places.1 > 0 {
                libc::munmap(self.places.0 as *mut libc::c_void, self.places.1 as usize);
            }
        }
    }
    /// Address where the next code will lie.
    pub(crate) fn next(&self) -> u64 {
        self.base + self.used
    }
    /// Leaves what lies before `at`.
    pub(crate) fn skip_to(&mut self, at: u64) {
        assert!(at >= self.next());
        self.used = at - self.base;
    }
    pub(crate) fn put(&mut self, code: &[u8]) -> u64 {
        let at = self.next();
        assert!(self.used + code.len() as u64 <= CODE_LEN);
        // SAFETY: the bytes fit into the code part of our own mapping, and nothing runs there yet.
        unsafe { core::ptr::copy_nonoverlapping(code.as_ptr(), at as *mut u8, code.len()) };
        self.used = (self.used + code.len() as u64).next_multiple_of(64);
        at
    }
    pub(crate) const fn data(&self) -> u64 {
        self.base + CODE_LEN
    }
    /// Counter `n` on line 0; each has lines of its own.
    pub(crate) const fn word(&self, n: u64) -> u64 {
        self.data() + 0x2000 + n * LINES as u64 * 64
    }
    pub(crate) fn counted(&self, n: u64) -> u64 {
        (0..u64::from(LINES)).map(|line| get(self.word(n) + line * 64)).sum()
    }
    pub(crate) const fn rows(&self) -> u64 {
        self.data() + ROWS
    }
    pub(crate) const fn missed(&self) -> u64 {
        self.data() + 0x1000
    }
    pub(crate) const fn stamps(&self) -> u64 {
        self.stamps
    }
    /// The same with `count` return trampolines, with their code in place.
    pub(crate) fn armed(&mut self, machine: &Machine, count: u32) -> (Latency, Trampolines) {
        self.armed_by(machine, count, trampoline_code)
    }
    /// The same with code from this function.
    pub(crate) fn armed_by(
        &mut self,
        machine: &Machine,
        count: u32,
        trampoline_code: fn(&Machine, &Latency) -> Option<TrampolineCode>,
    ) -> (Latency, Trampolines) {
        const RW: i32 = libc::PROT_READ | libc::PROT_WRITE;
        assert_eq!(self.trampolines, 0, "one set of slots to an arena");
        let unplaced = Trampolines { code: 0, table: 0, count };
        let code = map(trampoline_code_len(&unplaced), RW | libc::PROT_EXEC, libc::MAP_SHARED);
        let table = map(unplaced.table_len(), RW, libc::MAP_PRIVATE | libc::MAP_NORESERVE);
        let trampolines = Trampolines { code, table, count };
        let latency = Latency { trampolines: Some(trampolines), ..self.latency() };
        let made = trampoline_code(machine, &latency).expect("slots");
        assert!(made.bytes.len() as u64 <= trampoline_code_len(&trampolines));
        // SAFETY: the bytes fit into our own mapping, and nothing runs there yet.
        unsafe { core::ptr::copy_nonoverlapping(made.bytes.as_ptr(), code as *mut u8, made.bytes.len()) };
        for (code_region, word) in trampolines.hints() {
            set(code_region, word);
        }
        self.trampolines = made.unwind;
        (latency, trampolines)
    }
    /// The argument for `__register_frame`.
    pub(crate) const fn unwind(&self) -> u64 {
        self.trampolines
    }
    pub(crate) fn latency(&self) -> Latency {
        Latency {
            area: self.data() + LATENCY,
            functions: FUNCTIONS,
            stamps: self.stamps,
            shape: Stamps::default(),
            missed: self.missed(),
            min_ticks: 0,
            buckets: Default::default(),
            outermost: false,
            go: None,
            trampolines: None,
        }
    }
    /// The same with places for records of this many bytes.
    pub(crate) fn deferred(&mut self, bytes: u32) -> Latency {
        const RW: i32 = libc::PROT_READ | libc::PROT_WRITE;
        assert_eq!(self.places.1, 0, "one set of places to an arena");
        let shape = Stamps::of(bytes);
        let stamps = map(shape.bytes(), RW, libc::MAP_PRIVATE | libc::MAP_NORESERVE);
        self.places = (stamps, shape.bytes());
        Latency { stamps, shape, ..self.latency() }
    }
    fn block(&self, function: u32, line: u32) -> u64 {
        self.data() + LATENCY + (u64::from(function) * u64::from(LINES) + u64::from(line)) * STRIDE
    }
    /// Sum of a word over all lines.
    pub(crate) fn timed(&self, function: u32, word: u64) -> u64 {
        (0..LINES).map(|line| get(self.block(function, line) + word)).fold(0, u64::wrapping_add)
    }
    /// Armed calls that began, and those that ended and were kept.
    pub(crate) fn begun_and_ended(&self, function: u32) -> (u64, u64) {
        let ended = (0..hist::BUCKETS).map(|bucket| self.bucket(function, bucket)).sum();
        assert_eq!(
            self.timed(function, at::RETURNS),
            0,
            "without a shortest duration, buckets count returns"
        );
        (self.timed(function, at::BEGUN), ended)
    }
    pub(crate) fn max(&self, function: u32, word: u64) -> u64 {
        (0..LINES).map(|line| get(self.block(function, line) + word)).max().unwrap_or(0)
    }
    pub(crate) fn bucket(&self, function: u32, bucket: usize) -> u64 {
        self.timed(function, at::BUCKETS + bucket as u64 * 8)
    }
}

pub(crate) fn get(at: u64) -> u64 {
    // SAFETY: callers pass aligned words of an `Arena`'s mappings, which stay mapped while it is used.
    unsafe { (*(at as *const core::sync::atomic::AtomicU64)).load(core::sync::atomic::Ordering::SeqCst) }
}
pub(crate) fn set(at: u64, value: u64) {
    // SAFETY: as for `get`.
    unsafe {
        (*(at as *const core::sync::atomic::AtomicU64)).store(value, core::sync::atomic::Ordering::SeqCst)
    }
}

/// Machines to test: with rseq if this process has it, and without.
pub(crate) fn machines() -> Vec<Machine> {
    let mut machines = vec![Machine { rseq: None, rdpid: false, lines: LINES }];
    if __rseq_size > 0 {
        let rseq = Rseq { offset: __rseq_offset as i32, signature: 0x5305_3053 };
        machines.push(Machine { rseq: Some(rseq), rdpid: false, lines: LINES });
    } else {
        eprintln!("skipped: no rseq in this process");
    }
    machines
}

/// Unregisters the calling thread's rseq area for good.
pub(crate) fn unregister() {
    let area = thread_pointer().wrapping_add_signed(__rseq_offset as i64);
    // SAFETY: the area is this thread's own, registered by libc with this size and signature.
    let done = unsafe { libc::syscall(libc::SYS_rseq, area, __rseq_size.max(32), 1, 0x5305_3053) };
    assert_eq!(done, 0, "{}", std::io::Error::last_os_error());
}

pub(crate) fn thread_pointer() -> u64 {
    let pointer;
    // SAFETY: by the psABI, fs:0 holds the thread pointer itself.
    unsafe { core::arch::asm!("mov {}, fs:0", out(reg) pointer) };
    pointer
}

/// Calls code in an arena that follows the C calling convention.
pub(crate) fn call(code: u64, arg: u64) -> u64 {
    // SAFETY: tests pass the start of a function that they assembled, with this signature.
    let f: extern "C" fn(u64) -> u64 = unsafe { core::mem::transmute(code) };
    f(arg)
}
