//! How an instruction under a trap is executed.

use trapline_image::Image;
use trapline_record::Svma;
use trapline_runtime::aarch64::{Step, without_copy};

/// Without a copy, simulated where it stands, or run in its copy; `None` if neither is possible.
pub(in crate::inside) fn of(image: &Image, at: Svma, (here, copy): (u64, u64), _: bool) -> Option<Step> {
    let word = image.text(at, 4)?.first_chunk().map(|bytes| u32::from_le_bytes(*bytes))?;
    without_copy(word, here).or((copy != 0).then_some(Step::At(copy)))
}
