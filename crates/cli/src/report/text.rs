//! The texts that arguments point to, for people and machines.
//!
//! In: a call's texts, as the kernel read them. Out: the part that the argument's type denotes, and whether
//! it goes on. Does not: read memory.

use trapline::Call;
use trapline::calls::{ReadOutcome, Text};

use crate::args::types::{ArgumentPlace, Parameter, Type};

/// The number on Linux.
const EFAULT: i32 = 14;

/// The part of a `str` or `buf` that was read.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Read<'a> {
    pub(crate) bytes: &'a [u8],
    /// True if there is more than a record holds.
    pub(crate) cut: bool,
    /// The address at which the next byte cannot be read.
    pub(crate) fault: Option<u64>,
    /// The error for which the kernel read nothing.
    failed: Option<i32>,
}

impl Read<'_> {
    /// Whether nothing is known of a text that has at least one byte, not even that byte.
    pub(crate) fn is_nothing(&self) -> bool {
        self.bytes.is_empty() && (self.fault.is_some() || self.failed.is_some())
    }
}

/// What an argument points to; `None` if its type does not point to text.
pub(crate) fn read<'a>(call: &'a Call, parameter: &Parameter) -> Option<Read<'a>> {
    let (text, pointer) = match parameter.place {
        ArgumentPlace::General(register) => {
            (call.texts.iter().find(|text| text.argument == register)?, parameter.raw(call))
        }
        ArgumentPlace::Kept { text, .. } => (call.kept.get(usize::from(text))?, parameter.raw(call)),
        ArgumentPlace::Field(n) => (call.fields.get(usize::from(n))?, None),
        ArgumentPlace::Vector(_)
        | ArgumentPlace::Fields { .. }
        | ArgumentPlace::Parts(_)
        | ArgumentPlace::Unseen => return None,
    };
    let wanted = match parameter.shown {
        Type::Str => text.bytes.iter().position(|&byte| byte == 0),
        // A negative value is an error, and no length.
        Type::BufReturned => call.returned.map(|value| usize::try_from(value as i32).unwrap_or(0)),
        Type::Buf(length) if call.unseen >> (length & 15) & 1 == 1 => None,
        Type::Buf(length) => {
            call.arguments.get(usize::from(length)).and_then(|&len| usize::try_from(len).ok())
        }
        Type::BufField(length) => number_in(call, length),
        _ => return None,
    };
    Some(part(text, pointer, wanted))
}

/// The number in a field; `None` if it was not read.
fn number_in(call: &Call, field: u8) -> Option<usize> {
    let field = call.fields.get(usize::from(field)).filter(|field| field.reading == ReadOutcome::Whole)?;
    let word = field.bytes.first_chunk().copied().map(i64::from_le_bytes)?;
    Some(usize::try_from(word).unwrap_or(0))
}

/// What the returned value points to, if that is shown as text.
pub(crate) fn returned(call: &Call, nth: Option<u8>) -> Option<Read<'_>> {
    let text = call.kept.get(usize::from(nth?))?;
    Some(part(text, call.returned, text.bytes.iter().position(|&byte| byte == 0)))
}

/// The first `wanted` bytes of a text; all that was read, if it is not known how many there are.
fn part(text: &Text, pointer: Option<u64>, wanted: Option<usize>) -> Read<'_> {
    let failed = match (text.reading, pointer) {
        (ReadOutcome::Failed(error), _) => Some(error),
        // The address at which it would have been read is not in the record.
        (ReadOutcome::Fault, None) => Some(EFAULT),
        _ => None,
    };
    let ends = wanted.filter(|&wanted| wanted <= text.bytes.len());
    let bytes = &text.bytes[..ends.unwrap_or(text.bytes.len())];
    let stops = ends.is_none() && failed.is_none() && text.reading == ReadOutcome::Fault;
    Read {
        bytes,
        cut: ends.is_none() && text.reading == ReadOutcome::Whole,
        fault: pointer.filter(|_| stops).map(|pointer| pointer.wrapping_add(bytes.len() as u64)),
        failed: failed.filter(|_| ends.is_none()),
    }
}

/// The text as strace writes it: `"abc"`, `"abc"...` where there is more. `<fault 0x10>` marks an address
/// that cannot be read.
pub(crate) fn show(call: &Call, parameter: &Parameter) -> Option<String> {
    read(call, parameter).map(|read| shown(&read))
}

/// The same of what was read.
pub(crate) fn shown(read: &Read<'_>) -> String {
    let quoted = if read.is_nothing() { String::new() } else { quoted(read.bytes) };
    let end = match (read.fault, read.failed) {
        (Some(0), _) => "NULL".to_owned(),
        (Some(at), _) => format!("<fault {at:#x}>"),
        (_, Some(EFAULT)) => "<fault>".to_owned(),
        (_, Some(error)) => format!("<error {error}>"),
        _ if read.cut => "...".to_owned(),
        _ => String::new(),
    };
    quoted + &end
}

/// The text in quotes; if it is not UTF-8, byte by byte.
fn quoted(bytes: &[u8]) -> String {
    match std::str::from_utf8(bytes) {
        Ok(text) => format!("{text:?}"),
        // Only the last character is incomplete, because the text was cut there.
        Err(error) if error.error_len().is_none() => {
            format!("{:?}", String::from_utf8_lossy(&bytes[..error.valid_up_to()]))
        }
        Err(_) => format!("\"{}\"", bytes.escape_ascii()),
    }
}

#[cfg(test)]
mod tests {
    use crate::args::types::{ArgumentPlace, Parameter, Type};
    use std::sync::Arc;
    use std::time::Duration;
    use trapline::calls::{CallEnd, FloatArguments, ReadOutcome, Text};
    use trapline::report::Tactic;
    use trapline::{Call, Site};

    fn call(bytes: &[u8], reading: ReadOutcome, length: u64) -> Call {
        let site = Site {
            probe: String::new(),
            aliases: Vec::new(),
            file: String::new(),
            offset: 0,
            label: String::new(),
            tactic: Tactic::Jump,
            slot: 0,
        };
        Call {
            pid: 1,
            tid: 1,
            site: Arc::new(site),
            at: Duration::ZERO,
            arguments: [0x1000, length, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0],
            unseen: 0,
            float_arguments: FloatArguments::default(),
            floats: [0; 8],
            texts: vec![Text { argument: 0, bytes: bytes.to_vec(), reading }],
            fields: Vec::new(),
            kept: Vec::new(),
            stack: None,
            returned: None,
            results: Vec::new(),
            took: None,
            how: CallEnd::Entered,
        }
    }

    fn show(call: &Call, shown: Type) -> Option<String> {
        super::show(call, &Parameter { name: String::new(), shown, place: ArgumentPlace::General(0) })
    }

    #[test]
    fn text_is_shown_as_far_as_it_was_read() {
        let full = [b'x'; 64];
        for (bytes, reading, shown, expected) in [
            (&b"ab\0cd"[..], ReadOutcome::Fault, Type::Str, "\"ab\"".to_owned()),
            (b"ab", ReadOutcome::Fault, Type::Str, "\"ab\"<fault 0x1002>".to_owned()),
            (b"", ReadOutcome::Fault, Type::Str, "<fault 0x1000>".to_owned()),
            (b"", ReadOutcome::Failed(1), Type::Str, "<error 1>".to_owned()),
            (&full, ReadOutcome::Whole, Type::Str, format!("\"{}\"...", "x".repeat(64))),
            (b"a\xffb", ReadOutcome::Fault, Type::Buf(1), "\"a\\xffb\"".to_owned()),
            (b"a\0b\0", ReadOutcome::Fault, Type::Buf(1), "\"a\\0b\"".to_owned()),
            (b"a", ReadOutcome::Fault, Type::Buf(1), "\"a\"<fault 0x1001>".to_owned()),
            ("aé".as_bytes(), ReadOutcome::Fault, Type::Buf(1), "\"aé\"".to_owned()),
        ] {
            assert_eq!(show(&call(bytes, reading, 3), shown), Some(expected), "{bytes:?}");
        }
        assert_eq!(show(&call(b"a", ReadOutcome::Whole, 3), Type::Hex), None);
        assert_eq!(show(&call(b"", ReadOutcome::Fault, 0), Type::Buf(1)).as_deref(), Some("\"\""));
    }
}
