//! What two bare runs and a traced one say about each other.
//!
//! In: three runs. Out: a verdict. Does not: run anything.
//!
//! Standard output, standard error and exit status are compared one by one, each at the strictest [`Measure`] by which the two bare runs
//! agree. What the command itself says on standard error, in lines that begin with `trapline: `, is taken out and kept as its reason.

use super::sandbox::Ran;

/// How closely a text can be compared, judged by two bare runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Measure {
    /// Byte by byte.
    Exact,
    /// With each number, whatever its base, counted as the same.
    WithoutNumbers,
    /// Line by line in any order, without numbers: several threads or processes print.
    Lines,
    /// Not at all: two bare runs share nothing that could be compared.
    Nothing,
}

/// What came of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Verdict {
    /// Nothing differs; the texts were compared this closely.
    Same(Measure),
    /// Nothing differs, but the command could not probe: its reason.
    Refused(String),
    /// What differs, and how.
    Differs(String),
}

/// Exit status of a command that found no function of that name; it then starts no program.
const NOTHING_TO_PROBE: i32 = 3;

/// Judges a traced run.
pub(super) fn judge(bare: [&Ran; 2], traced: &Ran) -> Verdict {
    let (own, errors) = split(&traced.errors);
    if traced.timed_out {
        return Verdict::Differs(format!("it did not end; {}", messages(&own)));
    }
    let refused = !own.is_empty();
    if traced.status == NOTHING_TO_PROBE && own.iter().any(|line| line.contains("nothing to probe")) {
        return Verdict::Refused(messages(&own));
    }
    let steady = bare[0].status == bare[1].status;
    if steady && traced.status != bare[0].status {
        return Verdict::Differs(format!(
            "status {} and not {}; {}",
            traced.status,
            bare[0].status,
            messages(&own)
        ));
    }
    let mut closest = Measure::Exact;
    let texts = [
        ("standard output", &bare[0].output, &bare[1].output, &traced.output),
        ("standard error", &bare[0].errors, &bare[1].errors, &errors),
    ];
    for (name, first, second, traced) in texts {
        let mut measure = measure(first, second);
        // Processes of a pipeline print in either order, and two bare runs may show the same one.
        if !equal(measure, first, traced) && sorted(first.to_vec()) == sorted(traced.to_vec()) {
            measure = Measure::Lines;
        }
        if !equal(measure, first, traced) {
            return Verdict::Differs(format!("{name}: {}; {}", difference(first, traced), messages(&own)));
        }
        closest = closest.max(measure);
    }
    if refused { Verdict::Refused(messages(&own)) } else { Verdict::Same(closest) }
}

/// The strictest measure by which they are equal.
pub(super) fn measure(first: &[u8], second: &[u8]) -> Measure {
    let order = [Measure::Exact, Measure::WithoutNumbers, Measure::Lines];
    order.into_iter().find(|&measure| equal(measure, first, second)).unwrap_or(Measure::Nothing)
}

fn equal(measure: Measure, first: &[u8], second: &[u8]) -> bool {
    match measure {
        Measure::Exact => first == second,
        Measure::WithoutNumbers => without_numbers(first) == without_numbers(second),
        Measure::Lines => lines(first) == lines(second),
        Measure::Nothing => true,
    }
}

fn lines(text: &[u8]) -> Vec<Vec<u8>> {
    sorted(without_numbers(text))
}

fn sorted(text: Vec<u8>) -> Vec<Vec<u8>> {
    let mut lines: Vec<_> = text.split(|&byte| byte == b'\n').map(<[u8]>::to_vec).collect();
    lines.sort();
    lines
}

/// Each run of letters and digits that has a digit becomes one mark.
fn without_numbers(text: &[u8]) -> Vec<u8> {
    let mut result = Vec::with_capacity(text.len());
    for word in text.chunk_by(|a, b| a.is_ascii_alphanumeric() == b.is_ascii_alphanumeric()) {
        if word.iter().any(u8::is_ascii_digit) {
            result.push(b'#');
        } else {
            result.extend_from_slice(word);
        }
    }
    result
}

/// The lines of the command's own, and the rest.
fn split(errors: &[u8]) -> (Vec<String>, Vec<u8>) {
    let mut own = Vec::new();
    let mut rest = Vec::with_capacity(errors.len());
    for line in errors.split_inclusive(|&byte| byte == b'\n') {
        if line.starts_with(b"trapline: ") {
            own.push(String::from_utf8_lossy(line).trim_end().to_string());
        } else {
            rest.extend_from_slice(line);
        }
    }
    (own, rest)
}

fn messages(own: &[String]) -> String {
    if own.is_empty() { "trapline printed nothing".to_string() } else { own.join(" / ") }
}

/// The first lines that differ.
fn difference(bare: &[u8], traced: &[u8]) -> String {
    let mut pairs = (bare.split(|&byte| byte == b'\n'), traced.split(|&byte| byte == b'\n'));
    for number in 1.. {
        let (bare, traced) = (pairs.0.next(), pairs.1.next());
        if bare != traced || bare.is_none() {
            let show = |line: Option<&[u8]>| match line {
                Some(line) => format!("`{}`", String::from_utf8_lossy(&line[..line.len().min(120)])),
                None => "nothing".to_string(),
            };
            return format!("line {number} is {} and not {}", show(traced), show(bare));
        }
    }
    String::new()
}

#[cfg(test)]
mod tests {
    use super::{Measure, Verdict, judge, measure};
    use crate::world::sandbox::Ran;

    fn ran(status: i32, output: &str, errors: &str) -> Ran {
        Ran { status, output: output.into(), errors: errors.into(), ..Ran::default() }
    }

    #[test]
    fn texts_are_compared_as_closely_as_two_bare_runs_agree() {
        assert_eq!(measure(b"a 1\nb", b"a 1\nb"), Measure::Exact);
        assert_eq!(measure(b"pid 17 at 0x7f12", b"pid 18 at 0x8e22ab"), Measure::WithoutNumbers);
        assert_eq!(measure(b"a 1\nb 2\n", b"b 3\na 4\n"), Measure::Lines);
        assert_eq!(measure(b"abc", b"xyz"), Measure::Nothing);
    }

    #[test]
    fn a_difference_in_any_of_the_three_is_one() {
        let bare = ran(0, "hello\n", "");
        let same = |traced: &Ran| judge([&bare, &bare], traced);
        assert_eq!(same(&bare), Verdict::Same(Measure::Exact));
        for (traced, what) in [
            (ran(139, "hello\n", ""), "status 139 and not 0"),
            (ran(0, "hell\n", ""), "standard output: line 1 is `hell` and not `hello`"),
            (ran(0, "hello\n", "oops\n"), "standard error: line 1 is `oops` and not ``"),
            (Ran { timed_out: true, ..bare.clone() }, "it did not end"),
        ] {
            let Verdict::Differs(why) = same(&traced) else { panic!("{traced:?}") };
            assert!(why.starts_with(what), "{why}");
        }
    }

    #[test]
    fn the_same_lines_in_another_order_are_no_difference() {
        let (one, other) = ("troff 1.22\ngrops 1.22\n", "grops 1.22\ntroff 1.22\n");
        let bare = ran(0, one, one);
        let judged = |output: &str, errors: &str| judge([&bare, &bare], &ran(0, output, errors));
        assert_eq!(judged(other, one), Verdict::Same(Measure::Lines));
        assert_eq!(judged(one, other), Verdict::Same(Measure::Lines));
        // Another number, a line more, and a line twice.
        for output in
            ["grops 1.23\ntroff 1.22\n", "grops 1.22\ntroff 1.22\n\n", "grops 1.22\ntroff 1.22\ntroff 1.22\n"]
        {
            assert!(matches!(judged(output, one), Verdict::Differs(_)), "{output}");
        }
    }

    #[test]
    fn what_differs_between_bare_runs_is_not_held_against_a_traced_one() {
        let (first, second) = (ran(0, "pid 5\n", ""), ran(1, "pid 6\n", ""));
        assert_eq!(judge([&first, &second], &ran(7, "pid 9\n", "")), Verdict::Same(Measure::WithoutNumbers));
        assert!(matches!(judge([&first, &second], &ran(7, "pid\n", "")), Verdict::Differs(_)));
    }

    #[test]
    fn a_run_that_could_not_be_probed_is_refused_with_the_reason() {
        let bare = ran(3, "x", "warning\n");
        let traced = ran(3, "x", "trapline: no room\nwarning\n");
        assert_eq!(judge([&bare, &bare], &traced), Verdict::Refused("trapline: no room".into()));
    }

    #[test]
    fn a_program_without_functions_is_refused_and_never_runs() {
        let (bare, messages) = (ran(0, "x", ""), "trapline: nothing to probe: no function *");
        let judged = |traced: &Ran| judge([&bare, &bare], traced);
        assert_eq!(judged(&ran(3, "", &format!("{messages}\n"))), Verdict::Refused(messages.into()));
        assert!(matches!(judged(&ran(3, "", "trapline: no room\n")), Verdict::Differs(_)));
    }
}
