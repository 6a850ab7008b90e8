//! Words between functions that never run.

use super::decode::decode;
use super::encode::NOP;
use super::verdict::{Refusal, Verdict};

/// Number of bytes at the start of `words` that are padding: `nop`, and `udf` (a word of zeros is one).
#[must_use]
pub fn padding_len(words: &[u32]) -> usize {
    let is_padding = |word: &&u32| **word == NOP || decode(**word) == Verdict::Refuse(Refusal::Undefined);
    4 * words.iter().take_while(is_padding).count()
}
