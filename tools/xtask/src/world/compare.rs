//! What two bare runs and a traced one say about each other.
//!
//! In: three runs. Out: a verdict. Does not: run anything.
//!
//! Standard output, standard error and exit status are compared one by one, each at the strictest [`Measure`] by which
//! the two bare runs agree. What the command itself says on standard error, in lines that begin with `trapline: `, is
//! taken out and kept as its reason.
//!
//! A program that prints its own stack may show return trampolines as frames (docs/guide/returns.md). So a frame
//! without a name is taken out where the bare run has none like it ([`without_trampolines`]).

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
        let traced = &without_trampolines(first, traced);
        if !equal(measure, first, traced) {
            let why = difference(measure, first, traced);
            return Verdict::Differs(format!("{name}: {why}; {}", messages(&own)));
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

/// The traced text without the frames that return trampolines add to a printed stack.
///
/// Such a line has the form `#7  0x7fffbb989000 in ???`, and the bare text has another frame in its place. Frames are
/// compared by the offset within their page, which is the same in each run.
fn without_trampolines(bare: &[u8], traced: &[u8]) -> Vec<u8> {
    let mut frames = bare.split(|&byte| byte == b'\n').filter_map(frame).peekable();
    let mut rest = Vec::with_capacity(traced.len());
    for line in traced.split_inclusive(|&byte| byte == b'\n') {
        let frame = frame(line);
        let is_new = frame.is_some()
            && frames.peek().is_some()
            && frames.next_if(|bare| Some(*bare) == frame).is_none();
        if !(is_new && line.trim_ascii_end().ends_with(b" in ???")) {
            rest.extend_from_slice(line);
        }
    }
    rest
}

/// The last three digits of a frame's address; `None` if the line is no frame.
fn frame(line: &[u8]) -> Option<[u8; 3]> {
    let mut words = line.strip_prefix(b"#")?.split(|&byte| byte == b' ').filter(|word| !word.is_empty());
    words.next()?.iter().all(u8::is_ascii_digit).then_some(())?;
    words.next()?.strip_prefix(b"0x")?.last_chunk().copied()
}

/// The first lines that differ by this measure; by their bytes if they differ as a whole alone. Lines that the other
/// text has elsewhere are shown only if there are no others.
fn difference(measure: Measure, bare: &[u8], traced: &[u8]) -> String {
    let by_line = if measure == Measure::Lines { Measure::Exact } else { measure };
    let split =
        |text| <[u8]>::split(text, |&byte: &u8| byte == b'\n').map(Some).chain(std::iter::repeat(None));
    let same = |bare: Option<&[u8]>, traced: Option<&[u8]>| {
        bare.zip(traced).is_some_and(|(bare, traced)| equal(by_line, bare, traced))
    };
    let pairs = (1..).zip(split(bare).zip(split(traced))).take_while(|(_, pair)| *pair != (None, None));
    let differing: Vec<_> = pairs.filter(|(_, (bare, traced))| !same(*bare, *traced)).collect();
    let elsewhere = |line: Option<&[u8]>, text| {
        line.is_none() || split(text).map_while(|line| line).any(|other| same(Some(other), line))
    };
    let show = |line: Option<&[u8]>| match line {
        Some(line) => format!("`{}`", String::from_utf8_lossy(&line[..line.len().min(120)])),
        None => "nothing".to_string(),
    };
    let mut alone = differing
        .iter()
        .filter(|(_, (of_bare, of_traced))| !(elsewhere(*of_bare, traced) && elsewhere(*of_traced, bare)));
    let shown = alone.next().or(differing.first());
    shown.map_or_else(String::new, |(number, (bare, traced))| {
        format!("line {number} is {} and not {}", show(*traced), show(*bare))
    })
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
    fn trampolines_in_a_printed_stack_are_no_difference() {
        let stack = |frames: &[&str]| {
            let line = |(n, frame): (usize, &&str)| format!("#{n}  0x7f{frame}\n");
            let lines: String = frames.iter().enumerate().map(line).collect();
            ran(2, "", &format!("Backtrace:\n{lines}end\n"))
        };
        let bare = [&stack(&["18c2 in ???", "2249 in main"]), &stack(&["58c2 in ???", "9249 in main"])];
        let judged = |frames: &[&str]| judge(bare, &stack(frames));
        let same = Verdict::Same(Measure::WithoutNumbers);
        assert_eq!(judged(&["a8c2 in ???", "d249 in main"]), same);
        assert_eq!(judged(&["a8c2 in ???", "9000 in ???", "d249 in main"]), same);
        // One that has a name, one that is missing, one behind the last, and one in place of another.
        for frames in [
            &["a8c2 in ???", "9000 in f", "d249 in main"][..],
            &["a8c2 in ???"],
            &["a8c2 in ???", "d249 in main", "9000 in ???"],
            &["9000 in ???", "d249 in main"],
        ] {
            assert!(matches!(judged(frames), Verdict::Differs(_)), "{frames:?}");
        }
    }

    #[test]
    fn a_difference_is_shown_by_the_measure_that_found_it() {
        let (bare, again) = (ran(0, "pid 5\nhello\n", ""), ran(0, "pid 6\nhello\n", ""));
        let Verdict::Differs(why) = judge([&bare, &again], &ran(0, "pid 7\nhell\n", "")) else { panic!() };
        assert!(why.starts_with("standard output: line 2 is `hell` and not `hello`"), "{why}");
    }

    #[test]
    fn a_line_that_only_one_of_them_has_is_shown_before_a_line_in_another_place() {
        let bare = ran(1, "", "cannot run\n\nerror\n");
        let traced = ran(1, "", "\ncannot run\n\ngiving up\nerror\n");
        let Verdict::Differs(why) = judge([&bare, &bare], &traced) else { panic!() };
        assert!(why.starts_with("standard error: line 4 is `giving up` and not ``"), "{why}");
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
