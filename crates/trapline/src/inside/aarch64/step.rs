//! What becomes of an instruction under a trap.

use trapline_image::Image;
use trapline_insn::aarch64::{Verdict, decode};
use trapline_record::Svma;
use trapline_runtime::aarch64::Step;

/// It is simulated, or runs in its copy; `None`: there is none.
pub(in crate::inside) fn of(image: &Image, at: Svma, copy: u64, _: bool) -> Option<Step> {
    let word = image.text(at, 4)?.first_chunk().map(|bytes| u32::from_le_bytes(*bytes))?;
    match decode(word) {
        Verdict::Simulate(op) => Some(Step::Simulate(op)),
        _ => (copy != 0).then_some(Step::At(copy)),
    }
}
