//! Makes text safe for a terminal, if it comes from elsewhere: names of functions, files and threads,
//! messages.
//!
//! In: text. Out: the same, with control characters and marks of writing direction escaped as JSON does it
//! (`\u001b`). So a line of JSON keeps its meaning. Does not: know formats.

use std::borrow::Cow;

use trapline::ProcessReport;

use super::number::grouped;

/// Whether a terminal acts on a character, or shows what follows in another position.
fn is_active(one: char) -> bool {
    one.is_control()
        || matches!(one, '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

fn escaped(text: &str, stays: impl Fn(char) -> bool) -> Cow<'_, str> {
    let bad = |one: char| is_active(one) && !stays(one);
    if !text.contains(bad) {
        return Cow::Borrowed(text);
    }
    let mut out = String::with_capacity(text.len() + 8);
    for one in text.chars() {
        match one {
            _ if !bad(one) => out.push(one),
            '\n' => out.push_str("\\n"),
            '\t' => out.push_str("\\t"),
            '\r' => out.push_str("\\r"),
            _ => out.push_str(&format!("\\u{:04x}", u32::from(one))),
        }
    }
    Cow::Owned(out)
}

/// Makes text of several lines safe; it may contain tabs.
pub(crate) fn lines(text: &str) -> Cow<'_, str> {
    escaped(text, |one| matches!(one, '\n' | '\t'))
}

/// Makes text for one line safe.
pub(crate) fn name(text: &str) -> Cow<'_, str> {
    escaped(text, |_| false)
}

/// A process at the head of its table: its name, its pid, its container. If it stands for several, their number.
pub(crate) fn process(report: &ProcessReport) -> String {
    let container = report.workload.container.as_ref();
    let container = container.map_or_else(String::new, |one| format!(" in {}", name(&one.shown())));
    let which = match report.processes {
        0 | 1 => report.pid.to_string(),
        many => format!("{} processes that have ended", grouped(many)),
    };
    format!("{} ({which}){container}", name(&report.name))
}

#[cfg(test)]
mod tests {
    use super::{lines, name};

    #[test]
    fn what_a_terminal_would_act_on_is_escaped() {
        assert_eq!(name("a\u{1b}[31mb\nc\td\u{9b}e"), "a\\u001b[31mb\\nc\\td\\u009be");
        assert_eq!(lines("a\u{1b}]0;x\u{7}\n\tb\r\n"), "a\\u001b]0;x\\u0007\n\tb\\r\n");
        assert_eq!(name("a\u{202e}b"), "a\\u202eb");
        let plain = "naïve::функция<T> \u{fffd} \\n";
        assert_eq!((name(plain), lines(plain)), (plain.into(), plain.into()));
    }
}
