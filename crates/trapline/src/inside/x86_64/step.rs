//! What becomes of an instruction under a trap.

use trapline_image::Image;
use trapline_insn::x86_64::Options;
use trapline_insn::x86_64::simulate::{Verdict, verdict};
use trapline_record::Svma;
use trapline_runtime::x86_64::Step;

/// The longest instruction.
const LONGEST: u64 = 15;

/// It is simulated, or runs in its copy; `None`: there is none.
pub(in crate::inside) fn of(
    image: &Image,
    at: Svma,
    (_, copy): (u64, u64),
    shadow_stack: bool,
) -> Option<Step> {
    let bytes = (1..=LONGEST).rev().find_map(|len| image.text(at, len))?;
    Some(match verdict(bytes, Options { shadow_stack }) {
        Verdict::Simulate(op) => Step::Simulate(op),
        Verdict::OutOfLine | Verdict::Refuse(_) => Step::At(copy),
    })
}
