//! Text → tokens, one at a time and from any place: attach points have rules of their own, and casts are tried.
//!
//! In: bytes and a place in them. Out: the token there, its span, and where the next one may begin. Anything that is
//! no token is [`Token::Bad`] with what is wrong. Does not: decide what a token is for.

use crate::source::Span;

/// A token.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Token {
    End,
    Int(u64),
    Text(Vec<u8>),
    Name(String),
    /// `$name`, without the dollar.
    Variable(String),
    /// `$1`.
    Positional(usize),
    /// `$#`.
    PositionalCount,
    /// `@name`, with the sign.
    Map(String),
    Sign(&'static str),
    Bad(String),
}

impl Token {
    /// The token as messages name it.
    pub(crate) fn text(&self) -> String {
        match self {
            Self::End => "end of file".to_owned(),
            Self::Int(value) => value.to_string(),
            Self::Text(_) => "string".to_owned(),
            Self::Name(name) | Self::Map(name) => name.clone(),
            Self::Variable(name) => format!("${name}"),
            Self::Positional(index) => format!("${index}"),
            Self::PositionalCount => "$#".to_owned(),
            Self::Sign(sign) => (*sign).to_owned(),
            Self::Bad(message) => message.clone(),
        }
    }
}

/// All signs, longer ones first.
const SIGNS: [&str; 47] = [
    "<<=", ">>=", "||", "&&", "==", "!=", "<=", ">=", "<<", ">>", "+=", "-=", "*=", "/=", "%=", "&=", "|=",
    "^=", "++", "--", "->", "..", "{", "}", "(", ")", "[", "]", ";", ",", ":", "?", "=", "<", ">", "+", "-",
    "*", "/", "%", "!", "~", "&", "|", "^", ".", "#",
];

/// The bytes of a script.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Lexer<'a> {
    text: &'a [u8],
}

/// Whether a name may begin with this byte.
const fn begins_name(byte: u8) -> bool {
    byte.is_ascii_alphabetic() || byte == b'_'
}

/// Whether a name may go on with this byte.
const fn is_of_name(byte: u8) -> bool {
    begins_name(byte) || byte.is_ascii_digit()
}

impl<'a> Lexer<'a> {
    pub(crate) const fn new(text: &'a [u8]) -> Self {
        Self { text }
    }
    pub(crate) fn byte(self, at: usize) -> u8 {
        self.text.get(at).copied().unwrap_or(0)
    }
    pub(crate) const fn is_end(self, at: usize) -> bool {
        at >= self.text.len()
    }
    /// Behind bytes for which `is` holds.
    pub(crate) fn skip(self, mut at: usize, is: impl Fn(u8) -> bool) -> usize {
        while !self.is_end(at) && is(self.byte(at)) {
            at += 1;
        }
        at
    }
    /// Behind white space and comments.
    pub(crate) fn layout(self, mut at: usize) -> usize {
        loop {
            at = self.skip(at, |byte| byte.is_ascii_whitespace() || byte == 0x0b);
            match (self.byte(at), self.byte(at + 1)) {
                (b'/', b'/') => at = self.skip(at, |byte| byte != b'\n'),
                (b'/', b'*') => at = self.find(at + 2, b"*/").map_or(self.text.len(), |end| end + 2),
                _ => return at,
            }
        }
    }
    /// Where `what` begins next.
    fn find(self, at: usize, what: &[u8]) -> Option<usize> {
        let rest = self.text.get(at..)?;
        rest.windows(what.len()).position(|window| window == what).map(|found| at + found)
    }
    /// The token at a place, behind layout.
    pub(crate) fn token(self, at: usize) -> (Token, Span) {
        let begin = self.layout(at);
        let (token, end) = self.at(begin);
        (token, Span::new(begin, end))
    }
    fn at(self, at: usize) -> (Token, usize) {
        let name = |from: usize| {
            let end = self.skip(from, is_of_name);
            (String::from_utf8_lossy(&self.text[from..end]).into_owned(), end)
        };
        match self.byte(at) {
            _ if self.is_end(at) => (Token::End, at),
            b'"' => self.string(at),
            b'$' if self.byte(at + 1) == b'#' => (Token::PositionalCount, at + 2),
            b'$' if self.byte(at + 1).is_ascii_digit() => self.positional(at),
            b'$' if begins_name(self.byte(at + 1)) => {
                let (name, end) = name(at + 1);
                (Token::Variable(name), end)
            }
            b'@' => {
                let begins = begins_name(self.byte(at + 1));
                let (name, end) = if begins { name(at + 1) } else { (String::new(), at + 1) };
                (Token::Map(format!("@{name}")), end)
            }
            byte if byte.is_ascii_digit() => self.number(at),
            byte if begins_name(byte) => {
                let (name, end) = name(at);
                (Token::Name(name), end)
            }
            byte => match SIGNS.into_iter().find(|sign| self.text[at..].starts_with(sign.as_bytes())) {
                Some(sign) => (Token::Sign(sign), at + sign.len()),
                None => (Token::Bad(format!("invalid character '{}'", byte.escape_ascii())), at + 1),
            },
        }
    }
    fn positional(self, at: usize) -> (Token, usize) {
        let end = self.skip(at + 1, |byte| byte.is_ascii_digit());
        let digits = String::from_utf8_lossy(&self.text[at + 1..end]);
        let number = digits.parse().ok().filter(|&number| number > 0 && number <= i64::MAX as usize);
        let bad = || Token::Bad(format!("param ${digits} is out of integer range [1, {}]", i64::MAX));
        (number.map_or_else(bad, Token::Positional), end)
    }
    fn number(self, at: usize) -> (Token, usize) {
        let end = self.skip(at, is_of_name);
        let text = String::from_utf8_lossy(&self.text[at..end]);
        (number(&text).map_or_else(Token::Bad, Token::Int), end)
    }
    fn string(self, at: usize) -> (Token, usize) {
        let (mut at, mut out) = (at + 1, Vec::new());
        while !self.is_end(at) && self.byte(at) != b'"' {
            if self.byte(at) != b'\\' {
                out.push(self.byte(at));
                at += 1;
                continue;
            }
            match self.escape(at + 1) {
                Ok((byte, end)) => {
                    out.push(byte);
                    at = end;
                }
                Err(message) => return (Token::Bad(message), at + 2),
            }
        }
        match self.is_end(at) {
            true => (Token::Bad("unterminated string".to_owned()), at),
            false => (Token::Text(out), at + 1),
        }
    }
    /// The byte that is meant behind a backslash, and where it ends.
    fn escape(self, at: usize) -> Result<(u8, usize), String> {
        let plain = |byte| Ok((byte, at + 1));
        match self.byte(at) {
            b'n' => plain(b'\n'),
            b't' => plain(b'\t'),
            b'r' => plain(b'\r'),
            b'"' => plain(b'"'),
            b'\\' => plain(b'\\'),
            b'x' => self.digits(at + 1, 16, 2),
            b'0'..=b'7' => self.digits(at, 8, 3),
            byte => Err(format!("invalid escape character '\\{}'", byte.escape_ascii())),
        }
    }
    fn digits(self, at: usize, base: u32, most: usize) -> Result<(u8, usize), String> {
        let end = self.skip(at, |byte| char::from(byte).is_digit(base)).min(at + most);
        let text = String::from_utf8_lossy(&self.text[at..end]);
        let value = u32::from_str_radix(&text, base).map_err(|_| "invalid escape sequence".to_owned())?;
        Ok(((value & 0xff) as u8, end))
    }
}

/// Suffixes of numbers: C's, which mean nothing, and times in nanoseconds.
const SUFFIXES: [(&str, u64); 15] = [
    ("u", 1),
    ("l", 1),
    ("ul", 1),
    ("ll", 1),
    ("ull", 1),
    ("lu", 1),
    ("llu", 1),
    ("ns", 1),
    ("us", 1_000),
    ("ms", 1_000_000),
    ("s", 1_000_000_000),
    ("m", 60_000_000_000),
    ("h", 3_600_000_000_000),
    ("d", 86_400_000_000_000),
    ("", 1),
];

/// A number: decimal, `0x…`, octal `0…`, `1e6`, with `_` between digits and a suffix.
pub(crate) fn number(text: &str) -> Result<u64, String> {
    let invalid = || format!("invalid integer: {text}");
    let digits: String = text.chars().filter(|&letter| letter != '_').collect();
    let lower = digits.to_ascii_lowercase();
    let (base, body) = match lower.strip_prefix("0x") {
        Some(rest) => (16, rest),
        None if lower.len() > 1 && lower.starts_with('0') && lower.as_bytes()[1].is_ascii_digit() => {
            (8, &lower[1..])
        }
        None => (10, lower.as_str()),
    };
    let end = body.find(|letter: char| !letter.is_digit(base)).unwrap_or(body.len());
    let (number, mut suffix) = body.split_at(end);
    if number.is_empty() {
        return Err(invalid());
    }
    let too_large = || format!("integer is too large: {text}");
    let mut value = u64::from_str_radix(number, base).map_err(|_| too_large())?;
    if let Some(exponent) = suffix.strip_prefix('e').filter(|_| base == 10) {
        let end = exponent.find(|letter: char| !letter.is_ascii_digit()).unwrap_or(exponent.len());
        let power: u32 = exponent[..end].parse().map_err(|_| invalid())?;
        value = 10u64.checked_pow(power).and_then(|power| power.checked_mul(value)).ok_or_else(too_large)?;
        suffix = &exponent[end..];
    }
    let unit = SUFFIXES.iter().find(|(name, _)| *name == suffix).ok_or_else(invalid)?.1;
    value.checked_mul(unit).ok_or_else(too_large)
}

#[cfg(test)]
mod tests {
    use super::{Lexer, Token, number};

    fn tokens(text: &str) -> Vec<Token> {
        let (lexer, mut at, mut all) = (Lexer::new(text.as_bytes()), 0, Vec::new());
        loop {
            let (token, span) = lexer.token(at);
            at = span.end;
            match token {
                Token::End => return all,
                token => all.push(token),
            }
        }
    }

    #[test]
    fn numbers_are_read_in_all_their_forms() {
        for (text, value) in [
            ("0", 0),
            ("010", 8),
            ("0x1F", 31),
            ("1e3", 1000),
            ("1_000_000", 1_000_000),
            ("5ull", 5),
            ("100ms", 100_000_000),
            ("2d", 172_800_000_000_000),
            ("18446744073709551615", u64::MAX),
        ] {
            assert_eq!(number(text), Ok(value), "{text}");
        }
        for text in ["1x", "0x", "1e", "18446744073709551616", "99d9", "1e30"] {
            assert!(number(text).is_err(), "{text}");
        }
    }

    #[test]
    fn layout_separates_tokens_and_is_none() {
        let expected = vec![Token::Name("a".into()), Token::Sign("->"), Token::Name("b".into())];
        assert_eq!(tokens("a /* x */->// y\n b"), expected);
        assert_eq!(tokens("/* never closed"), []);
    }

    #[test]
    fn strings_have_escapes_and_an_end() {
        assert_eq!(tokens(r#""a\n\x41\101\0""#), [Token::Text(b"a\nAA\0".to_vec())]);
        assert!(matches!(&tokens("\"abc")[..], [Token::Bad(message)] if message == "unterminated string"));
        assert!(matches!(&tokens(r#""\q""#)[0], Token::Bad(_)));
    }

    #[test]
    fn variables_maps_and_parameters_are_told_apart() {
        let expected = [
            Token::Variable("x".into()),
            Token::Positional(12),
            Token::PositionalCount,
            Token::Map("@".into()),
            Token::Map("@ab".into()),
        ];
        assert_eq!(tokens("$x $12 $# @ @ab"), expected);
        assert!(matches!(&tokens("$0")[..], [Token::Bad(_)]));
    }
}
