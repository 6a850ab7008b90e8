//! How many words stand behind an entry in a compact ring.
//!
//! In: what is known of its probe; the words behind the record. Out: how many of them are its values. First come the words
//! whose number does not change, then the texts:
//!
//! ```text
//!   a text    byte 0: how many bytes were read, up to 64, or one of the two below;  then the bytes; then what was there before,
//!             up to a whole word
//!
//!   1, length     what was read ended there: the next byte cannot be read
//!   1, 64         nothing was read; bytes 1 to 4 say why (an error of the kernel, negative)
//! ```
//!
//! Bit 7 is the 1. Invariant: WORD-2. Does not: know registers.

/// Bytes of a text at most.
pub const MOST_BYTES: u64 = 64;
/// Bit of a text's first byte: what was read ends before the text does.
pub const FAULT: u64 = 0x80;
/// First byte of a text of which nothing was read.
pub const FAILED: u64 = FAULT | MOST_BYTES;
/// Words of a text at most.
pub const MOST_WORDS: u32 = (MOST_BYTES as u32 + 8) / 8;

/// What is behind the entries of a probe.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Behind {
    /// Number of words whose number does not change.
    pub fixed: u16,
    /// Number of texts behind them.
    pub texts: u8,
}

impl Behind {
    /// Number of its words, which are the first ones of `words`. `None` if they are not all there.
    #[must_use]
    #[inline]
    pub fn len(self, words: &[[u8; 8]]) -> Option<usize> {
        let mut len = usize::from(self.fixed);
        for _ in 0..self.texts {
            len += text_words(words.get(len)?[0]);
        }
        (len <= words.len()).then_some(len)
    }
}

/// Number of a text's words, by its first byte.
#[must_use]
#[inline]
pub const fn text_words(first: u8) -> usize {
    if first as u64 == FAILED {
        return 1;
    }
    let bytes = first as usize & 0x7f;
    // No stub writes more.
    let bytes = if bytes > MOST_BYTES as usize { 0 } else { bytes };
    (bytes + 8) / 8
}

#[cfg(test)]
mod tests {
    use super::{Behind, FAILED, FAULT, MOST_WORDS, text_words};

    #[test]
    fn a_text_takes_its_bytes_and_one() {
        let of = [0, 7, 8, 15, 16, 63, 64].map(text_words);
        assert_eq!(of, [1, 1, 2, 2, 3, 8, MOST_WORDS as usize]);
        assert_eq!((text_words(FAILED as u8), text_words(FAULT as u8 | 15)), (1, 2));
    }

    /// WORD-2: never more than there is, whatever the words are.
    #[test]
    fn what_is_not_all_there_has_no_length() {
        let text = |first: u8| [first, b'a', b'b', 0, 0, 0, 0, 0];
        let behind = Behind { fixed: 1, texts: 2 };
        let words = [text(0xff), text(9), text(0), text(3), text(0)];
        assert_eq!(behind.len(&words), Some(4));
        for len in 0..4 {
            assert_eq!(behind.len(&words[..len]), None, "{len}");
        }
        for first in 0..=u8::MAX {
            let words = [text(0), text(first), text(first)];
            assert!(behind.len(&words).is_none_or(|len| len == 3), "{first}");
        }
    }
}
