//! Calls for people, one on a line.
//!
//! In: a call, its signature, names of code. Out: text. Does not: know other calls.

use trapline::Call;
use trapline::calls::CallEnd;
use trapline::system::time_of_day;

use super::parts::{named, nanos, value_type};
use crate::args::types::{Signature, Type};
use crate::report::code_names::CodeNames;
use crate::report::{digits, text, visible};

/// Writes the line of a call.
pub(super) fn plain(
    out: &mut Vec<u8>,
    call: &Call,
    signature: Option<&Signature>,
    (timestamps, names): (bool, &mut Option<Box<CodeNames>>),
) {
    if timestamps {
        out.extend_from_slice(time_of_day().as_bytes());
    } else {
        let micros = nanos(call.at).saturating_add(500) / 1000;
        digits::padded(out, micros / 1_000_000, 5, b' ');
        out.push(b'.');
        digits::padded(out, micros % 1_000_000, 6, b'0');
    }
    out.push(b' ');
    digits::padded(out, call.tid.into(), 7, b' ');
    out.push(b' ');
    out.extend_from_slice(visible::name(&call.site.label).as_bytes());
    arguments(out, call, signature, names);
    let value = value_type(signature);
    match (call.how, call.returned) {
        (CallEnd::Entered, _) => {}
        (CallEnd::Returned, Some(_)) if *value == Type::Void => took(out, call),
        (CallEnd::Returned, returned) => {
            match returned.filter(|_| *value == Type::Code).and_then(|raw| named(names, call.pid, raw)) {
                Some(name) => out.extend_from_slice(format!(" = {}", visible::name(&name)).as_bytes()),
                None => returned_value(out, call, returned, signature),
            }
            took(out, call);
        }
        (CallEnd::TailCall, _) => {
            out.extend_from_slice(b" = ? (tail call)");
            took(out, call);
        }
        (CallEnd::Unfinished, _) => out.extend_from_slice(b" <unfinished ...>"),
    }
    out.push(b'\n');
}

/// Writes a call's arguments in brackets.
pub(crate) fn arguments(
    out: &mut Vec<u8>,
    call: &Call,
    signature: Option<&Signature>,
    names: &mut Option<Box<CodeNames>>,
) {
    out.push(b'(');
    for (n, parameter) in signature.iter().flat_map(|signature| &signature.parameters).enumerate() {
        if n > 0 {
            out.extend_from_slice(b", ");
        }
        if !parameter.name.is_empty() {
            out.extend_from_slice(parameter.name.as_bytes());
            out.push(b'=');
        }
        let raw = parameter.raw(call);
        if let Some(name) =
            raw.filter(|_| parameter.shown == Type::Code).and_then(|raw| named(names, call.pid, raw))
        {
            out.extend_from_slice(visible::name(&name).as_bytes());
            continue;
        }
        shown(out, &parameter.shown, raw, || {
            text::show(call, parameter).unwrap_or_else(|| parameter.show(call))
        });
    }
    out.push(b')');
}

/// Writes ` = ` and what a call returned; a question mark, if that is not in the register where it is looked for.
pub(crate) fn returned_value(
    out: &mut Vec<u8>,
    call: &Call,
    returned: Option<u64>,
    signature: Option<&Signature>,
) {
    out.extend_from_slice(b" = ");
    let value = value_type(signature);
    let Some(returned) = returned else { return out.push(b'?') };
    match text::returned(call, signature.and_then(|signature| signature.returned_text)) {
        Some(read) => out.extend_from_slice(text::shown(&read).as_bytes()),
        None => shown(out, value, Some(returned), || match signature {
            Some(signature) => signature.show_returned(call, returned),
            None => value.show(returned),
        }),
    }
}

/// Writes a value by its digits if it is just a number, otherwise as `other` shows it.
fn shown(out: &mut Vec<u8>, shown: &Type, raw: Option<u64>, other: impl FnOnce() -> String) {
    match (shown, raw) {
        (Type::Hex | Type::Code, Some(raw)) => digits::hex(out, raw),
        (_, Some(raw)) if number(out, shown, raw) => {}
        _ => out.extend_from_slice(other().as_bytes()),
    }
}

/// Writes an integer as wide as its type; returns false for any other type.
pub(super) fn number(out: &mut Vec<u8>, shown: &Type, raw: u64) -> bool {
    let unused = |bits: u8| 64_u32.saturating_sub(bits.into()).min(63);
    match *shown {
        Type::Signed(bits) => {
            digits::signed(out, raw.wrapping_shl(unused(bits)).cast_signed() >> unused(bits))
        }
        Type::Unsigned(bits) => digits::decimal(out, raw.wrapping_shl(unused(bits)) >> unused(bits)),
        _ => return false,
    }
    true
}

fn took(out: &mut Vec<u8>, call: &Call) {
    if let Some(took) = call.took {
        // The call goes on as another function, so its duration is only known to be at least this.
        let at_least = if call.how == CallEnd::TailCall { ">= " } else { "" };
        out.extend_from_slice(b" <");
        out.extend_from_slice(at_least.as_bytes());
        digits::decimal(out, took.as_secs());
        out.push(b'.');
        digits::padded(out, took.subsec_nanos().into(), 9, b'0');
        out.push(b'>');
    }
}
