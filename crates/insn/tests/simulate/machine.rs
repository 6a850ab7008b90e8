//! The processor as reference: one instruction runs natively, between a load and a store of all registers,
//! without signals.
//!
//! Everything is in one low mapping, so that every form of address reaches it. A run ends at one of a few
//! landing pads, each of which stores its number, so that the end of the run is known.

use trapline_insn::x86_64::{Gpr, Regs};

/// xorshift64*, since a run must be repeatable.
pub(crate) struct Rng(pub(crate) u64);

impl Rng {
    pub(crate) fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_F491_4F6C_DD1D)
    }
    pub(crate) fn below(&mut self, bound: u64) -> u64 {
        (self.next() >> 33) % bound
    }
    #[allow(dead_code, reason = "the runtime's tests do without")]
    pub(crate) fn one_in(&mut self, of: u64) -> bool {
        self.below(of) == 0
    }
    pub(crate) fn pick<T: Copy>(&mut self, from: &[T]) -> T {
        from[self.below(from.len() as u64) as usize]
    }
}

/// Flags that are random in a state: CF PF AF ZF SF DF OF.
pub(crate) const FLAGS: u64 = 0xCD5;
/// Bytes of memory that instructions may use.
pub(crate) const AREA: usize = 256;

const MAPPED: usize = 0x5000;
const CODE: usize = 0x1400;
const DATA: usize = 0x2000;
const MEMORY: usize = 0x3000;
const OUT: usize = DATA + 256;
const WHICH: usize = DATA + 512;
const SAVED: usize = DATA + 520;
const OUR_STACK: usize = DATA + 0x1000 - 64;
/// Landing pads besides the one behind the instruction: two in reach of a displacement of one byte, two that
/// need four.
const PADS: [usize; 4] = [CODE - 0x60, CODE + 0x50, CODE - 0x300, CODE + 0x700];

/// Memory in which one instruction at a time can be run.
pub(crate) struct Machine {
    base: u64,
    len: usize,
}

impl Machine {
    pub(crate) fn new() -> Self {
        let protection = libc::PROT_READ | libc::PROT_WRITE | libc::PROT_EXEC;
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_32BIT;
        // SAFETY: a new mapping at an address that the kernel chooses affects no existing mapping. It is
        // never unmapped.
        let at = unsafe { libc::mmap(std::ptr::null_mut(), MAPPED, protection, flags, -1, 0) };
        assert_ne!(at, libc::MAP_FAILED, "a mapping below 2 GiB");
        let mut machine = Self { base: at as u64, len: 0 };
        let leave = machine.write_stubs();
        for (number, pad) in PADS.into_iter().enumerate() {
            machine.write_pad(pad, number as u8 + 1, leave);
        }
        machine.write_at(0x1000 - 8, &(leave as u64).to_le_bytes());
        machine
    }

    /// The address of the instruction.
    pub(crate) fn code(&self) -> u64 {
        self.base + CODE as u64
    }
    /// The first byte of the memory that instructions may use.
    pub(crate) fn area(&self) -> u64 {
        self.base + MEMORY as u64
    }
    /// Addresses that control may go to; the first two are in reach of a one-byte displacement from the code.
    pub(crate) fn pads(&self) -> [u64; 4] {
        PADS.map(|pad| self.base + pad as u64)
    }
    pub(crate) fn memory(&mut self) -> &mut [u8; AREA] {
        // SAFETY: inside the mapping that this machine owns; `&mut self` keeps it unshared, and no run is in
        // progress.
        unsafe { &mut *((self.base as usize + MEMORY) as *mut [u8; AREA]) }
    }

    fn write_at(&mut self, at: usize, bytes: &[u8]) {
        assert!(at + bytes.len() <= MAPPED);
        // SAFETY: inside the mapping, see `memory`.
        unsafe {
            std::ptr::copy_nonoverlapping(bytes.as_ptr(), (self.base as usize + at) as *mut u8, bytes.len());
        }
    }
    fn word(&self, at: usize) -> u64 {
        // SAFETY: `at` is one of the constants above, inside the mapping; aligned to 8.
        unsafe { ((self.base as usize + at) as *const u64).read_volatile() }
    }

    /// Puts an instruction into the code, with a landing pad behind it.
    pub(crate) fn set(&mut self, bytes: &[u8]) {
        self.write_at(CODE, bytes);
        self.len = bytes.len();
        let leave = self.word(0x1000 - 8) as usize;
        self.write_pad(CODE + bytes.len(), 0, leave);
    }

    /// Overwrites the code's first byte.
    #[allow(dead_code, reason = "for traps, which the runtime's tests put there")]
    pub(crate) fn set_first(&mut self, byte: u8) {
        self.write_at(CODE, &[byte]);
    }

    /// Runs the instruction; returns the registers after it.
    pub(crate) fn run(&mut self, from: &Regs) -> Regs {
        for (number, value) in from.gpr.into_iter().chain([from.rflags]).enumerate() {
            self.write_at(DATA + 8 * number, &value.to_le_bytes());
        }
        // SAFETY: `write_stubs` put a function there that preserves what the C ABI requires; the instruction
        // in it was given registers with which it stays inside `area` and branches only to pads.
        unsafe {
            let enter: extern "C" fn() = std::mem::transmute(self.base as usize as *const ());
            enter();
        }
        let mut to = Regs { rflags: self.word(OUT + 128) & FLAGS, ..Regs::default() };
        for (number, value) in to.gpr.iter_mut().enumerate() {
            *value = self.word(OUT + 8 * number);
        }
        to.rip = match self.word(WHICH) as usize & 0xFF {
            0 => self.code() + self.len as u64,
            pad => self.pads()[pad - 1],
        };
        to
    }

    /// Writes `enter` at offset 0; returns the offset of the code that ends a run.
    fn write_stubs(&mut self) -> usize {
        let mut code =
            Code { bytes: vec![0x53, 0x55, 0x41, 0x54, 0x41, 0x55, 0x41, 0x56, 0x41, 0x57], at: 0 };
        code.rip(&[0x48, 0x89, 0x25], SAVED);
        code.rip(&[0x48, 0x8D, 0x25], OUR_STACK);
        code.rip(&[0xFF, 0x35], DATA + 128);
        code.bytes.push(0x9D);
        for gpr in Gpr::ALL {
            code.register(0x8B, gpr, DATA + 8 * gpr as usize);
        }
        code.rip(&[0xE9], CODE);
        let leave = code.bytes.len();
        for gpr in Gpr::ALL {
            code.register(0x89, gpr, OUT + 8 * gpr as usize);
        }
        code.rip(&[0x48, 0x8D, 0x25], OUR_STACK);
        code.bytes.push(0x9C);
        code.rip(&[0x8F, 0x05], OUT + 128);
        code.bytes.push(0xFC);
        code.rip(&[0x48, 0x8B, 0x25], SAVED);
        code.bytes.extend([0x41, 0x5F, 0x41, 0x5E, 0x41, 0x5D, 0x41, 0x5C, 0x5D, 0x5B, 0xC3]);
        self.write_at(0, &code.bytes);
        leave
    }

    /// `mov byte [which], number; jmp leave`
    fn write_pad(&mut self, at: usize, number: u8, leave: usize) {
        let mut code = Code { bytes: vec![0xC6, 0x05], at };
        code.bytes.extend(((WHICH as i32) - (at as i32 + 7)).to_le_bytes());
        code.bytes.push(number);
        code.rip(&[0xE9], leave);
        self.write_at(at, &code.bytes);
    }
}

struct Code {
    bytes: Vec<u8>,
    at: usize,
}

impl Code {
    /// An opcode with the distance to `to` as its last operand.
    fn rip(&mut self, opcode: &[u8], to: usize) {
        self.bytes.extend(opcode);
        let end = self.at + self.bytes.len() + 4;
        self.bytes.extend((to as i32 - end as i32).to_le_bytes());
    }
    fn register(&mut self, opcode: u8, gpr: Gpr, at: usize) {
        let number = gpr as u8;
        self.rip(&[0x48 | number >> 3 << 2, opcode, (number & 7) << 3 | 5], at);
    }
}
