//! Room near a program's code: what earlier sessions left mapped makes room for who comes later.

use trapline_tests::running::Running;
use trapline_tests::{or_skip, tracing, victims};

/// Far more than there is room for.
const TIMES: usize = 30;

#[test]
fn who_comes_after_many_finds_room() {
    let path = or_skip!(victims::plain("crowded"));
    let mut victim = Running::start(&path, &[]);
    let pid = victim.pid().to_string();
    let told = victim.run(100);
    for nth in 0..TIMES {
        // The first two look at what they would place before they place it; the third does no more than that.
        let verb = ["lat", "count", "list"][nth % 3];
        let options: &[&str] = match verb {
            "lat" => &["-q", "-d", "0.01", "-F"],
            "count" => &["-q", "-d", "0.01"],
            _ => &[],
        };
        let words = [&[verb, "-p", &pid], options, &["crowded"]].concat();
        let output = tracing::once(&words);
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{verb}, the {nth}th: {}: {said}", output.status);
        if verb == "list" {
            assert!(said.contains("1 place: 1 jump"), "the {nth}th: {said}");
        }
    }
    assert_eq!(victim.run(100), told);
}
