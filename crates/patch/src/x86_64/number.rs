//! Where a thread's control block holds its number.
//!
//! In: the thread pointer, the thread's number, its memory. Out: the number's offset from the thread pointer,
//! in C libraries with a control block that can be distinguished from what else may lie there (glibc, musl);
//! otherwise nothing. Does not: guess.

/// `struct pthread`'s tid, in every glibc for x86-64.
const GLIBC: i32 = 0x2d0;

/// Offsets of the links, from the word of the number: to the next block, and to the previous one.
pub(crate) fn links(kept: i32) -> [(i64, i64); 1] {
    let kept = i64::from(kept);
    if kept == GLIBC.into() { [(-16, -8)] } else { [(24 - kept, 16 - kept)] }
}

/// Offset, from the thread pointer, at which the C library keeps the number of the thread that this control
/// block belongs to. Both libraries store it before the thread runs, and again in a forked child.
pub(crate) fn kept(thread: u64, tid: u32, word: impl Fn(u64) -> Option<u64>) -> Option<i32> {
    /// The same offset in musl, which links threads in a ring; since 1.2.0, and before.
    const MUSL: [i32; 2] = [48, 56];
    let at = |from: u64, offset: u64| word(from.checked_add(offset)?);
    let holds = |offset: i32| at(thread, offset as u64).is_some_and(|word| word as u32 == tid);
    if thread == 0 || at(thread, 0) != Some(thread) {
        return None;
    }
    // glibc's `tcbhead_t` names itself twice; what the next lines look for does so in neither place.
    if at(thread, 16) == Some(thread) && at(thread, 24) != Some(thread) {
        return Some(GLIBC).filter(|&offset| holds(offset));
    }
    let (before, behind) = (at(thread, 16)?, at(thread, 24)?);
    let ring = at(before, 24) == Some(thread) && at(behind, 16) == Some(thread);
    MUSL.into_iter().find(|&offset| ring && holds(offset))
}

#[cfg(test)]
mod tests {
    use super::kept;

    const TID: u32 = 4711;

    /// Memory of a few words.
    fn of(words: &[(u64, u64)]) -> impl Fn(u64) -> Option<u64> {
        |at| words.iter().find(|(place, _)| *place == at).map(|(_, word)| *word)
    }

    #[test]
    fn control_blocks_are_recognized_by_their_pointers() {
        let number = u64::from(TID) | 7 << 32;
        let glibc = [(0x1000, 0x1000), (0x1010, 0x1000), (0x1018, 1), (0x12d0, number)];
        assert_eq!(kept(0x1000, TID, of(&glibc)), Some(0x2d0));
        assert_eq!(kept(0x1000, TID + 1, of(&glibc)), None);
        for (tid, at) in [(0x1030, 48), (0x1038, 56)] {
            let alone = [(0x1000, 0x1000), (0x1010, 0x1000), (0x1018, 0x1000), (tid, number)];
            assert_eq!(kept(0x1000, TID, of(&alone)), Some(at));
            let ring = [(0x1000, 0x1000), (0x1010, 0x2000), (0x1018, 0x3000), (tid, number)];
            assert_eq!(kept(0x1000, TID, of(&ring)), None, "others that do not name it");
            let others = [(0x2018, 0x1000), (0x3010, 0x1000)];
            assert_eq!(kept(0x1000, TID, of(&[&ring[..], &others].concat())), Some(at));
        }
    }

    #[test]
    fn nothing_is_made_of_anything_else() {
        assert_eq!(kept(0, TID, |_| Some(0)), None);
        assert_eq!(kept(0x1000, TID, |_| Some(TID.into())), None);
        assert_eq!(kept(0x1000, TID, of(&[(0x1000, 0x1000), (0x1010, 0x1000)])), None);
        assert_eq!(kept(u64::MAX - 7, TID, |_| Some(u64::MAX - 7)), None);
    }
}
