//! Histograms of `lat`, with percentiles and bcc's closing line.

use trapline::{ProcessReport, Times};
use trapline_order::Order as _;

use super::histogram;
use super::number::{duration, grouped};
use super::visible;
use crate::args::command::HistogramStyle;

/// Renders one process: one histogram for all functions together, or one for each.
pub(crate) fn text(report: &ProcessReport, per_function: bool, shape: &HistogramStyle) -> String {
    let mut out = format!("{}, {:.2} s\n", visible::process(report), report.seconds);
    if per_function {
        let mut times: Vec<&Times> = report.times.iter().collect();
        times.order_by_key(|times| {
            (std::cmp::Reverse(times.calls), times.site.clone().map(|site| site.label.clone()))
        });
        let (called, quiet): (Vec<&Times>, Vec<&Times>) =
            times.into_iter().partition(|times| times.calls > 0);
        for times in called {
            let label = times.site.as_ref().map_or("all".into(), |site| visible::name(&site.label));
            out.push_str(&format!("\nFunction = {label}\n{}", body(times, shape)));
        }
        let quiet = report.quiet + quiet.len() as u64;
        if quiet > 0 {
            out.push_str(&format!("\n{} without a call that ended\n", grouped(quiet)));
        }
    } else {
        out.push_str(&body(&Times::sum(&report.times), shape));
    }
    out
}

fn body(times: &Times, shape: &HistogramStyle) -> String {
    let histogram = &times.histogram;
    let calls = times.calls;
    if calls == 0 {
        return format!("no call ended{}\n{}", at_least(shape), asides(times));
    }
    let word = shape.unit.word();
    let unit = |ns: u64| ns / shape.unit.nanos();
    let percentiles: Vec<String> = [("p50", 0.5), ("p90", 0.9), ("p99", 0.99), ("p99.9", 0.999)]
        .iter()
        .map(|&(name, share)| format!("{name} = {}", duration(times.percentile(share))))
        .collect();
    format!(
        "{word}\n{}{}, max = {}\navg = {} {word}, total = {} {word}, count = {calls}{}\n{}",
        histogram::draw(histogram, shape),
        percentiles.join(", "),
        duration(times.max_ns),
        unit(times.total_ns / calls),
        unit(times.total_ns),
        at_least(shape),
        asides(times)
    )
}

fn at_least(shape: &HistogramStyle) -> String {
    if shape.min_ns == 0 { String::new() } else { format!(" (of at least {})", duration(shape.min_ns)) }
}

/// Calls that are no pair of a beginning and an end. An end is found alone in three cases: the call was under way at the
/// attach, it came in by a jump from another function, or its beginning found no room for its time.
fn asides(times: &Times) -> String {
    let all = [
        (times.tail_exits, "ended by a tail call, and may have taken longer"),
        (times.in_flight, "had not returned"),
        (times.unpaired, "ended, and were not seen to begin"),
        (times.unreturned, "never returned (longjmp, exception, coroutine)"),
        (times.clamped, "with a clock that ran backwards, counted as 0"),
    ];
    let notes: Vec<String> =
        all.iter().filter(|(n, _)| *n > 0).map(|(n, what)| format!("{} {what}", grouped(*n))).collect();
    if notes.is_empty() { String::new() } else { format!("calls: {}\n", notes.join(", ")) }
}

#[cfg(test)]
mod tests {
    use super::text;
    use crate::args::command::HistogramStyle;
    use crate::report::samples::timed;

    #[test]
    fn a_histogram_closes_as_bcc_does() {
        let drawn = text(&timed(), true, &HistogramStyle::default());
        let bar = |n: usize| format!("{}{}", "@".repeat(n), " ".repeat(52 - n));
        let expected = format!(
            "victim (42), 2.00 s

Function = work
nsecs
[64, 128)                     2 |{}|
[128, 256)                    0 |{}|
[256, 512)                    1 |{}|
p50 = 102 ns, p90 = 310 ns, p99 = 310 ns, p99.9 = 310 ns, max = 310 ns
avg = 170 nsecs, total = 511 nsecs, count = 3
calls: 1 ended by a tail call, and may have taken longer, 1 had not returned
",
            bar(52),
            bar(0),
            bar(26)
        );
        assert_eq!(drawn, expected);
    }

    #[test]
    fn calls_that_are_no_pairs_are_listed_apart() {
        let mut report = timed();
        let times = &mut report.times[0];
        (times.tail_exits, times.in_flight, times.unpaired, times.unreturned, times.clamped) =
            (1, 2, 3, 4, 5000);
        let expected = "\ncalls: 1 ended by a tail call, and may have taken longer, 2 had not returned, 3 ended, and were not seen to begin, \
                      4 never returned (longjmp, exception, coroutine), 5,000 with a clock that ran backwards, counted as 0\n";
        let drawn = text(&report, true, &HistogramStyle::default());
        assert!(drawn.ends_with(expected), "{drawn}");
        report.times[0].calls = 0;
        assert_eq!(
            text(&report, true, &HistogramStyle::default()),
            "victim (42), 2.00 s\n\n1 without a call that ended\n"
        );
        assert!(
            text(&report, false, &HistogramStyle::default())
                .starts_with("victim (42), 2.00 s\nno call ended\ncalls: 1 ended")
        );
    }

    #[test]
    fn what_was_left_out_is_reported() {
        let drawn = text(&timed(), false, &HistogramStyle { min_ns: 200, ..HistogramStyle::default() });
        assert!(drawn.contains("count = 3 (of at least 200 ns)"), "{drawn}");
    }
}
