//! `stack`, checked and converted.
//!
//! In: typed words, debug information. Out: [`Stacks`], or what is wrong. Does not: trace.

use trapline::probes::ProbeKind;
use trapline::{ProbeSpec, Unwinding};

use super::error::UsageError;
use super::fields::Fields;
use super::filters;
use super::prototype::{Look, complete, refuse_kept, split};
use super::run::{ends, is_function};
use crate::args::sink::PICTURES;
use crate::args::stack::Stacks;
use crate::args::typed::{TypedStack, TypedUnwind};

/// Bytes of a stack that are copied if no number is typed. perf copies as many.
const COPIED: u32 = 8192;

/// Checks and converts.
pub(super) fn stack(typed: TypedStack, look: Look<'_>) -> Result<Stacks, UsageError> {
    let (mut run, signatures) = split(&typed.probes, typed.common, PICTURES, look)?;
    let wrong = |probe: &&ProbeSpec| probe.kind == ProbeKind::Return || typed.time && !is_function(probe);
    if let Some(probe) = run.probes.iter().find(wrong) {
        return Err(match typed.time {
            true => UsageError::NotTimed(probe.text.clone()),
            false => UsageError::NoStackAtReturn(probe.text.clone()),
        });
    }
    if typed.ends.any() && !typed.time {
        return Err(UsageError::Conflict("--ret and --maxactive are for calls that are timed: add --time"));
    }
    let ends = ends(&typed.ends)?;
    let unwinding = match (typed.unwind, typed.depth, typed.stack_bytes) {
        (TypedUnwind::Fp, depth, None) => Unwinding::FramePointers(depth.unwrap_or(Unwinding::DEEPEST)),
        (TypedUnwind::Dwarf, None, bytes) => Unwinding::Copied(bytes.unwrap_or(COPIED)),
        (TypedUnwind::Fp, ..) => {
            return Err(UsageError::Conflict("--stack-bytes is for copies: add --unwind dwarf"));
        }
        (TypedUnwind::Dwarf, ..) => {
            return Err(UsageError::Conflict(
                "--depth is for frame pointers; with --unwind dwarf say --stack-bytes",
            ));
        }
    };
    let filter_options = filters::options(typed.filter, Vec::new())?;
    // If no filter was typed, no debug information is needed.
    let asks = !filter_options.is_nothing();
    let probes = if asks { complete(&mut run, signatures, look)? } else { Vec::new() };
    refuse_kept(&probes)?;
    let fields: Vec<Fields<'_>> = probes.iter().map(|(_, one)| Fields::used(one.as_ref())).collect();
    let filters = filters::filters(&probes, false, &filter_options, &fields)?;
    Ok(Stacks { run, unwinding, time: typed.time, top: typed.top, filters, ends })
}
