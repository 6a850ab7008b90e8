//! Words between functions that nothing runs.

use super::decode::{Refusal, Verdict, decode};
use super::encode::NOP;

/// Bytes at the start of `words` that are padding: `nop`, and `udf`, of which zeros are one.
#[must_use]
pub fn padding_len(words: &[u32]) -> usize {
    let is_padding = |word: &&u32| **word == NOP || decode(**word) == Verdict::Refuse(Refusal::Undefined);
    4 * words.iter().take_while(is_padding).count()
}
