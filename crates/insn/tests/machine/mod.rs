//! The harness of `semantics`: memory to run windows in, and the signal handler that starts and ends a run.

use object::{Object, ObjectSegment, ObjectSymbol};
use std::cell::UnsafeCell;
use std::sync::{Mutex, MutexGuard};

const STACK: usize = 1 << 20;
const SCRATCH: usize = 1 << 12;
/// Bytes of stack, around the initial rsp, that are set before and compared after each run.
const SEEN_STACK: usize = 1 << 11;
const ARENA: usize = 1 << 16;
/// Room for an XSAVE image of everything but AMX.
const XSTATE: usize = 1 << 13;
/// CF PF AF ZF SF DF OF.
const FLAGS: u64 = 0xCD5;
const INT3: u8 = 0xCC;

/// Random numbers by xorshift64*, so that a run is repeatable.
pub(crate) struct Rng(pub(crate) u64);

impl Rng {
    pub(crate) fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_F491_4F6C_DD1D)
    }
}

/// General registers in hardware order, and flags.
#[derive(Clone, Copy, Debug)]
pub(crate) struct State {
    pub(crate) gprs: [u64; 16],
    pub(crate) flags: u64,
}

impl State {
    pub(crate) fn random(machine: &Machine, rng: &mut Rng) -> Self {
        let mut gprs = [0; 16];
        for gpr in &mut gprs {
            *gpr = match rng.next() % 5 {
                0 => rng.next() % 4,
                1 => rng.next(),
                _ => machine.pointer(rng),
            };
        }
        gprs[4] = machine.stack + STACK as u64 / 2;
        // DF stays clear most of the time, as in programs.
        let flags = rng.next() & FLAGS & if rng.next().is_multiple_of(8) { FLAGS } else { !0x400 };
        Self { gprs, flags }
    }
}

/// How a run ended.
pub(crate) struct Outcome {
    pub(crate) signal: i32,
    pub(crate) rip: u64,
    pub(crate) gprs: [u64; 16],
    pub(crate) flags: u64,
    pub(crate) xmm: Vec<u8>,
    pub(crate) memory: Vec<u8>,
}

/// A file's loadable bytes at their relative addresses, and its functions.
pub(crate) struct Image {
    bytes: Vec<u8>,
    functions: Vec<(u64, usize)>,
}

impl Image {
    pub(crate) fn libc() -> Self {
        let maps = std::fs::read_to_string("/proc/self/maps").expect("own maps");
        let path = maps
            .lines()
            .filter_map(|line| line.split_whitespace().nth(5))
            .find(|path| path.rsplit('/').next().is_some_and(|name| name.starts_with("libc.so")))
            .expect("a libc that is a shared library");
        let data = std::fs::read(path).expect("libc");
        let file = object::File::parse(&*data).expect("libc is an ELF file");
        let mut bytes = Vec::new();
        for segment in file.segments() {
            let (at, data) = (segment.address() as usize, segment.data().expect("segment"));
            bytes.resize(bytes.len().max(at + segment.size() as usize), 0);
            bytes[at..at + data.len()].copy_from_slice(data);
        }
        let text = |s: &object::Symbol<'_, '_>| s.kind() == object::SymbolKind::Text && s.size() >= 8;
        let mut functions: Vec<_> =
            file.dynamic_symbols().filter(text).map(|s| (s.address(), s.size() as usize)).collect();
        functions.sort_unstable();
        functions.dedup_by_key(|f| f.0);
        Self { bytes, functions }
    }
}

/// What the handler and the code under test share. Only one machine exists at a time (`ONE`).
struct Shared {
    /// Whether the next signal begins a run, ends it, or is unexpected.
    phase: Phase,
    input: [i64; 18],
    saved: [i64; 18],
    output: [i64; 18],
    signal: i32,
    /// Vector state that every run begins with; empty before the first run.
    initial: [u8; XSTATE],
    has_initial: bool,
    saved_vector: [u8; XSTATE],
    legacy: [u8; 512],
}

#[derive(PartialEq)]
enum Phase {
    Idle,
    Begin,
    End,
}

struct Cell(UnsafeCell<Shared>);
// SAFETY: used only by the thread that holds `ONE`, and by the handler that interrupts that thread at `int3`
// or inside a window, never while the thread itself holds a reference.
unsafe impl Sync for Cell {}

static SHARED: Cell = Cell(UnsafeCell::new(Shared {
    phase: Phase::Idle,
    input: [0; 18],
    saved: [0; 18],
    output: [0; 18],
    signal: 0,
    initial: [0; XSTATE],
    has_initial: false,
    saved_vector: [0; XSTATE],
    legacy: [0; 512],
}));
static ONE: Mutex<()> = Mutex::new(());

/// Indices of a signal frame's registers, in hardware order.
const GREGS: [i32; 16] = [
    libc::REG_RAX,
    libc::REG_RCX,
    libc::REG_RDX,
    libc::REG_RBX,
    libc::REG_RSP,
    libc::REG_RBP,
    libc::REG_RSI,
    libc::REG_RDI,
    libc::REG_R8,
    libc::REG_R9,
    libc::REG_R10,
    libc::REG_R11,
    libc::REG_R12,
    libc::REG_R13,
    libc::REG_R14,
    libc::REG_R15,
];

/// Bytes of the XSAVE image in a signal frame, as `struct _fpx_sw_bytes` at offset 464 states.
///
/// # Safety
/// `frame` must point to the vector state of a live signal frame.
unsafe fn vector_len(frame: *const u8) -> usize {
    // SAFETY: the caller guarantees at least 512 bytes of FXSAVE image.
    let (magic, size) = unsafe {
        (frame.add(464).cast::<u32>().read_unaligned(), frame.add(480).cast::<u32>().read_unaligned())
    };
    if magic == 0x4650_5853 { (size as usize).min(XSTATE) } else { 512 }
}

extern "C" fn on_signal(signal: i32, _info: *mut libc::siginfo_t, context: *mut libc::c_void) {
    // SAFETY: installed with SA_SIGINFO, so `context` is this signal's frame; the interrupted thread holds no
    // reference to SHARED (see `Cell`).
    let (context, shared) = unsafe { (&mut *context.cast::<libc::ucontext_t>(), &mut *SHARED.0.get()) };
    let gregs = &mut context.uc_mcontext.gregs;
    let frame = context.uc_mcontext.fpregs.cast::<u8>();
    // SAFETY: the kernel's frame holds `len` bytes of vector state at `frame`; all buffers hold XSTATE >=
    // len.
    unsafe {
        let len = vector_len(frame);
        match shared.phase {
            Phase::Begin => {
                shared.saved.copy_from_slice(&gregs[..18]);
                gregs[..18].copy_from_slice(&shared.input);
                frame.copy_to(shared.saved_vector.as_mut_ptr(), len);
                if shared.has_initial {
                    frame.copy_from(shared.initial.as_ptr(), len);
                } else {
                    frame.copy_to(shared.initial.as_mut_ptr(), len);
                    shared.has_initial = true;
                }
                shared.phase = Phase::End;
            }
            Phase::End => {
                shared.output.copy_from_slice(&gregs[..18]);
                gregs[..18].copy_from_slice(&shared.saved);
                frame.copy_to(shared.legacy.as_mut_ptr(), 512);
                frame.copy_from(shared.saved_vector.as_ptr(), len);
                shared.signal = signal;
                shared.phase = Phase::Idle;
            }
            Phase::Idle => {
                libc::signal(signal, libc::SIG_DFL); // Not ours: fail as without a handler.
            }
        }
    }
}

fn map(len: usize, executable: bool) -> *mut u8 {
    let protection = libc::PROT_READ | libc::PROT_WRITE | if executable { libc::PROT_EXEC } else { 0 };
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
    // SAFETY: a new anonymous mapping at an address that the kernel chooses replaces nothing.
    let at = unsafe { libc::mmap(std::ptr::null_mut(), len, protection, flags, -1, 0) };
    assert_ne!(at, libc::MAP_FAILED, "mmap of {len} bytes");
    at.cast()
}

fn install_handler() {
    const LEN: usize = 1 << 16;
    let stack = libc::stack_t { ss_sp: map(LEN, false).cast(), ss_flags: 0, ss_size: LEN };
    // SAFETY: the alternate stack is never unmapped; the handler has the type that SA_SIGINFO asks for.
    unsafe {
        assert_eq!(libc::sigaltstack(&stack, std::ptr::null_mut()), 0);
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = on_signal as *const () as usize;
        action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK;
        for signal in [libc::SIGTRAP, libc::SIGSEGV, libc::SIGBUS, libc::SIGILL, libc::SIGFPE] {
            assert_eq!(libc::sigaction(signal, &action, std::ptr::null_mut()), 0);
        }
    }
}

/// Memory to run windows in.
pub(crate) struct Machine {
    image: &'static mut [u8],
    functions: Vec<(u64, usize)>,
    /// Offset where [`Machine::place`] puts the next window.
    free: usize,
    traps: Vec<(u64, u8)>,
    stack: u64,
    scratch: u64,
    _one: MutexGuard<'static, ()>,
}

impl Machine {
    pub(crate) fn new(from: &Image) -> Self {
        let one = ONE.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        install_handler();
        let len = from.bytes.len() + 2 * ARENA;
        // SAFETY: a fresh mapping of `len` bytes to which no other reference exists; it is never unmapped.
        let image = unsafe { std::slice::from_raw_parts_mut(map(len, true), len) };
        image[..from.bytes.len()].copy_from_slice(&from.bytes);
        let base = image.as_ptr() as u64;
        let functions = from.functions.iter().map(|&(at, len)| (base + at, len)).collect();
        let (stack, scratch) = (map(STACK, false) as u64, map(3 * SCRATCH, false) as u64 + SCRATCH as u64);
        Self {
            image,
            functions,
            free: from.bytes.len() + ARENA,
            traps: Vec::new(),
            stack,
            scratch,
            _one: one,
        }
    }

    pub(crate) fn functions(&self) -> Vec<(u64, usize)> {
        self.functions.clone()
    }

    fn base(&self) -> u64 {
        self.image.as_ptr() as u64
    }

    /// Address for copies, behind the image.
    pub(crate) fn arena(&self) -> u64 {
        self.base() + (self.image.len() - 2 * ARENA) as u64
    }

    /// Whether 64 bytes at `addr` belong to the image or to what [`Machine::place`] uses.
    pub(crate) fn holds(&self, addr: u64) -> bool {
        let at = addr.wrapping_sub(self.base());
        let arena = (self.arena() - self.base()).saturating_sub(64);
        at < arena || (arena + 64 + ARENA as u64..(self.image.len() - 64) as u64).contains(&at)
    }

    pub(crate) fn bytes(&self, addr: u64, len: usize) -> Vec<u8> {
        let at = (addr - self.base()) as usize;
        self.image[at..at + len].to_vec()
    }

    /// Puts a window into free memory, with room around it.
    pub(crate) fn place(&mut self, window: &[u8]) -> u64 {
        let at = self.free + 256;
        self.image[at..at + window.len()].copy_from_slice(window);
        self.free = at + 1024;
        self.base() + at as u64
    }

    pub(crate) fn set_traps(&mut self, at: &[u64]) {
        for &addr in at {
            let byte = &mut self.image[(addr - self.image.as_ptr() as u64) as usize];
            self.traps.push((addr, *byte));
            *byte = INT3;
        }
    }

    pub(crate) fn clear_traps(&mut self) {
        while let Some((addr, byte)) = self.traps.pop() {
            let at = (addr - self.base()) as usize;
            self.image[at] = byte;
        }
    }

    pub(crate) fn write_arena(&mut self, code: &[u8]) {
        let at = (self.arena() - self.base()) as usize;
        self.image[at..at + code.len()].copy_from_slice(code);
        self.image[at + code.len()..at + code.len() + 16].fill(INT3);
    }

    /// An address in the middle of the scratch memory.
    pub(crate) fn pointer(&self, rng: &mut Rng) -> u64 {
        self.scratch + SCRATCH as u64 / 4 + rng.next() % (SCRATCH as u64 / 2) / 16 * 16
    }

    /// Offset in [`Outcome::memory`] of an address in stack or scratch memory.
    #[allow(dead_code, reason = "only `store` asks")]
    pub(crate) fn offset_of(&self, addr: u64) -> Option<usize> {
        let stack = self.stack + (STACK - SEEN_STACK) as u64 / 2;
        let within = |base: u64, len: usize| {
            addr.checked_sub(base).filter(|&at| at < len as u64).map(|at| at as usize)
        };
        within(stack, SEEN_STACK).or_else(|| Some(SEEN_STACK + within(self.scratch, SCRATCH)?))
    }

    fn seen(&mut self) -> [&mut [u8]; 2] {
        let stack = self.stack + (STACK - SEEN_STACK) as u64 / 2;
        // SAFETY: both ranges lie in mappings that this machine made and keeps; `&mut self` keeps them
        // unshared.
        unsafe {
            [
                std::slice::from_raw_parts_mut(stack as *mut u8, SEEN_STACK),
                std::slice::from_raw_parts_mut(self.scratch as *mut u8, SCRATCH),
            ]
        }
    }

    /// Runs code at `rip` until a signal. Stack and scratch memory are filled from `seed` with pointers into
    /// the latter. The 64 bytes at each of `words` are restored after the run.
    pub(crate) fn run(&mut self, rip: u64, state: &State, seed: u64, words: &[u64]) -> Outcome {
        let mut rng = Rng(seed | 1);
        let (low, high) = (self.pointer(&mut rng), self.pointer(&mut rng));
        for range in self.seen() {
            for (index, word) in range.chunks_exact_mut(8).enumerate() {
                let value = if index % 3 == 0 { low } else { high ^ (index as u64 & 7) };
                word.copy_from_slice(&value.to_le_bytes());
            }
        }
        let at: Vec<usize> = words.iter().map(|word| (word - self.base()) as usize).collect();
        let before: Vec<Vec<u8>> = at.iter().map(|&at| self.image[at..at + 64].to_vec()).collect();
        let mut outcome = enter(rip, state);
        outcome.memory = self.seen().concat();
        for (at, before) in at.into_iter().zip(before) {
            outcome.memory.extend_from_slice(&self.image[at..at + 64]);
            self.image[at..at + 64].copy_from_slice(&before);
        }
        outcome
    }
}

fn enter(rip: u64, state: &State) -> Outcome {
    let shared = SHARED.0.get();
    let mut input = [0; 18];
    for (value, greg) in state.gprs.into_iter().zip(GREGS) {
        input[greg as usize] = value.cast_signed();
    }
    input[libc::REG_RIP as usize] = rip.cast_signed();
    input[libc::REG_EFL as usize] = (state.flags | 0x202).cast_signed();
    // SAFETY: this thread holds `ONE` (a Machine exists), and no run is in progress, so SHARED belongs to it
    // until `int3`. The handler restores every register at the end of the run; `admissible` limits what the
    // window writes to memory.
    let (output, signal, legacy) = unsafe {
        (*shared).input = input;
        (*shared).phase = Phase::Begin;
        std::arch::asm!("int3");
        ((*shared).output, (*shared).signal, (*shared).legacy)
    };
    let rip = output[libc::REG_RIP as usize].cast_unsigned();
    Outcome {
        signal,
        // A trap is reported behind its int3.
        rip: if signal == libc::SIGTRAP { rip.wrapping_sub(1) } else { rip },
        gprs: GREGS.map(|greg| output[greg as usize].cast_unsigned()),
        flags: output[libc::REG_EFL as usize].cast_unsigned() & FLAGS,
        xmm: legacy[160..416].to_vec(),
        memory: Vec::new(),
    }
}
