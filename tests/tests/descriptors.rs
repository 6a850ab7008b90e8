//! TGT-20: a tracer that may have few descriptors probes or refuses, and leaves nothing behind.

use std::process::{Command, Output};

use trapline_tests::running::Running;
use trapline_tests::tracing::{binary, errors, once, out};
use trapline_tests::{or_skip, text, victims};

/// Runs a verb for a moment, with so many descriptors at most.
fn limited(descriptors: u32, verb: &str, pid: u32) -> Output {
    let script = "ulimit -Sn $1; ulimit -Hn $1; exec \"$0\" $2 -d 0.1 -p $3 leaf";
    let words = [descriptors.to_string(), verb.to_owned(), pid.to_string()];
    Command::new("bash").args(["-c", script]).arg(binary()).args(words).output().expect("bash starts")
}

/// With each limit the tracer comes to its end elsewhere: before it reads, while it patches, while it detaches.
#[test]
fn whatever_the_limit_is_nothing_is_left_behind() {
    let path = or_skip!(victims::plain("counter"));
    let (mut probed, mut refused) = (0, 0);
    for verb in ["count", "lat", "trace"] {
        let mut victim = Running::start(&path, &[]);
        let pid = victim.pid();
        for descriptors in 6..36 {
            let output = limited(descriptors, verb, pid);
            let said = errors(&output);
            match output.status.code() {
                Some(0) => probed += 1,
                // Where files cannot be opened, nothing is found in them.
                Some(1 | 3) => {
                    let is_clear =
                        ["Too many open files", "ulimit -n"].iter().all(|word| said.contains(word));
                    assert!(is_clear, "{verb}, {descriptors}: {said}");
                    refused += 1;
                }
                other => panic!("{verb}, {descriptors}: {other:?}: {said}"),
            }
            let left = out(&once(&["status", "-p", &pid.to_string()]));
            assert!(left.contains("no probes of ours"), "{verb}, {descriptors}: {left}; {said}");
        }
        assert!(victim.run(10)["leaf"] > 0, "it runs on");
        assert_eq!(text::differences(pid), [""; 0], "{verb}");
    }
    assert!(probed > 3 && refused > 3, "the limits are on both sides: {probed} probed, {refused} refused");
}
