//! Splits a text into tokens, each with its position.
//!
//! Numbers are C's: decimal, `0x`, `0b`, octal behind a leading 0, characters in quotes; and times (`20us`,
//! `1ms`, `2s`), in nanoseconds; with a fraction or an exponent they are real (`0.5`, `1e-3`, `0.1f`). Does
//! not: know what a name means.

use super::error::{Span, Why};

/// A token.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(super) enum Token<'a> {
    Number(u64),
    Real(f64),
    Name(&'a str),
    /// A name with steps behind it: `req->next[2].len`.
    Path(&'a str),
    /// An operator or a bracket.
    Mark(&'static str),
    End,
}

/// Longer spellings come before their own beginnings.
const MARKS: [&str; 22] = [
    "||", "&&", "==", "!=", "<=", ">=", "<<", ">>", "|", "^", "&", "<", ">", "+", "-", "*", "/", "%", "!",
    "~", "(", ")",
];
const UNITS: [(&str, u64); 4] = [("ns", 1), ("us", 1_000), ("ms", 1_000_000), ("s", 1_000_000_000)];

/// The token at `at`, or behind the spaces there.
pub(super) fn token(text: &str, at: usize) -> Result<(Token<'_>, Span), (Why, Span)> {
    let rest = &text[at..];
    let start = at + (rest.len() - rest.trim_start().len());
    let rest = &text[start..];
    let span = |len| Span { start, len };
    let Some(first) = rest.chars().next() else { return Ok((Token::End, span(0))) };
    if let Some(mark) = MARKS.into_iter().find(|mark| rest.starts_with(mark)) {
        return Ok((Token::Mark(mark), span(mark.len())));
    }
    if first == '\'' {
        return character(rest)
            .map(|(value, len)| (Token::Number(value), span(len)))
            .ok_or((Why::Character, span(1)));
    }
    if let Some((value, len)) = real(rest) {
        return Ok((Token::Real(value), span(len)));
    }
    let len = rest.find(|c: char| !(c.is_ascii_alphanumeric() || c == '_')).unwrap_or(rest.len());
    if len == 0 {
        return Err((Why::Stray(first), span(first.len_utf8())));
    }
    let word = &rest[..len];
    match first.is_ascii_digit() {
        true => number(word).map(|value| (Token::Number(value), span(len))).ok_or((Why::Number, span(len))),
        false if path_len(rest, len) > len => {
            let len = path_len(rest, len);
            Ok((Token::Path(&rest[..len]), span(len)))
        }
        false => Ok((Token::Name(word), span(len))),
    }
}

/// Offset at which the steps behind a name end.
fn path_len(text: &str, mut at: usize) -> usize {
    let word =
        |at: usize| at + text[at..].bytes().take_while(|c| c.is_ascii_alphanumeric() || *c == b'_').count();
    loop {
        let rest = &text[at..];
        at = match rest.as_bytes() {
            [b'-', b'>', ..] | [b':', b':', ..] => word(at + 2),
            [b'.', ..] => word(at + 1),
            [b'[', ..] => match rest.find(']') {
                Some(end) => at + end + 1,
                None => return text.len(),
            },
            _ => return at,
        };
    }
}

/// Reads digits with a fraction, an exponent, or both; `f` behind them rounds to a number of type `float`.
fn real(text: &str) -> Option<(f64, usize)> {
    let digits = |from: usize| from + text[from..].bytes().take_while(u8::is_ascii_digit).count();
    let whole = digits(0);
    let mut end = whole;
    if whole > 0 && text[end..].starts_with('.') && digits(end + 1) > end + 1 {
        end = digits(end + 1);
    }
    if whole > 0 && text[end..].starts_with(['e', 'E']) {
        let sign = end + 1 + usize::from(text[end + 1..].starts_with(['-', '+']));
        end = if digits(sign) > sign { digits(sign) } else { end };
    }
    if end == whole {
        return None;
    }
    let value = text[..end].parse().ok()?;
    match text[end..].starts_with('f') {
        true => Some((f64::from(text[..end].parse::<f32>().ok()?), end + 1)),
        false => Some((value, end)),
    }
}

fn number(word: &str) -> Option<u64> {
    let digits = word.find(|c: char| !c.is_ascii_digit()).unwrap_or(word.len());
    let (head, unit) = word.split_at(digits);
    if let Some((_, nanos)) = UNITS.into_iter().find(|(name, _)| *name == unit) {
        return head.parse::<u64>().ok()?.checked_mul(nanos);
    }
    let lower = word.to_ascii_lowercase();
    let (digits, radix) = match lower.as_bytes() {
        [b'0', b'x', ..] => (&lower[2..], 16),
        [b'0', b'b', ..] => (&lower[2..], 2),
        [b'0', _, ..] => (&lower[1..], 8),
        _ => (&lower[..], 10),
    };
    u64::from_str_radix(digits, radix).ok()
}

/// Reads `'a'` or `'\n'`: its value and length.
fn character(text: &str) -> Option<(u64, usize)> {
    match text.as_bytes() {
        [b'\'', b'\\', escape, b'\'', ..] => {
            let value = match escape {
                b'n' => b'\n',
                b't' => b'\t',
                b'r' => b'\r',
                b'0' => 0,
                b'\\' | b'\'' | b'"' => *escape,
                _ => return None,
            };
            Some((value.into(), 4))
        }
        [b'\'', plain, b'\'', ..] if plain.is_ascii() && *plain != b'\\' => Some(((*plain).into(), 3)),
        _ => None,
    }
}
