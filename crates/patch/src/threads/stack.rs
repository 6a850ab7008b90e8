//! Where glibc's threads note the bounds of their stacks.
//!
//! In: a stopped thread. Out: the offset, from the thread pointer, of two words in its control block (`struct
//! pthread`, glibc's nptl/descr.h): `stackblock` and `stackblock_size`. They are recognized by their values,
//! since the offset differs between versions. For the main thread they are 0 and the stack pointer with which
//! the program began (glibc notes it there when it sets up the block). For any other thread they are a range
//! of whole pages that holds both the control block and the stack pointer. They are not found in other C
//! libraries. Does not: rely on an offset because of a version.

use trapline_record::RemoteAddr;
use trapline_tracee::{Process, RemoteCaller};

use crate::error::PatchError;
use crate::native::threads::CONTROL_BLOCK;

/// A program begins with its arguments right above the stack pointer; if statically linked, glibc notes an
/// address a few words later.
const WORDS_LATER: u64 = 64;
const PAGE: u64 = 4096;

/// The offset of both words, if it is certain.
pub(crate) fn block(caller: &mut RemoteCaller<'_, '_>, process: &Process) -> Result<Option<i32>, PatchError> {
    let regs = caller.regs()?;
    let (thread, sp) = (regs.thread_pointer(), regs.sp());
    let Some((first, bytes)) = control_block(process, thread) else { return Ok(None) };
    let is_main = caller.tid() == process.pid();
    let start = process.stack_start()?.filter(|_| is_main).map(|start| start.0);
    let words: Vec<u64> =
        bytes.chunks_exact(8).map(|word| word.iter().rev().fold(0, |n, &b| n << 8 | u64::from(b))).collect();
    let found: Vec<usize> =
        (0..words.len() - 1).filter(|&n| is_block((words[n], words[n + 1]), start, (thread, sp))).collect();
    Ok(match found[..] {
        [only] => i32::try_from(first + 8 * only as i64).ok(),
        _ => None,
    })
}

/// The bytes where a control block lies, and their offset from the thread pointer. If the block lies below
/// the thread pointer, its page may be the first that is mapped.
fn control_block(process: &Process, thread: u64) -> Option<(i64, Vec<u8>)> {
    let page = -((thread % PAGE).cast_signed());
    let read = |first: i64| {
        let mut bytes = vec![0; usize::try_from(CONTROL_BLOCK.end.checked_sub(first)?).ok()?];
        let at = thread.checked_add_signed(first)?;
        process.read(RemoteAddr(at), &mut bytes).ok().map(|()| (first, bytes))
    };
    if thread == 0 { None } else { read(CONTROL_BLOCK.start).or_else(|| read(CONTROL_BLOCK.start.max(page))) }
}

/// Whether two words are the bounds of a thread's block; for the main thread, `start` is the stack pointer
/// with which it began.
fn is_block((at, len): (u64, u64), start: Option<u64>, (thread, sp): (u64, u64)) -> bool {
    let holds = |place: u64| place.wrapping_sub(at) < len;
    match start {
        Some(start) => at == 0 && len <= start && start - len <= WORDS_LATER,
        None => at != 0 && at % PAGE == 0 && len % PAGE == 0 && holds(thread) && holds(sp),
    }
}

#[cfg(test)]
mod tests {
    use super::is_block;

    #[test]
    fn a_block_is_known_by_its_values() {
        let start = Some(0x7fff_0000_1000);
        let at = (0x7000_0000, 0x7fff_0000_0100);
        assert!(is_block((0, 0x7fff_0000_1000), start, at) && is_block((0, 0x7fff_0000_0ff0), start, at));
        for other in [(0, 0), (8, 0x7fff_0000_1000), (0, 0x7fff_0000_1008), (0, 0x7fff_0000_0fb8)] {
            assert!(!is_block(other, start, at), "{other:x?}");
        }
        let at = (0x20_8700, 0x20_7000);
        assert!(is_block((0x10_0000, 0x10_9000), None, at));
        for other in [(0, 0x20_9000), (0x10_0008, 0x10_9000), (0x20_8000, 0x1000), (0x10_0000, 0x10_8000)] {
            assert!(!is_block(other, None, at), "{other:x?}");
        }
    }
}
