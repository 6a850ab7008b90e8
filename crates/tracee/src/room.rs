//! Finds memory for a frame that the program does not use.
//!
//! Input: maps, a stopped thread's stack pointer. Output: the thread's own stack if that is known to be a
//! large one, otherwise the lowest bytes of the main stack. Invariant: TGT-4. A stack pointer says nothing
//! about the memory below it. Goroutines and coroutines run on slices of a heap, a few kilobytes each, and a
//! frame with AVX-512 state takes three kilobytes.

use trapline_record::RemoteAddr;

use crate::error::TargetError;
use crate::frame::Frame;
use crate::maps::Mapping;
use crate::process::Process;
use crate::remote_options::RemoteOptions;

/// Larger inaccessible mappings are reserved heap (glibc's arenas), not guards.
const LARGEST_GUARD: u64 = 1 << 20;

/// The address for a frame; `None` for the thread's own stack.
///
/// # Errors
/// [`TargetError::NoCaller`] when the stack may be a small one and the lowest bytes of the main stack are in
/// use.
pub(crate) fn frame_place(
    process: &Process,
    maps: &[Mapping],
    sp: u64,
    options: &RemoteOptions,
) -> Result<Option<RemoteAddr>, TargetError> {
    if options.scratch.is_some() || is_roomy(maps, RemoteAddr(sp)) {
        return Ok(options.scratch);
    }
    main_stack_foot(process, maps).map(Some).ok_or_else(|| TargetError::NoCaller {
        pid: process.pid(),
        why: format!("{sp:#x} may lie in a small stack, and the foot of the main stack is in use"),
    })
}

/// Whether the stack is of the kind that the kernel or a thread library makes: the main one, or one that ends
/// at a guard.
fn is_roomy(maps: &[Mapping], sp: RemoteAddr) -> bool {
    let Some(index) = maps.iter().position(|m| m.contains(sp)) else { return false };
    let map = &maps[index];
    let guarded = || {
        index.checked_sub(1).and_then(|below| maps.get(below)).is_some_and(|below| {
            let is_small = below.end - below.start <= LARGEST_GUARD;
            below.end == map.start
                && is_small
                && !below.perms.read
                && !below.perms.write
                && below.file.is_none()
        })
    };
    sp - map.start >= RemoteOptions::FRAME_ROOM
        && map.perms.write
        && (map.path == "[stack]" || (map.path.is_empty() && guarded()))
}

/// The lowest bytes of the main stack, if no call has ever reached them.
fn main_stack_foot(process: &Process, maps: &[Mapping]) -> Option<RemoteAddr> {
    let stack = maps.iter().find(|m| m.path == "[stack]")?;
    let mut bytes = vec![0u8; RemoteOptions::FRAME_ROOM as usize];
    let room = stack.end - stack.start >= 4 * RemoteOptions::FRAME_ROOM;
    let read = room && process.read(stack.start, &mut bytes).is_ok();
    (read && bytes.iter().all(|&b| b == 0)).then_some(stack.start)
}

/// Checks that all of a frame lies in one mapping.
///
/// # Errors
/// [`TargetError::NoCaller`] if it does not.
pub(crate) fn check_room(
    process: &Process,
    maps: &[Mapping],
    frame: &Frame,
    scratch: Option<RemoteAddr>,
) -> Result<(), TargetError> {
    let (base, end) = (RemoteAddr(frame.base), RemoteAddr(frame.base + frame.bytes.len() as u64));
    let found = maps
        .iter()
        .find(|m| m.contains(base) && end <= m.end)
        .is_some_and(|m| m.perms.read && (scratch.is_some() || m.perms.write));
    if found && scratch.is_none_or(|at| at <= base) {
        return Ok(());
    }
    let why = format!("its stack has no room for a frame of {} bytes below {end}", frame.bytes.len());
    Err(TargetError::NoCaller { pid: process.pid(), why })
}

#[cfg(test)]
mod tests {
    use super::is_roomy;
    use crate::maps::Mapping;
    use trapline_record::RemoteAddr;

    fn maps(text: &str) -> Vec<Mapping> {
        text.lines().map(|line| Mapping::parse(line).expect("a line of maps")).collect()
    }

    #[test]
    fn slices_of_a_heap_are_not_stacks() {
        let maps = maps(
            "c000000000-c004000000 rw-p 00000000 00:00 0 \n\
             7f0000000000-7f0000001000 ---p 00000000 00:00 0 \n\
             7f0000001000-7f0000801000 rw-p 00000000 00:00 0 \n\
             7ffd00000000-7ffd00021000 rw-p 00000000 00:00 0                          [stack]",
        );
        assert!(!is_roomy(&maps, RemoteAddr(0xc0_0010_0000)), "a goroutine");
        assert!(is_roomy(&maps, RemoteAddr(0x7f00_0080_0000)), "a thread");
        assert!(!is_roomy(&maps, RemoteAddr(0x7f00_0000_2000)), "a thread near its guard");
        assert!(is_roomy(&maps, RemoteAddr(0x7ffd_0002_0000)), "the main thread");
    }
}
