//! Whether a function's return address may be replaced: the function must be entered with one, and nothing
//! but returns may read it.
//!
//! In: a file, a function of it. Out: nothing, or the word that prevents it. `setjmp`, `getcontext` and
//! `vfork` return through a copy of the address a second time, long after the return trampoline was given
//! back. `dlsym` finds its caller by it. A loop through the first instruction would take one trampoline after
//! another. The address is followed from the entry along every path as long as it is in x30, through
//! functions that are jumped to, and back from the stack. A signed address is made plain by `autiasp` or by
//! the return, which do not count. Code that reads it from the stack into another register is found if x29
//! names the frame. Behind a jump through a register, any word of the function may follow. A function that is
//! too long to be examined as a whole is refused. Does not: examine functions that are called.

use std::collections::HashSet;

use trapline_image::{Function, FunctionIndex, Image};
use trapline_insn::aarch64::{Op, Through, Verdict, decode};
use trapline_record::Svma;
use trapline_record::addr::Bias;

use super::function::exits::{Goes, goes, is_call, landings};
use super::refusal::Refusal;
use super::stub::Signed;
use crate::input::ModuleInput;

/// Upper bound of the instructions that are examined, each with what is known there.
const MOST: usize = 1 << 16;
/// `xpaclri`: takes the signature off x30, to read it.
const STRIP: u32 = 0xD503_20FF;
const SVC: u32 = 0xD400_0001;
/// What a branch must not do. Each turn would take a trampoline, and x30 need not be signed any more, though
/// the entry's stub authenticates it.
const LEADS_BACK: &str = "leads back to the first instruction";
const LINK: u32 = 30;
const FRAME: u32 = 29;
const SP: u32 = 31;

/// What is known when an instruction is about to run.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
struct AddressState {
    /// x30 holds the return address.
    link: bool,
    /// x29 is the frame's; the return address is in the frame's second word.
    frame: bool,
}

/// Whether calls of a function may have their return addresses replaced.
///
/// # Errors
/// Why they may not.
pub fn may_arm(image: &Image, function: &Function, bias: Bias) -> Result<(), Refusal> {
    let start = function.start;
    let refuse = |what| Err(Refusal::NoReturnAddress { start: bias.live(start).0, what });
    if start == image.entry() {
        return refuse("the program begins there");
    }
    let mut walk = Walk { image, function, bias, seen: HashSet::new(), open: Vec::new(), returns: false };
    walk.open.push((start, AddressState { link: true, frame: false }));
    // Where an exception lands, the frame exists.
    let pads = landings(image, start, (function.end() - start) as usize / 4);
    let lands = |index: usize| (start + 4 * index as u64, AddressState { link: false, frame: false });
    walk.open.extend(pads.into_iter().map(lands));
    while let Some((at, known)) = walk.open.pop() {
        if !walk.seen.insert((at, known)) {
            continue;
        }
        if walk.seen.len() > MOST {
            return refuse("more may follow than is looked at, and code there may read it");
        }
        walk.step(at, known)?;
    }
    // A tail call is as good as a return: the other function finds the address in x30, and returns to it.
    // Code that leaves only by jumps through registers may be the loader's glue.
    if walk.returns {
        Ok(())
    } else {
        refuse("no return is found in it, so what it is entered with may be none")
    }
}

/// The same for a function that is probed behind its landing pads, at the word with that number. Returns
/// whether a pad there signs the address.
pub(super) fn may_arm_behind(
    input: &ModuleInput<'_>,
    function: FunctionIndex,
    (words, start, entry): (&[u32], Svma, usize),
) -> Result<Option<Signed>, Refusal> {
    may_arm(input.image, input.image.function(function), input.bias)?;
    let again = (0..).zip(words).find(|&(index, &word)| match goes(word) {
        Goes::Either(offset) | Goes::To(offset) => {
            let to = index + i64::from(offset) / 4;
            (0..=entry as i64).contains(&to)
        }
        _ => false,
    });
    if let Some((index, &word)) = again {
        let at = input.bias.live(start).0 + 4 * index as u64;
        return Err(Refusal::NoTrampoline { at, word, what: LEADS_BACK });
    }
    Ok(words[..entry.min(words.len())].iter().find_map(|word| Signed::by(*word)))
}

struct Walk<'a> {
    image: &'a Image,
    function: &'a Function,
    bias: Bias,
    seen: HashSet<(Svma, AddressState)>,
    open: Vec<(Svma, AddressState)>,
    returns: bool,
}

impl Walk<'_> {
    fn is_inside(&self, at: Svma) -> bool {
        self.function.start <= at && at < self.function.end()
    }
    fn word(&self, at: Svma) -> Option<u32> {
        self.image.text(at, 4)?.first_chunk().map(|bytes| u32::from_le_bytes(*bytes))
    }
    fn step(&mut self, at: Svma, known: AddressState) -> Result<(), Refusal> {
        let Some(word) = self.word(at) else { return Ok(()) };
        if let Some(what) = self.names(at, word, known) {
            return Err(Refusal::NoTrampoline { at: self.bias.live(at).0, word, what });
        }
        let next = known.after(word);
        let inside = self.is_inside(at);
        match goes(word) {
            // What a function calls last does not return.
            Goes::On if is_call(word) && at + 4 == self.function.end() => {}
            Goes::On => self.open.push((at + 4, next)),
            Goes::Either(offset) => {
                self.goes_to(at, offset, next, inside)?;
                self.open.push((at + 4, next));
            }
            Goes::To(offset) => self.goes_to(at, offset, next, inside)?,
            Goes::Back => self.returns |= inside,
            // Perhaps to any word of its own, for example through a table.
            Goes::Anywhere if inside => {
                let words = (self.function.end() - self.function.start) / 4;
                self.open.extend((0..words).map(|n| (self.function.start + 4 * n, next)));
            }
            Goes::Anywhere | Goes::Nowhere => {}
        }
        Ok(())
    }
    fn goes_to(&mut self, at: Svma, offset: i32, known: AddressState, inside: bool) -> Result<(), Refusal> {
        let to = Svma(at.0.wrapping_add_signed(i64::from(offset)));
        let word = self.word(at).unwrap_or(0);
        if inside && to == self.function.start {
            return Err(Refusal::NoTrampoline { at: self.bias.live(at).0, word, what: LEADS_BACK });
        }
        self.returns |= inside && !self.is_inside(to);
        self.open.push((to, known));
        Ok(())
    }
    /// What a word does with the return address that is not allowed, if anything.
    fn names(&self, at: Svma, word: u32, known: AddressState) -> Option<&'static str> {
        match () {
            () if word == STRIP => Some("looks at a return address"),
            () if known.link && word == SVC && !self.is_harmless(at) => {
                Some("asks the system for what may return twice")
            }
            () if known.link && (reads_link(word) || self.leads_to_reader(at, word)) => {
                Some("reads the return address")
            }
            () if known.frame && reads_frame(word) => Some("reads the return address from its frame"),
            () => None,
        }
    }
    /// Whether a jump of the PLT leads to a function of another file that reads it.
    fn leads_to_reader(&self, at: Svma, word: u32) -> bool {
        let before = |n: u64| self.word(Svma(at.0.checked_sub(4 * n)?));
        let entry = || plt_word(Svma(at.0.checked_sub(12)?), before(3)?, before(2)?);
        word == PLT_JUMP && entry().is_some_and(|word| self.image.reader_words().binary_search(&word).is_ok())
    }
    /// Whether a system call is known not to share memory and return twice: its number is set right before
    /// it.
    fn is_harmless(&self, at: Svma) -> bool {
        /// `clone`, `clone3`.
        const TWICE: [u32; 2] = [220, 435];
        /// How many words before it are examined.
        const BEFORE: u64 = 6;
        let sets = |word: &u32| word & 0x7FE0_001F == 0x5280_0008;
        let found = (1..=BEFORE).filter_map(|n| self.word(Svma(at.0.checked_sub(4 * n)?))).find(sets);
        found.is_some_and(|word| !TWICE.contains(&(word >> 5 & 0xFFFF)))
    }
}

/// `br x17`
const PLT_JUMP: u32 = 0xD61F_0220;

/// The word from which a piece of the PLT loads its target, by its `adrp x16` and `ldr x17, [x16, #n]`.
fn plt_word(at: Svma, adrp: u32, ldr: u32) -> Option<Svma> {
    if adrp & 0x9F00_001F != 0x9000_0010 || ldr & 0xFFC0_03FF != 0xF940_0211 {
        return None;
    }
    let pages = (adrp >> 5 & 0x7_FFFF) << 2 | adrp >> 29 & 3;
    // A signed number of 21 bits.
    let pages = i64::from((pages << 11).cast_signed() >> 11);
    let page = (at.0 & !0xFFF).wrapping_add_signed(pages << 12);
    Some(Svma(page + u64::from(ldr >> 10 & 0xFFF) * 8))
}

impl AddressState {
    fn after(self, word: u32) -> Self {
        let mut next = self;
        if is_call(word) {
            next.link = false;
        }
        if loads_link(word) {
            // From the stack, where it was put. A load from anywhere else is another value.
            next.link = word >> 5 & 31 == SP || self.frame && word >> 5 & 31 == FRAME;
        } else if writes(word, LINK) {
            next.link = false;
        }
        // add x29, sp, #n, where x29 and x30 were stored: every function that keeps a frame does this.
        if word & 0xFF80_03FF == 0x9100_0000 | SP << 5 | FRAME {
            next.frame = true;
        } else if writes(word, FRAME) || loads_pair(word, FRAME) {
            next.frame = false;
        }
        next
    }
}

/// `ldr xN, [x29, #8]` and `ldp xM, xN, [x29]`, except into x30 itself.
const fn reads_frame(word: u32) -> bool {
    let (one, second) = (word & 0xFFFF_FFE0 == 0xF940_07A0, word & 0xFFFF_83E0 == 0xA940_03A0);
    one && word & 31 != LINK || second && word >> 10 & 31 != LINK
}

/// The group of a word (Arm ARM C4.1): bits 28 to 25.
const fn group(word: u32) -> u32 {
    word >> 25 & 15
}
const fn is_memory(word: u32) -> bool {
    group(word) & 0b0101 == 0b0100
}
/// Vector registers are loaded or stored.
const fn is_vector(word: u32) -> bool {
    word >> 26 & 1 != 0
}
/// A pair, however addressed (C4.1, loads and stores of pairs).
const fn is_pair(word: u32) -> bool {
    word >> 27 & 7 == 0b101
}
/// A load from a literal.
const fn is_literal(word: u32) -> bool {
    word >> 27 & 7 == 0b011 && word >> 24 & 1 == 0
}

/// Whether general registers are loaded, and not stored.
const fn loads(word: u32) -> bool {
    if !is_memory(word) || is_vector(word) {
        false
    } else if is_pair(word) || word >> 24 & 0x3F == 0b00_1000 {
        word >> 22 & 1 != 0
    } else {
        is_literal(word) || word >> 22 & 3 != 0
    }
}
const fn loads_link(word: u32) -> bool {
    loads(word) && (word & 31 == LINK || loads_pair(word, LINK))
}
/// Whether one of a loaded pair is this register.
const fn loads_pair(word: u32, register: u32) -> bool {
    loads(word) && is_pair(word) && (word & 31 == register || word >> 10 & 31 == register)
}

/// Whether arithmetic, or a load, writes this register.
const fn writes(word: u32, register: u32) -> bool {
    let arithmetic = group(word) & 0b1110 == 0b1000 || group(word) & 0b0111 == 0b0101;
    word & 31 == register && (arithmetic || loads(word))
}

/// Whether a word reads x30 for anything except keeping it on the stack, signing it, or returning to it. (For
/// vector instructions only addresses are examined.)
fn reads_link(word: u32) -> bool {
    let (n, m, a) = (word >> 5 & 31, word >> 16 & 31, word >> 10 & 31);
    if is_memory(word) {
        if is_literal(word) {
            return false;
        }
        // A register as offset, and the operand of atomic accesses.
        let offset = !is_pair(word) && word >> 24 & 0x3F == 0b11_1000 && word >> 21 & 1 != 0 && m == LINK;
        let stored = !is_vector(word)
            && !loads(word)
            && (word & 31 == LINK
                || is_pair(word) && a == LINK
                || word >> 24 & 0x3F == 0b00_1000 && a == LINK);
        return n == LINK || offset || stored && n != SP;
    }
    match group(word) {
        // `adr` and wide moves read no register.
        0b1000 | 0b1001 => {
            let wide = word >> 23 & 7 == 0b101;
            let address = word >> 24 & 31 == 0b1_0000;
            let extract = word >> 23 & 7 == 0b111;
            !wide && !address && (n == LINK || extract && m == LINK)
        }
        0b0101 | 0b1101 => {
            // A number, if `ccmp` compares with one.
            let number = word >> 21 & 0xFF == 0b1101_0010 && word >> 11 & 1 != 0;
            n == LINK || !number && m == LINK || word >> 24 & 31 == 0b1_1011 && a == LINK
        }
        0b1010 | 0b1011 => match decode(word) {
            // cbz, tbz.
            Verdict::Simulate(Op::BranchIf { .. }) => word >> 29 & 3 == 1 && word & 31 == LINK,
            Verdict::Simulate(Op::BranchTo { through: Through::Return, .. }) => false,
            // br x30 is a return, too; blr x30 calls it.
            Verdict::Simulate(Op::BranchTo { through: Through::Call, .. }) => n == LINK,
            // msr
            _ => word & 0xFFF0_0000 == 0xD510_0000 && word & 31 == LINK,
        },
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::{LINK, Svma, plt_word, reads_link};

    #[test]
    fn the_word_behind_a_piece_of_the_plt_is_found() {
        // adrp x16, 0x11000; ldr x17, [x16, #24]
        assert_eq!(plt_word(Svma(0x450), 0xB000_0090, 0xF940_0E11), Some(Svma(0x1_1018)));
        // adrp x16, -0x1000 pages of it away.
        assert_eq!(plt_word(Svma(0x5450), 0xF0FF_FFF0, 0xF940_0211), Some(Svma(0x4000)));
        assert_eq!(plt_word(Svma(0x450), 0xB000_0091, 0xF940_0E11), None, "x17 is another's way");
        assert_eq!(plt_word(Svma(0x450), 0xB000_0090, 0xF940_0E10), None);
    }

    #[test]
    fn what_keeps_signs_and_returns_reads_nothing() {
        for (word, what) in [
            (0xA9BF_7BFD, "stp x29, x30, [sp, #-16]!"),
            (0xA904_7BFD, "stp x29, x30, [sp, #64]"),
            (0xF81F_0FFE, "str x30, [sp, #-16]!"),
            (0xF900_07FE, "str x30, [sp, #8]"),
            (0xA8C1_7BFD, "ldp x29, x30, [sp], #16"),
            (0xF840_07FE, "ldr x30, [sp], #0"),
            (0xD503_233F, "paciasp"),
            (0xD503_23BF, "autiasp"),
            (0xD65F_03C0, "ret"),
            (0xD65F_0BFF, "retaa"),
            (0xD280_001E, "mov x30, #0"),
            (0x9100_03FD, "mov x29, sp"),
            (0xAA00_03E1, "mov x1, x0"),
            (0xB400_0040, "cbz x0, +8"),
            (0x5400_03C0, "b.eq, its offset has x30's number"),
            (0x5800_03C0, "ldr x0, literal, the same"),
            (0x9400_001E, "bl, the same"),
            (0x9287_83C0, "movn x0, #0x3c1e"),
            (0xF11E_001F, "cmp x0, #0x780"),
            (0xFA5E_0800, "ccmp x0, #30, #0, eq"),
        ] {
            assert!(!reads_link(word), "{what}");
        }
    }

    #[test]
    fn what_reads_it_is_found() {
        for (word, what) in [
            (0xAA1E_03E0, "mov x0, x30"),
            (0x9100_03C0, "add x0, x30, #0"),
            (0xCA1E_0000, "eor x0, x0, x30"),
            (0xCB01_03C0, "sub x0, x30, x1"),
            (0xF900_2C1E, "str x30, [x0, #88]"),
            (0xA905_781D, "stp x29, x30, [x0, #80]"),
            (0xF940_03C0, "ldr x0, [x30]"),
            (0xB400_005E, "cbz x30, +8"),
            (0x3600_005E, "tbz w30, #0, +8"),
            (0xD63F_03C0, "blr x30"),
            (0xF87E_6800, "ldr x0, [x0, x30]"),
            (0x9B1E_7C00, "mul x0, x0, x30"),
            (0xFA5E_0000, "ccmp x0, x30, #0, eq"),
            (0xD53B_E040 & !(1 << 21) | LINK, "msr"),
        ] {
            assert!(reads_link(word), "{what}");
        }
    }
}
