//! Which words of a program's memory may lead a thread into our code: F2 to F5 of `free`.
//!
//! In: a word that is an address in a segment's code, and the words around it. Out: whether it can lead
//! there. A plain number of that value is not taken for one: near a text at a low address every other integer
//! is one. Does not: read the program's memory.
//!
//! The words around the one that is looked at, `word`:
//!
//! ```text
//!   a context      word = rip         + 8 rflags: ALWAYS set, below FLAGS_END     + 16 selectors: cs = CODE_SEGMENT
//!   an rseq area   word = rseq_cs     - 8 cpu_id_start = cpu_id, below MOST_CPUS  word's address mod 32 = 8
//!   descriptor     [word] = 0         + 8 start, + 16 length < LONGEST            + 24 abort
//!   the handler    word = HANDLER, or HANDLER - RESTORER
//! ```

use trapline_record::RemoteAddr;
use trapline_record::control::at;
use trapline_tracee::Process;

use crate::memory::find::FoundSegment;
use crate::threads::still::Word;

/// Selector of user code, in the lowest bits of the word behind the flags.
const CODE_SEGMENT: u64 = 0x33;
/// The flag that is always set.
const ALWAYS: u64 = 1 << 1;
/// First value that has a bit above all flags.
const FLAGS_END: u64 = 1 << 22;
/// Distance from the restorer to the handler (`plan`'s `stub::trap`): each begins at a multiple of 16.
const RESTORER: u64 = 16;
/// Alignment and length of a descriptor.
const DESCRIPTOR: u64 = 32;
/// Bytes of the longest sequence that stubs have.
const LONGEST: u64 = 4096;

/// Upper bound of the CPUs for which a kernel may be built.
const MOST_CPUS: u64 = 8192;

/// Whether a word, an address in the segment's code, can lead a thread there.
pub(crate) fn leads_into(word: &Word, process: &Process, segment: &FoundSegment) -> bool {
    let handler = segment.block.get(at::HANDLER);
    let is_handler = handler != 0 && (word.value == handler || word.value == handler - RESTORER);
    let is_trampoline =
        segment.block.trampolines().is_some_and(|trampolines| trampolines.number_of(word.value).is_some());
    is_context(word)
        || is_handler
        || is_trampoline
        || is_in_area(word) && is_descriptor(process, segment, word.value)
}

/// A context as the kernel saves it: behind the word lie flags, then segments.
fn is_context(word: &Word) -> bool {
    let [Some(flags), Some(segments)] = word.next else { return false };
    flags & ALWAYS != 0 && flags < FLAGS_END && segments & 0xffff == CODE_SEGMENT
}

/// A field of `struct rseq`, which is aligned: it lies behind the CPU's number, twice.
fn is_in_area(word: &Word) -> bool {
    let Some(cpu) = word.before else { return false };
    word.at % DESCRIPTOR == 8 && cpu >> 32 == cpu & 0xffff_ffff && cpu >> 32 < MOST_CPUS
}

/// A `struct rseq_cs`: version and flags, start, length, where to go on.
fn is_descriptor(process: &Process, segment: &FoundSegment, word: u64) -> bool {
    let mut bytes = [0; DESCRIPTOR as usize];
    if !word.is_multiple_of(DESCRIPTOR) || process.read(RemoteAddr(word), &mut bytes).is_err() {
        return false;
    }
    let field = |nth: usize| bytes[nth * 8..nth * 8 + 8].try_into().map_or(0, u64::from_le_bytes);
    let [version, start, length, abort] = [0, 1, 2, 3].map(field);
    version == 0 && segment.is_code(start) && length < LONGEST && segment.is_code(abort)
}

#[cfg(test)]
mod tests {
    use super::{Word, is_context, is_in_area};

    fn word(before: u64, next: [Option<u64>; 2]) -> Word {
        Word { at: 0x1008, before: Some(before), value: 0x1_0000, next }
    }

    #[test]
    fn a_context_has_flags_and_segments_behind_it_and_a_number_has_not() {
        assert!(is_context(&word(0, [Some(0x246), Some(0x002b_0000_0000_0033)])));
        assert!(is_context(&word(0, [Some(0x10202), Some(0x33)])));
        for next in [
            [Some(0x246), Some(0x34)],
            [Some(0x244), Some(0x33)],
            [Some(0x1000_1001), Some(0x1000_2033)],
            [Some(0x246), None],
            [None, None],
        ] {
            assert!(!is_context(&word(0, next)), "{next:x?}");
        }
    }

    #[test]
    fn an_area_says_its_cpu_twice_and_is_aligned() {
        let area = word(0x0000_0003_0000_0003, [None; 2]);
        assert!(is_in_area(&area));
        assert!(!is_in_area(&Word { at: 0x1010, ..area }));
        assert!(!is_in_area(&word(0x0000_0003_0000_0004, [None; 2])));
        assert!(!is_in_area(&word(0x0b00_1001, [None; 2])));
    }
}
