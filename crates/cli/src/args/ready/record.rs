//! `record`, `replay`, `report` and `dump`, checked and converted.
//!
//! In: typed words. Out: [`Record`], [`Shown`], or what is wrong. Does not: open files.

use super::error::UsageError;
use super::run::{ends, is_function, run};
use super::selection::{functions, selection};
use crate::args::command::record::{Diff, Fields, Form, Record, Shown, Sort};
use crate::args::sink::Sink;
use crate::args::typed::{
    Common, TypedDiff, TypedDump, TypedField, TypedRecord, TypedReplay, TypedReport, TypedSort,
};
use crate::report::format::Format;

/// Name of the file in a recording's folder.
pub(crate) const FILE: &str = "calls.trapline";
/// Least and greatest bytes of a buffer.
const LEAST: u64 = 4 << 10;
const MOST: u64 = 1 << 30;

/// Checks and converts `record`.
pub(super) fn record(typed: TypedRecord) -> Result<Record, UsageError> {
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
    let mut run = run(&texts, common, &[])?;
    if let Some(wrong) = run.probes.iter().find(|probe| !is_function(probe)) {
        return Err(UsageError::RecordNotAFunction(wrong.text.clone()));
    }
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
    let (ends, lossless) = (ends(&typed.ends)?, typed.lossless);
    Ok(Record { run, dir: typed.output, ends, lossless, buffer, least_bytes, without })
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
    Ok(Shown { dir: typed.dir, selection, form: Form::Replay(Fields { elapsed, duration, tid }) })
}

/// Checks and converts `report`.
pub(super) fn report(typed: TypedReport) -> Result<Shown, UsageError> {
    let selection = selection(&typed.selection, typed.depth.depth)?;
    Ok(Shown { dir: typed.dir, selection, form: Form::Report(sort(typed.sort)) })
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
    Ok(Diff { dirs: [typed.base, typed.other], selection, sort: sort(typed.sort), full: typed.full })
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
    Ok(Shown { dir: typed.dir, selection, form })
}

#[cfg(test)]
mod tests {
    use super::size;

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
