//! How an instruction under a trap is executed.

use trapline_image::Image;
use trapline_insn::x86_64::Options;
use trapline_insn::x86_64::simulate::{Verdict, verdict};
use trapline_record::Svma;
use trapline_runtime::x86_64::Step;

/// Length of the longest instruction, in bytes.
const LONGEST: u64 = 15;

/// Simulated, or run in its copy; `None` if neither is possible.
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
