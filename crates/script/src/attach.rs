//! Attach points: the text before a block → where the block runs.
//!
//! In: a text such as `i:ms:100` or `uprobe:libc:malloc`. Out: a [`Probe`], or why not: a probe of the kernel is refused
//! by name, with what to use instead. Does not: look for files or functions.

use std::fmt;

use crate::lex::number;
use crate::suggest::nearest;

/// Where a block runs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Probe {
    /// Before everything.
    Begin,
    /// After everything.
    End,
    /// Every so many nanoseconds; the text is what was written.
    Interval(u64, String),
    /// When our own process receives this signal.
    Signal(String),
    /// A measurement of the block itself.
    Bench(String),
    /// A test of the script itself.
    Test(String),
    /// The entry of a function: the file and the function.
    Uprobe(String, String),
    /// The return of a function.
    Uretprobe(String, String),
    /// A USDT probe: file, provider (or empty), name.
    Usdt(String, String, String),
    /// An access to memory: the address or variable, and behind it length and kind of access.
    Watchpoint(String),
}

/// Each sort of probe, with its short names.
const SORTS: [(&str, &[&str]); 22] = [
    ("begin", &[]),
    ("end", &[]),
    ("interval", &["i"]),
    ("self", &[]),
    ("bench", &[]),
    ("test", &[]),
    ("uprobe", &["u"]),
    ("uretprobe", &["ur"]),
    ("usdt", &["U"]),
    ("watchpoint", &["w"]),
    ("asyncwatchpoint", &["aw"]),
    ("kprobe", &["k"]),
    ("kretprobe", &["kr"]),
    ("tracepoint", &["t"]),
    ("rawtracepoint", &["rt"]),
    ("fentry", &["f", "kfunc"]),
    ("fexit", &["fr", "kretfunc"]),
    ("iter", &["it"]),
    ("profile", &["p"]),
    ("software", &["s"]),
    ("hardware", &["h"]),
    ("hwbreakpoint", &[]),
];

/// Why a sort is refused, and what to use instead.
const REFUSED: [(&str, &str); 11] = [
    ("kprobe", "the kernel is not probed; use uprobe on the library function that calls it, such as libc's"),
    ("kretprobe", "the kernel is not probed; use uretprobe on the library function that calls it"),
    ("tracepoint", "the kernel is not probed; use uprobe on libc's function for a system call, or usdt"),
    ("rawtracepoint", "the kernel is not probed; use usdt or uprobe"),
    ("fentry", "the kernel is not probed; use uprobe"),
    ("fexit", "the kernel is not probed; use uretprobe"),
    ("iter", "the kernel is not probed; use interval"),
    (
        "profile",
        "the kernel's clock does not interrupt programs; use interval, or uprobe on what is to be counted",
    ),
    ("software", "the kernel's events are not counted; use interval or uprobe"),
    ("hardware", "the processor's events are not counted; use interval or uprobe"),
    ("hwbreakpoint", "use uprobe, or watchpoint for variables"),
];

/// Units of intervals in nanoseconds.
const UNITS: [(&str, u64); 3] = [("s", 1_000_000_000), ("ms", 1_000_000), ("us", 1_000)];

/// What is wrong with an attach point: a message and perhaps a hint.
pub(crate) type Wrong = (String, Option<String>);

impl Probe {
    /// Reads an attach point; or what is wrong with it, and perhaps a hint.
    pub fn parse(text: &str) -> Result<Self, (String, Option<String>)> {
        let parts = split(text);
        let sort = sort(&parts[0])?;
        let rest = &parts[1..];
        let wrong = |message: &str| Err((message.to_owned(), None));
        let usage = |form: &str| Err((format!("{sort} probe type requires the form {form}"), None));
        match (sort, rest) {
            ("begin" | "end", [_, ..]) => wrong("begin/end probes should not have a target"),
            ("begin", _) => Ok(Self::Begin),
            ("end", _) => Ok(Self::End),
            ("interval", rest) => interval(rest).map(|nanos| Self::Interval(nanos, rest.join(":"))),
            ("self", [signal, name]) if signal == "signal" => match name.as_str() {
                "SIGUSR1" => Ok(Self::Signal(name.clone())),
                _ => Err((format!("{name} is not a supported signal"), Some("use SIGUSR1".to_owned()))),
            },
            ("self", [other, ..]) => Err((format!("{other} is not a supported trigger"), None)),
            ("self", []) => usage("self:signal:SIGUSR1"),
            ("bench", [name]) if !name.is_empty() => Ok(Self::Bench(name.clone())),
            ("bench", _) => wrong("bench probes must have a name"),
            ("test", [name]) if !name.is_empty() => Ok(Self::Test(name.clone())),
            ("test", _) => wrong("test probes must have a name"),
            ("uprobe", [file, line, column])
                if file.contains('@') && is_number(line) && is_number(column) =>
            {
                Ok(Self::Uprobe(file.clone(), format!("{line}:{column}")))
            }
            ("uprobe" | "uretprobe", [file, .., function]) if !file.is_empty() && !function.is_empty() => {
                let (file, function) = (file.clone(), function.clone());
                Ok(if sort == "uprobe" {
                    Self::Uprobe(file, function)
                } else {
                    Self::Uretprobe(file, function)
                })
            }
            ("uprobe" | "uretprobe", _) => usage(&format!("{sort}:FILE:FUNCTION")),
            ("usdt", [all]) if all == "*" => Ok(Self::Usdt(all.clone(), String::new(), all.clone())),
            ("usdt", [file, name]) => Ok(Self::Usdt(file.clone(), String::new(), name.clone())),
            ("usdt", [file, provider, name]) => Ok(Self::Usdt(file.clone(), provider.clone(), name.clone())),
            ("usdt", _) => usage("usdt:FILE:[PROVIDER:]NAME"),
            ("watchpoint" | "asyncwatchpoint", [_, _, ..]) => Ok(Self::Watchpoint(rest.join(":"))),
            ("watchpoint" | "asyncwatchpoint", _) => usage("watchpoint:ADDRESS:LENGTH:MODE"),
            (sort, _) => {
                let reason =
                    REFUSED.iter().find(|(name, _)| *name == sort).map(|(_, reason)| (*reason).to_owned());
                Err((format!("{sort} probes are not supported"), reason))
            }
        }
    }
    /// The file of a probe of programs, which may be a pattern or empty.
    pub fn file(&self) -> Option<&str> {
        match self {
            Self::Uprobe(file, _) | Self::Uretprobe(file, _) | Self::Usdt(file, ..) => Some(file),
            _ => None,
        }
    }
    /// The same probe in another file.
    #[must_use]
    pub fn in_file(&self, other: String) -> Self {
        match self {
            Self::Uprobe(_, function) => Self::Uprobe(other, function.clone()),
            Self::Uretprobe(_, function) => Self::Uretprobe(other, function.clone()),
            Self::Usdt(_, provider, name) => Self::Usdt(other, provider.clone(), name.clone()),
            probe => probe.clone(),
        }
    }
    /// The sort of probe, as `probetype` gives it.
    pub const fn sort(&self) -> &'static str {
        match self {
            Self::Begin | Self::End | Self::Signal(_) => "special",
            Self::Interval(..) => "interval",
            Self::Bench(_) => "benchmark",
            Self::Test(_) => "test",
            Self::Uprobe(..) => "uprobe",
            Self::Uretprobe(..) => "uretprobe",
            Self::Usdt(..) => "usdt",
            Self::Watchpoint(_) => "watchpoint",
        }
    }
    /// Sorts of probes of programs.
    pub(crate) const SORTS_OF_PROGRAMS: [&str; 4] = ["uprobe", "uretprobe", "usdt", "watchpoint"];
    /// Whether a program is probed.
    pub const fn is_of_program(&self) -> bool {
        matches!(self, Self::Uprobe(..) | Self::Uretprobe(..) | Self::Usdt(..) | Self::Watchpoint(_))
    }
}

impl fmt::Display for Probe {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Begin => out.write_str("begin"),
            Self::End => out.write_str("end"),
            Self::Interval(_, text) => write!(out, "interval:{text}"),
            Self::Signal(name) => write!(out, "self:signal:{name}"),
            Self::Bench(name) => write!(out, "bench:{name}"),
            Self::Test(name) => write!(out, "test:{name}"),
            Self::Uprobe(file, function) => write!(out, "uprobe:{file}:{function}"),
            Self::Uretprobe(file, function) => write!(out, "uretprobe:{file}:{function}"),
            Self::Usdt(file, provider, name) if provider.is_empty() => write!(out, "usdt:{file}:{name}"),
            Self::Usdt(file, provider, name) => write!(out, "usdt:{file}:{provider}:{name}"),
            Self::Watchpoint(place) => write!(out, "watchpoint:{place}"),
        }
    }
}

/// The parts between colons; quotes hold a part together, and a letter behind a backslash in them is itself.
fn split(text: &str) -> Vec<String> {
    let (mut parts, mut quoted) = (vec![String::new()], false);
    let mut letters = text.chars();
    while let Some(letter) = letters.next() {
        match letter {
            '"' => quoted = !quoted,
            '\\' if quoted => parts.last_mut().expect("there is a part").extend(letters.next()),
            ':' if !quoted => parts.push(String::new()),
            letter => parts.last_mut().expect("there is a part").push(letter),
        }
    }
    parts
}

/// Whether a text is a decimal number.
fn is_number(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit())
}

/// The full name of a sort.
fn sort(name: &str) -> Result<&'static str, Wrong> {
    let lower = name.to_ascii_lowercase();
    let short = |shorts: &[&str]| shorts.contains(&name);
    let found = SORTS.iter().find(|(full, shorts)| *full == lower || short(shorts));
    found.map(|(full, _)| *full).ok_or_else(|| {
        let near = nearest(&lower, SORTS.iter().map(|(full, _)| *full));
        (format!("Invalid probe type: {name}"), near.map(|near| format!("Did you mean {near}?")))
    })
}

/// `s:1`, `ms:100`, `hz:5`, `1s`, `1000000`.
fn interval(rest: &[String]) -> Result<u64, Wrong> {
    let positive = || ("interval frequency should be a positive integer".to_owned(), None);
    let count = |text: &str| match number(text) {
        Ok(0) => Err(positive()),
        Ok(value) => Ok(value),
        Err(_) => Err(("interval probe must have an integer frequency".to_owned(), None)),
    };
    match rest {
        [] => Err(("interval probe must have unit of time".to_owned(), None)),
        [time] => count(time),
        [unit, rate] if unit == "hz" => Ok((1_000_000_000 / count(rate)?).max(1)),
        [unit, times] => {
            let (_, nanos) = UNITS
                .iter()
                .find(|(name, _)| name == unit)
                .ok_or_else(|| (format!("{unit} is not an accepted unit of time"), None))?;
            count(times)?.checked_mul(*nanos).ok_or_else(positive)
        }
        _ => Err(("interval probe must have an integer frequency".to_owned(), None)),
    }
}

#[cfg(test)]
mod tests {
    use super::Probe;

    #[test]
    fn intervals_are_read_in_all_their_forms() {
        for (text, nanos) in [
            ("interval:s:1", 1_000_000_000),
            ("i:ms:20", 20_000_000),
            ("i:1us", 1000),
            ("i:hz:4", 250_000_000),
        ] {
            let Ok(Probe::Interval(found, _)) = Probe::parse(text) else { panic!("{text}") };
            assert_eq!(found, nanos, "{text}");
        }
        for text in ["interval", "interval:0", "i:weeks:1", "i:s:x", "i:s:1:2"] {
            assert!(Probe::parse(text).is_err(), "{text}");
        }
    }

    #[test]
    fn probes_of_the_kernel_are_refused_with_what_to_use() {
        for text in ["k:f", "kprobe:f", "t:a:b", "fexit:x", "profile:hz:99", "h:cycles:1", "iter:task"] {
            let (message, hint) = Probe::parse(text).expect_err(text);
            assert!(message.ends_with("probes are not supported"), "{message}");
            assert!(hint.is_some_and(|hint| hint.contains("use")), "{text}");
        }
        let (_, hint) = Probe::parse("uporbe:a:b").expect_err("a typing error");
        assert_eq!(hint.as_deref(), Some("Did you mean uprobe?"));
    }

    #[test]
    fn probes_of_programs_name_files_and_functions() {
        assert_eq!(Probe::parse("BEGIN"), Ok(Probe::Begin));
        assert_eq!(Probe::parse("u:/bin/a:f"), Ok(Probe::Uprobe("/bin/a".into(), "f".into())));
        let quoted = Probe::parse("uretprobe:\"a:b\":f").map(|probe| probe.to_string());
        assert_eq!(quoted.as_deref(), Ok("uretprobe:a:b:f"));
        let inner = Probe::parse(r#"usdt:/bin/a:p:"\"n:1\"""#);
        assert_eq!(inner, Ok(Probe::Usdt("/bin/a".into(), "p".into(), "\"n:1\"".into())));
        let line = Probe::parse("u:/bin/a@src/b.c:12:5");
        assert_eq!(line, Ok(Probe::Uprobe("/bin/a@src/b.c".into(), "12:5".into())));
        assert!(Probe::parse("uprobe:f").is_err());
        for text in ["w:0x10:8:rw", "asyncwatchpoint:0x10:8:rw"] {
            assert_eq!(Probe::parse(text), Ok(Probe::Watchpoint("0x10:8:rw".into())), "{text}");
        }
        assert!(Probe::parse("watchpoint:0x10").is_err());
    }
}
