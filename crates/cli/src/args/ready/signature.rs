//! A function's signature as typed: `libc:openat(fd, char path, int flags) -> int`.
//!
//! In: a probe, with or without a signature. Out: the probe's own text, and the names and types of its
//! arguments and its returned value. Does not: read memory; it only determines which arguments point to text.

mod error;
mod places;
mod words;

#[cfg(test)]
mod tests;

use trapline::ProbeSpec;
use trapline::calls::{KeptPointer, KeptText, TEXT_BYTES};
use trapline::probes::ProbeKind;

pub(crate) use error::SignatureError;
use places::{numbered, parameters};
use words::{is_word, known, register, sized, type_of};

use super::fields::is_path;
use crate::args::command::types::{ArgumentPlace, Parameter, Signature, Type};

/// Bytes of a text without a length.
const TEXT: u16 = TEXT_BYTES as u16;

/// The text before `->`, and the type behind it.
pub(super) fn call(text: &str) -> (&str, Option<&str>) {
    let is_closed = |call: &str| call.contains(')') && call.matches('(').count() == call.matches(')').count();
    match text.rsplit_once("->") {
        Some((call, value)) if call.trim_end().ends_with([')', 't']) && is_closed(call) => {
            (call.trim_end(), Some(value.trim()))
        }
        _ => (text.trim_end(), None),
    }
}

/// The name of what is probed, and what stands in the brackets behind it.
pub(super) fn listed(call: &str) -> Option<(&str, &str)> {
    let begin = list_begins(call)?;
    let (list, behind) = call[begin + 1..].rsplit_once(')')?;
    behind.trim().is_empty().then_some((&call[..begin], list))
}

/// A signature that has only the type of the returned value.
pub(super) fn value_alone(value: &str) -> Result<Signature, SignatureError> {
    let (value, kept) = returned(value)?;
    let returned_text = (!kept.is_empty()).then_some(0);
    let (parameters, selected, fields) = Default::default();
    Ok(Signature {
        parameters,
        value: Some(value),
        selected,
        fields,
        kept,
        value_in: Vec::new(),
        returned_text,
        noted: None,
    })
}

/// Splits a probe from its signature. A name may hold brackets itself (C++). Only a last pair that ends the
/// text, or stands before `->`, is a signature.
pub(crate) fn split(text: &str) -> Result<(String, Option<Signature>), SignatureError> {
    let (call, value) = call(text);
    let Some(begin) = list_begins(call) else { return Ok((text.to_owned(), None)) };
    let (probe, list) = (&call[..begin], &call[begin + 1..]);
    let Some((list, behind)) = list.rsplit_once(')') else { return Err(SignatureError::Open) };
    if !behind.trim().is_empty() {
        return Err(SignatureError::Behind(behind.trim().to_owned()));
    }
    let words: Vec<&str> = list.split(',').map(str::trim).collect();
    let words = if matches!(words[..], ["" | "void"]) { Vec::new() } else { words };
    if let Some(nth) = words.iter().position(|word| word.is_empty()) {
        return Err(SignatureError::Nothing(nth + 1));
    }
    let paths = words.iter().any(|word| is_path(word));
    // Names alone are those of the source, if debug information has them.
    let is_name = |word: &&str| known(word).is_none() && *word != "str" && is_word(word);
    // Inside a function there are no types, and registers have no places among them.
    let is_register = |word: &&str| register(word).is_some_and(|(_, name)| name.is_empty());
    let inside = probe.trim().parse::<ProbeSpec>().is_ok_and(|spec| spec.is_inside())
        && words.iter().all(|word| is_name(word) || is_path(word) || is_register(word));
    let named = paths || inside || words.iter().all(is_name);
    let selected = words.iter().filter(|_| named).map(|&word| word.to_owned()).collect();
    let (parameters, fields) = match (paths || inside, is_mark(probe)) {
        (true, _) => Default::default(),
        (false, true) => (numbered(&words)?, Vec::new()),
        (false, false) => parameters(&words)?,
    };
    let mut parameters = parameters;
    let mut kept = kept(&words, &mut parameters)?;
    if is_mark(probe) && !kept.is_empty() {
        return Err(SignatureError::Long("str".to_owned()));
    }
    let (value, text) = match value.map(returned).transpose()? {
        Some((value, text)) => (Some(value), text),
        None => (None, Vec::new()),
    };
    let returned_text = (!text.is_empty()).then_some(kept.len() as u8);
    kept.extend(text);
    let value_in = Vec::new();
    let signature =
        Signature { parameters, value, selected, fields, kept, value_in, returned_text, noted: None };
    Ok((probe.trim().to_owned(), Some(signature)))
}

/// Where the list of arguments begins. The brackets of a receiver in a name of Go's, `main.(*T).f`, begin none.
fn list_begins(call: &str) -> Option<usize> {
    let mut from = 0;
    loop {
        let begin = from + call[from..].find('(')?;
        let mut depth = 0;
        let end = call[begin..].char_indices().find(|(_, letter)| {
            depth += i32::from(*letter == '(') - i32::from(*letter == ')');
            depth == 0
        });
        let behind = end.map(|(end, _)| begin + end + 1);
        let receives = call[..begin].ends_with('.') && call[begin + 1..].starts_with('*');
        match behind.filter(|behind| receives && call[*behind..].starts_with('.')) {
            Some(behind) => from = behind,
            None => return Some(begin),
        }
    }
}

/// The type of the returned value, and the text to which it points, if it is one.
fn returned(text: &str) -> Result<(Type, Vec<KeptText>), SignatureError> {
    let (word, bytes) = sized(text.trim())?;
    if word != "str" {
        return Ok((type_of(text)?, Vec::new()));
    }
    let text = KeptText { pointer: KeptPointer::Returned, at_return: true, bytes: bytes.unwrap_or(TEXT) };
    Ok((Type::Str, vec![text]))
}

/// The texts that a call keeps for its return: those with a length in brackets, and those whose length is returned.
/// Their parameters are changed accordingly.
fn kept(words: &[&str], parameters: &mut [Parameter]) -> Result<Vec<KeptText>, SignatureError> {
    let mut kept = Vec::new();
    for (word, parameter) in words.iter().zip(parameters) {
        let (kind, bytes) = sized(word)?;
        let at_return = parameter.shown == Type::BufReturned;
        if !at_return && bytes.is_none() {
            continue;
        }
        let ArgumentPlace::General(argument) = parameter.place else {
            return Err(SignatureError::Long(kind));
        };
        parameter.place = ArgumentPlace::Kept { argument, text: kept.len() as u8 };
        let pointer = KeptPointer::Argument(argument);
        kept.push(KeptText { pointer, at_return, bytes: bytes.unwrap_or(TEXT) });
    }
    Ok(kept)
}

/// Whether the text names a USDT probe.
fn is_mark(probe: &str) -> bool {
    probe.trim().parse::<ProbeSpec>().is_ok_and(|spec| spec.kind == ProbeKind::Usdt)
}
