//! What becomes of an instruction under a trap.

use trapline_image::Image;
use trapline_record::Svma;
use trapline_runtime::aarch64::{Step, without_copy};

/// It is done without a copy, where it stands in memory, or runs in its copy; `None`: there is none.
pub(in crate::inside) fn of(image: &Image, at: Svma, (here, copy): (u64, u64), _: bool) -> Option<Step> {
    let word = image.text(at, 4)?.first_chunk().map(|bytes| u32::from_le_bytes(*bytes))?;
    without_copy(word, here).or((copy != 0).then_some(Step::At(copy)))
}
