//! Output to the letter: histograms, series, JSON.

mod common;

use common::{output, run_with};
use trapline_script::{Options, Style};

fn json(script: &str) -> String {
    let style = Style { json: true, ..Style::default() };
    run_with(script, &Options::default(), style).output
}

#[test]
fn histograms_have_bars() {
    let script = "begin { @ = hist(0); @ = hist(1); @ = hist(5); @ = hist(6); @ = hist(2000); }";
    let expected = "\
@:
[0]                    1 |@@@@@@@@@@@@@@@@@@@@@@@@@@                          |
[1]                    1 |@@@@@@@@@@@@@@@@@@@@@@@@@@                          |
[2, 4)                 0 |                                                    |
[4, 8)                 2 |@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@|
[8, 16)                0 |                                                    |
[16, 32)               0 |                                                    |
[32, 64)               0 |                                                    |
[64, 128)              0 |                                                    |
[128, 256)             0 |                                                    |
[256, 512)             0 |                                                    |
[512, 1K)              0 |                                                    |
[1K, 2K)               1 |@@@@@@@@@@@@@@@@@@@@@@@@@@                          |";
    assert_eq!(output(script), expected);
}

#[test]
fn linear_histograms_have_open_ends() {
    let script = "begin { @h[\"k\"] = lhist(-1, 0, 20, 10); @h[\"k\"] = lhist(12, 0, 20, 10); @h[\"k\"] = lhist(99, 0, 20, 10); }";
    let bar = "@".repeat(52);
    let expected = format!(
        "@h[k]:\n(..., 0)               1 |{bar}|\n[0, 10)                0 |{:52}|\n[10, 20)               1 |{bar}|\n[20, ...)              1 |{bar}|",
        ""
    );
    assert_eq!(output(script), expected);
}

#[test]
fn series_are_drawn_by_time() {
    let script = "config = { unstable_tseries = enable } begin { @clock = (uint64)100ms; @t = tseries(2, 100ms, 5); @clock = (uint64)300ms; \
                  @t = tseries(8, 100ms, 5); clear(@clock); }";
    let expected = "\
@t:
             2                                                   8
hh:mm:ss.ms  |___________________________________________________|
00:00:00.100 *                                                   | 2
00:00:00.200 |                                                   | -
00:00:00.300 |                                                   * 8
             v___________________________________________________v
             2                                                   8";
    assert_eq!(output(script), expected);
}

#[test]
fn maps_are_written_by_name_then_by_value_or_key() {
    let script =
        "begin { @b[1] = 5; @b[2] = 3; @a[\"y\"] = \"1\"; @a[\"x\"] = \"2\"; @ = 1; @c[2, \"a\"] = (1, 2); }";
    assert_eq!(output(script), "@: 1\n@a[x]: 2\n@a[y]: 1\n@b[2]: 3\n@b[1]: 5\n@c[2, a]: (1, 2)");
}

#[test]
fn json_has_one_object_a_line() {
    let cases = [
        ("print((1, \"a\\\"\\n\", true));", "{\"type\": \"value\", \"data\": [1,\"a\\\"\\n\",true]}\n"),
        ("printf(\"%d\\n\", 5);", "{\"type\": \"printf\", \"data\": \"5\\n\"}\n"),
        ("@a[1, \"x y\"] = 2;", "{\"type\": \"map\", \"data\": {\"@a\": {\"1,xy\": 2}}}\n"),
        ("@ = 18446744073709551615;", "{\"type\": \"map\", \"data\": {\"@\": \"18446744073709551615\"}}\n"),
        ("@ = (int16*)0x32;", "{\"type\": \"map\", \"data\": {\"@\": 50}}\n"),
        (
            "@ = stats(3);",
            "{\"type\": \"stats\", \"data\": {\"@\": {\"count\": 1, \"average\": 3, \"total\": 3}}}\n",
        ),
        (
            "@ = hist(-1); @ = hist(0);",
            "{\"type\": \"hist\", \"data\": {\"@\": [{\"max\": -1, \"count\": 1},{\"min\": 0, \"max\": 0, \"count\": 1}]}}\n",
        ),
        (
            "@ = lhist(50, 0, 10, 5);",
            "{\"type\": \"hist\", \"data\": {\"@\": [{\"min\": 10, \"count\": 1}]}}\n",
        ),
        ("@h = hist(1); zero(@h);", "{\"type\": \"hist\", \"data\": {\"@h\": []}}\n"),
        ("@r = (x=1, y=(2, 3));", "{\"type\": \"map\", \"data\": {\"@r\": {\"x\": 1, \"y\": [2,3]}}}\n"),
        ("@e[1] = 1; clear(@e);", ""),
        (
            "warnf(\"w%d\", 1);",
            "{\"type\": \"warnf\", \"msg\": \"w1\", \"filename\": \"stdin\", \"line\": 1, \"col\": 9}\n",
        ),
    ];
    for (script, expected) in cases {
        assert_eq!(json(&format!("begin {{ {script} }}")), expected, "{script}");
    }
}

#[test]
fn messages_of_the_script_have_their_places() {
    let script = "macro bad() { errorf(\"no %s\", \"good\"); } begin { bad(); warnf(\"w\\n\"); }";
    let ran = run_with(script, &Options::default(), Style::default());
    let expected = format!(
        "stdin:1:15-38: ERROR: no good\nstdin:1:50-55: ERROR: expanded from\n{script}\n{}{}\nstdin:1:57-69: WARNING: w\n",
        " ".repeat(49),
        "~".repeat(5)
    );
    assert_eq!(ran.errors, expected);
    let style = Style { no_warnings: true, ..Style::default() };
    assert!(!run_with(script, &Options::default(), style).errors.contains("WARNING"));
}

#[test]
fn a_text_that_was_cut_off_says_so() {
    let options = Options {
        environment: vec![("BPFTRACE_MAX_STRLEN".to_owned(), "4".to_owned())],
        ..Options::default()
    };
    let ran = run_with("begin { print(str(\"abcdef\")); print(str(\"abc\")); }", &options, Style::default());
    assert_eq!(ran.output.trim_end(), "abcd..\nabc");
}
