//! Values as text, as they stand in a line.
//!
//! In: shown values. Out: bytes. Does not: write maps.

use crate::shown::Shown;

/// A value as text.
pub(crate) fn plain(value: &Shown) -> Vec<u8> {
    let mut out = Vec::new();
    write(value, &mut out);
    out
}

/// Writes a value.
pub(crate) fn write(value: &Shown, out: &mut Vec<u8>) {
    match value {
        Shown::Null => out.extend(b"null"),
        Shown::Bool(value) => out.extend(value.to_string().bytes()),
        Shown::Int(value) => out.extend(value.to_string().bytes()),
        Shown::Uint(value) => out.extend(value.to_string().bytes()),
        Shown::Text(text) | Shown::Symbolic(text, _) => out.extend(text),
        Shown::Buffer(bytes) => out.extend(hex(bytes, true, true)),
        Shown::Array(values) => {
            out.push(b'[');
            list(values, b",", out);
            out.push(b']');
        }
        Shown::Tuple(values) => {
            out.push(b'(');
            list(values, b", ", out);
            out.push(b')');
        }
        Shown::Record(fields) if fields.is_empty() => out.extend(b"{}"),
        Shown::Record(fields) => {
            for (index, (name, value)) in fields.iter().enumerate() {
                out.extend(if index == 0 { &b"{ ."[..] } else { b", ." });
                out.extend(name.bytes());
                out.extend(b" = ");
                write(value, out);
            }
            out.extend(b" }");
        }
    }
}

fn list(values: &[Shown], between: &[u8], out: &mut Vec<u8>) {
    for (index, value) in values.iter().enumerate() {
        if index > 0 {
            out.extend(between);
        }
        write(value, out);
    }
}

/// Bytes as `\x00`; letters stay if `ascii`, and without `escape` numbers have spaces between them.
pub(crate) fn hex(bytes: &[u8], ascii: bool, escape: bool) -> Vec<u8> {
    let mut out = Vec::new();
    for (index, &byte) in bytes.iter().enumerate() {
        match byte {
            32..=126 if ascii => out.push(byte),
            byte if escape => out.extend(format!("\\x{byte:02x}").bytes()),
            byte => out.extend(format!("{}{byte:02x}", if index == 0 { "" } else { " " }).bytes()),
        }
    }
    out
}

/// A key as it stands in square brackets: a tuple without its own brackets.
pub(crate) fn key(value: &Shown) -> Vec<u8> {
    let text = plain(value);
    match &text[..] {
        [b'(', inside @ .., b')'] => inside.to_vec(),
        _ => text,
    }
}
