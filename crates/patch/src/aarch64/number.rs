//! Where a thread's control block holds its number.
//!
//! In: the thread pointer, the thread's number, its memory. Out: the number's offset from the thread pointer,
//! if the C library's control block can be distinguished from what else may lie there (glibc, musl);
//! otherwise nothing. Does not: guess.
//!
//! Both blocks lie below the thread pointer (AAELF64, TLS variant I), and their length differs from version
//! to version. So the number is searched from there down, and accepted if the links before it lead back.
//!
//! ```text
//!   at = tpidr_el0 - 8 n, at most FAR below; [at] = the number, 32 bits
//!
//!   glibc   e = at - 16   e + 0 = next, e + 8 = previous           [[e] + 8] = e, [e] != 0, [e] != e
//!   musl    b = at - 32   [b] = b, b + 8 = previous, b + 16 = next [[b + 8] + 16] = b, [[b + 16] + 8] = b
//! ```

/// Number of bytes below the thread pointer that are examined: glibc's block has some 1800.
const FAR: u64 = 8192;

/// Offsets of the links, from the word of the number: to the next block, and to the previous one; in glibc,
/// and in musl.
pub(crate) const fn links(_: i32) -> [(i64, i64); 2] {
    [(-16, -8), (-16, -24)]
}

/// Offset, from the thread pointer, at which the C library keeps the number of the thread to which this
/// control block belongs. Both libraries store it before the thread runs, and again in a forked child.
pub(crate) fn kept(thread: u64, tid: u32, word: impl Fn(u64) -> Option<u64>) -> Option<i32> {
    let is = |at: u64| word(at).is_some_and(|word| word as u32 == tid);
    let distances = (8..=FAR.min(thread)).step_by(8);
    let mut found = distances.filter(|far| {
        let at = thread - far;
        is(at) && (is_glibc(at, &word) || is_musl(at, &word))
    });
    // Two matches would prove nothing.
    let far = found.next().filter(|_| found.next().is_none())?;
    Some(-(far as i32))
}

/// `struct pthread`: the number lies behind the two links of the list that holds all threads (nptl/descr.h).
fn is_glibc(at: u64, word: &impl Fn(u64) -> Option<u64>) -> bool {
    let Some(element) = at.checked_sub(16) else { return false };
    let next = word(element).filter(|next| *next != 0 && *next != element);
    next.and_then(|next| word(next.checked_add(8)?)) == Some(element)
}

/// `struct pthread` since 1.2.0: a pointer to itself, the previous and the next one in a ring, a word, the
/// number.
fn is_musl(at: u64, word: &impl Fn(u64) -> Option<u64>) -> bool {
    let Some(block) = at.checked_sub(32) else { return false };
    let link = |of: u64, offset: u64| word(of.checked_add(offset)?);
    let back = |from: u64, to: u64| link(block, from).and_then(|other| link(other, to)) == Some(block);
    word(block) == Some(block) && back(8, 16) && back(16, 8)
}

#[cfg(test)]
mod tests {
    use super::kept;

    const TID: u32 = 4711;
    const THREAD: u64 = 0x9000;

    /// Memory of a few words.
    fn of(words: &[(u64, u64)]) -> impl Fn(u64) -> Option<u64> {
        |at| words.iter().find(|(place, _)| *place == at).map(|(_, word)| *word)
    }

    #[test]
    fn control_blocks_are_recognized_by_their_links() {
        let number = u64::from(TID) | 7 << 32;
        let glibc = [(0x8810, number), (0x8800, 0x2000), (0x2008, 0x8800)];
        assert_eq!(kept(THREAD, TID, of(&glibc)), Some(-0x7f0));
        assert_eq!(kept(THREAD, TID + 1, of(&glibc)), None);
        assert_eq!(kept(THREAD, TID, of(&glibc[..2])), None, "a link that leads nowhere");
        let two = [(0x8910, number), (0x8900, 0x3000), (0x3008, 0x8900)];
        assert_eq!(kept(THREAD, TID, of(&[glibc, two].concat())), None, "two say nothing");
        let alone = [(0x8f00, 0x8f00), (0x8f08, 0x8f00), (0x8f10, 0x8f00), (0x8f20, number)];
        assert_eq!(kept(THREAD, TID, of(&alone)), Some(-0xe0));
        let ring = [(0x8f00, 0x8f00), (0x8f08, 0x2000), (0x8f10, 0x3000), (0x8f20, number)];
        assert_eq!(kept(THREAD, TID, of(&ring)), None, "others that do not name it");
        let others = [(0x2010, 0x8f00), (0x3008, 0x8f00)];
        assert_eq!(kept(THREAD, TID, of(&[&ring[..], &others].concat())), Some(-0xe0));
    }

    #[test]
    fn nothing_is_made_of_anything_else() {
        assert_eq!(kept(0, TID, |_| Some(0)), None);
        assert_eq!(kept(8, TID, |_| Some(TID.into())), None);
        assert_eq!(kept(THREAD, TID, |_| Some(TID.into())), None);
    }
}
