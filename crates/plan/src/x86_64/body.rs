//! A function's code in full: all its instructions, and what they lead to.
//!
//! In: an image, ranges of its code. Out: what `insn` finds out about them, with the file's read-only data at
//! hand for jump tables.

use trapline_image::Image;
use trapline_insn::x86_64::{Body, FunctionRange, analyse_further};
use trapline_record::Svma;

/// Analyses a function and its cold parts.
pub(crate) fn body_of(image: &Image, start: Svma, len: u64, cold: &[(Svma, u64)]) -> Body {
    body_with(image, Body::default(), (start, len), cold)
}

/// The same, where `known` was found with some of the cold parts, which come first in `cold`, or is empty.
pub(crate) fn body_with(image: &Image, known: Body, main: (Svma, u64), cold: &[(Svma, u64)]) -> Body {
    let mut parts = Vec::with_capacity(1 + cold.len());
    for &(start, len) in [main].iter().chain(cold) {
        if let Some(bytes) = image.text(start, len) {
            parts.push(FunctionRange { addr: start.0, bytes });
        }
    }
    analyse_further(known, &parts, &|at, size| read_word(image, at, size))
}

fn read_word(image: &Image, at: u64, size: usize) -> Option<u64> {
    let bytes = image.rodata(Svma(at), size as u64)?;
    let mut word = [0; 8];
    word.get_mut(..size)?.copy_from_slice(bytes);
    Some(u64::from_le_bytes(word))
}
