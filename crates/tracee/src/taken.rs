//! What of a process' address space is taken: what is mapped, and where its heap and its stack will grow.
//!
//! In: a process and its mappings. Out: ranges in which nothing may be placed, for SPACE-1. Does not: choose a place.

use trapline_record::RemoteAddr;

use crate::error::TargetError;
use crate::maps::Mapping;
use crate::process::Process;
use crate::procfs;

/// Bytes that are kept for the stack, whatever its limit is: a program may raise the limit.
const LEAST_STACK: u64 = 64 << 20;
/// Most that is kept, if there is no limit.
const MOST_STACK: u64 = 1 << 30;

impl Process {
    /// What is mapped, and below the main thread's stack as much as it may grow to. Sorted, not overlapping, if the
    /// mappings are.
    #[must_use]
    pub fn taken(&self, maps: &[Mapping]) -> Vec<(RemoteAddr, RemoteAddr)> {
        let mut taken: Vec<_> = maps.iter().map(|one| (one.start, one.end)).collect();
        if let Some(nth) = maps.iter().position(|one| one.path == "[stack]") {
            let below = nth.checked_sub(1).map_or(0, |nth| taken[nth].1.0);
            taken[nth].0 = RemoteAddr(grown((taken[nth].0.0, taken[nth].1.0), below, self.stack_limit()));
        }
        taken
    }
    /// How many bytes the main thread's stack may have: none if there is no limit, or it cannot be read.
    fn stack_limit(&self) -> Option<u64> {
        let text = self.look("read its limits", |folder| procfs::text(folder.join("limits"))).ok()?;
        limit(&text)
    }
    /// The break: where the heap ends and will grow, by its mappings.
    ///
    /// # Errors
    /// When the process is gone.
    pub fn heap_end(&self, maps: &[Mapping]) -> Result<Option<RemoteAddr>, TargetError> {
        if let Some(heap) = maps.iter().rev().find(|m| m.path == "[heap]") {
            return Ok(Some(heap.end));
        }
        Ok(self.stat("read its break")?.field(47).filter(|&brk| brk != 0).map(RemoteAddr))
    }
}

/// The lowest address that a stack of this limit may grow to, above what is mapped below it.
fn grown((start, end): (u64, u64), below: u64, limit: Option<u64>) -> u64 {
    let most = limit.unwrap_or(MOST_STACK).clamp(LEAST_STACK, MOST_STACK);
    end.saturating_sub(most).max(below).min(start)
}

/// The soft limit of the stack in `/proc/PID/limits`.
fn limit(text: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix("Max stack size"))?;
    line.split_whitespace().next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::{LEAST_STACK, MOST_STACK, grown, limit};

    #[test]
    fn the_limit_is_read() {
        let line = |soft: &str| {
            format!(
                "Limit   Soft Limit   Hard Limit   Units\nMax stack size            {soft}              unlimited            bytes\n"
            )
        };
        assert_eq!(limit(&line("8388608")), Some(8 << 20));
        assert_eq!(limit(&line("unlimited")), None);
        assert_eq!(limit(""), None);
    }

    #[test]
    fn a_stack_keeps_what_it_may_grow_to() {
        let stack = (0x7fff_fffd_e000, 0x7fff_ffff_f000);
        assert_eq!(grown(stack, 0, Some(8 << 20)), stack.1 - LEAST_STACK);
        assert_eq!(grown(stack, 0, Some(256 << 20)), stack.1 - (256 << 20));
        assert_eq!(grown(stack, 0, None), stack.1 - MOST_STACK);
        // What is mapped there already stays its own range.
        assert_eq!(grown(stack, stack.0 - 4096, None), stack.0 - 4096);
        assert_eq!(grown((4096, 1 << 31), 0, Some(0)), 4096);
    }
}
