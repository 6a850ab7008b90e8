//! `record`, `replay`, `report` and `dump`, checked and converted.
//!
//! In: typed words. Out: [`Record`], [`Shown`], or what is wrong. Does not: open files.

use trapline::ProbeSpec;

use super::error::UsageError;
use super::fields::Fields;
use super::filters::filters;
use super::prototype::{Look, complete, split};
use super::run::{ends, is_function};
use super::selection::{functions, selection};
use super::trigger::triggers;
use crate::args::command::record::{self, Diff, Form, Record, Shown, Sort};
use crate::args::command::types::Signature;
use crate::args::command::{FilterOptions, Run};
use crate::args::sink::Sink;
use crate::args::typed::{
    Common, TypedDiff, TypedDump, TypedField, TypedRecord, TypedReplay, TypedReport, TypedSort,
};
use crate::report::format::Format;

/// Why some texts are not recorded.
const KEPT: &str = "record has texts of up to 64 bytes, as they are at the entry: str, buf(len=ARG); trace -o FILE.trapline has str[N], buf(…)[N] and texts of the return";
/// Why no types are known.
const NO_TYPES: &str = "--auto-args: types are not known: there is no debug information, or a probe means more than 1,000 functions; type signatures, such as 'open(str path, int flags) -> int', or name fewer functions";
/// Name of the file in a recording's folder.
pub(crate) const FILE: &str = "calls.trapline";
/// Least and greatest bytes of a buffer.
const LEAST: u64 = 4 << 10;
const MOST: u64 = 1 << 30;

/// Probes, with the types of their values as far as these are recorded.
type Probes = Vec<(ProbeSpec, Option<Signature>)>;

/// Looks for the types of values: of all probes, or of those with a signature, which come first then. Of two probes that
/// mean one function, the first counts.
fn valued(
    run: &mut Run,
    signatures: Vec<Option<Signature>>,
    all: bool,
    look: Look<'_>,
) -> Result<Probes, UsageError> {
    let both = std::mem::take(&mut run.probes).into_iter().zip(signatures);
    let (asked, others): (Vec<_>, Vec<_>) = both.partition(|(_, signature)| all || signature.is_some());
    let (probes, signatures) = asked.into_iter().unzip();
    run.probes = probes;
    let mut probes = complete(run, signatures, look)?;
    if all && probes.iter().all(|(_, signature)| signature.is_none()) {
        return Err(UsageError::Conflict(NO_TYPES));
    }
    probes.extend(others);
    run.probes = probes.iter().map(|(probe, _)| probe.clone()).collect();
    Ok(probes)
}

/// Checks and converts `record`.
pub(super) fn record(typed: TypedRecord, look: Look<'_>) -> Result<Record, UsageError> {
    let mut texts = typed.probes;
    if texts.is_empty() {
        texts.push("*".to_owned());
    }
    let common = Common {
        target: typed.target,
        duration: typed.duration,
        patching: typed.patching,
        quiet: typed.quiet,
        ..Common::default()
    };
    let (mut run, signatures) = split(&texts, common, &[], look)?;
    if let Some(wrong) = run.probes.iter().find(|probe| !is_function(probe)) {
        return Err(UsageError::RecordNotAFunction(wrong.text.clone()));
    }
    let probes = valued(&mut run, signatures, typed.auto_args, look)?;
    if probes.iter().flat_map(|(_, signature)| signature).any(|signature| !signature.kept.is_empty()) {
        return Err(UsageError::Conflict(KEPT));
    }
    let fields: Vec<Fields<'_>> = probes.iter().map(|(_, one)| Fields::of(one.as_ref())).collect();
    let filters = filters(&probes, true, &FilterOptions::default(), &fields)?;
    drop(fields);
    if !run.dry_run {
        let output = Some(typed.output.join(FILE));
        run.sink = Sink { format: Format::Saved, json: false, output, quiet: typed.quiet };
    }
    let buffer = size(&typed.buffer).ok_or(UsageError::Buffer(typed.buffer))?;
    let least_bytes = match typed.size_filter {
        Some(text) => bytes(&text).ok_or(UsageError::SizeFilter(text))?,
        None => 0,
    };
    let without = functions("--unpatch", &typed.unpatch)?;
    let budget = typed.budget.map(|text| share(&text).ok_or(UsageError::Budget(text))).transpose()?;
    triggers(&typed.trigger)?;
    let (ends, lossless, libcalls) = (ends(&typed.ends)?, typed.lossless, typed.libcall);
    Ok(Record {
        run,
        probes,
        filters,
        libcalls,
        dir: typed.output,
        ends,
        lossless,
        buffer,
        least_bytes,
        without,
        budget,
        triggers: typed.trigger,
    })
}

/// A share: a number above 0 and up to 100, and a percent sign.
fn share(text: &str) -> Option<f64> {
    let percent = text.strip_suffix('%')?.trim().parse::<f64>().ok()?;
    (percent > 0.0 && percent <= 100.0).then_some(percent / 100.0)
}

/// Bytes: a number, and K, M or G behind it.
fn bytes(text: &str) -> Option<u64> {
    let (number, shift) = match text.char_indices().last()? {
        (at, 'k' | 'K') => (&text[..at], 10),
        (at, 'm' | 'M') => (&text[..at], 20),
        (at, 'g' | 'G') => (&text[..at], 30),
        _ => (text, 0),
    };
    number.parse::<u64>().ok()?.checked_mul(1 << shift)
}

/// The same as a power of two, within the limits of a buffer.
fn size(text: &str) -> Option<u32> {
    let bytes = bytes(text)?.checked_next_power_of_two().filter(|bytes| (LEAST..=MOST).contains(bytes))?;
    u32::try_from(bytes).ok()
}

/// Checks and converts `replay`.
pub(super) fn replay(typed: TypedReplay) -> Result<Shown, UsageError> {
    let selection = selection(&typed.selection, typed.depth.depth)?;
    let has = |field| typed.fields.contains(&field);
    if has(TypedField::None) && typed.fields.len() > 1 {
        return Err(UsageError::Conflict("--output-fields: none stands alone"));
    }
    let [elapsed, duration, tid] = [TypedField::Elapsed, TypedField::Duration, TypedField::Tid].map(has);
    let form = Form::Replay(record::Fields { elapsed, duration, tid });
    Ok(Shown { dir: typed.dir, selection, form, paged: !typed.pager.no_pager })
}

/// Checks and converts `report`.
pub(super) fn report(typed: TypedReport) -> Result<Shown, UsageError> {
    let selection = selection(&typed.selection, typed.depth.depth)?;
    let form = Form::Report { sort: sort(typed.sort), json: typed.json };
    Ok(Shown { dir: typed.dir, selection, form, paged: !typed.pager.no_pager })
}

const fn sort(typed: TypedSort) -> Sort {
    match typed {
        TypedSort::Total => Sort::Total,
        TypedSort::Own => Sort::Own,
        TypedSort::Call => Sort::Calls,
        TypedSort::Func => Sort::Name,
    }
}

/// Checks and converts `diff`.
pub(super) fn diff(typed: TypedDiff) -> Result<Diff, UsageError> {
    let selection = selection(&typed.selection, typed.depth.depth)?;
    let dirs = [typed.base, typed.other];
    let (sort, paged) = (sort(typed.sort), !typed.pager.no_pager);
    Ok(Diff { dirs, selection, sort, full: typed.full, paged })
}

/// Checks and converts `dump`. A recording is a folder, and anything else holds folded stacks.
pub(super) fn dump(typed: TypedDump) -> Result<Shown, UsageError> {
    let selection = selection(&typed.selection, typed.depth.depth)?;
    let is_picture = typed.unit.is_some() || typed.dir.exists() && !typed.dir.is_dir();
    let form = match typed.output {
        output if typed.chrome => Form::Chrome(output),
        output if is_picture => {
            Form::Picture { output, unit: typed.unit.unwrap_or_else(|| "samples".to_owned()) }
        }
        output => Form::Flame(output),
    };
    Ok(Shown { dir: typed.dir, selection, form, paged: false })
}

#[cfg(test)]
mod tests {
    use super::{share, size};

    #[test]
    fn a_budget_is_a_share() {
        for (text, share_of) in [
            ("5%", Some(0.05)),
            ("0.5 %", Some(0.005)),
            ("100%", Some(1.0)),
            ("0%", None),
            ("5", None),
            ("101%", None),
            ("-1%", None),
            ("NaN%", None),
            ("", None),
        ] {
            assert_eq!(share(text), share_of, "{text}");
        }
    }

    #[test]
    fn sizes_are_powers_of_two_within_limits() {
        for (text, bytes) in [
            ("16M", Some(16 << 20)),
            ("5000", Some(8192)),
            ("4k", Some(4096)),
            ("1G", Some(1 << 30)),
            ("2G", None),
            ("4095", Some(4096)),
            ("100", None),
            ("M", None),
            ("", None),
            ("-1M", None),
            ("16MB", None),
            ("99999999999999999999", None),
        ] {
            assert_eq!(size(text), bytes, "{text}");
        }
    }
}
