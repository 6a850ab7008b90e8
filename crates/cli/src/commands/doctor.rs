//! `doctor`: what this machine permits, and how to get more.
//!
//! In: the findings, each of which is a try. Out: a line for each, or JSON lines; exit status 1 if nothing can be
//! traced. Does not: try anything by itself.

use serde::Serialize;
use trapline::system::permitted::{Finding, Verdict, findings};

use super::{Failure, Outcome};
use crate::args::sink::Sink;
use crate::output::Output;
use crate::report::json::{SCHEMA, line};

#[derive(Serialize)]
struct Row<'a> {
    r#type: &'static str,
    schema: u32,
    name: &'a str,
    verdict: &'static str,
    needed: bool,
    detail: &'a str,
    remedy: Option<&'a str>,
}

/// Runs `doctor`.
pub(crate) fn run(sink: &Sink) -> Result<Outcome, Failure> {
    let findings = findings();
    let mut output = Output::open(sink, false)?;
    if sink.json {
        findings.iter().try_for_each(|finding| output.print(&json(finding)))?;
    } else {
        output.print(&text(&findings))?;
        if !sink.quiet {
            output.print(&closing(&findings))?;
        }
    }
    Ok(outcome(&findings))
}

/// Failed if nothing can be traced.
fn outcome(findings: &[Finding]) -> Outcome {
    if findings.iter().any(Finding::prevents) { Outcome::Failed } else { Outcome::Done }
}

fn json(finding: &Finding) -> String {
    line(&Row {
        r#type: "doctor",
        schema: SCHEMA,
        name: finding.name,
        verdict: match finding.verdict {
            Verdict::Yes => "yes",
            Verdict::No => "no",
            Verdict::Fact => "fact",
        },
        needed: finding.needed,
        detail: &finding.detail,
        remedy: finding.remedy.as_deref(),
    })
}

/// A line for each finding; what would help stands below it.
pub(super) fn text(findings: &[Finding]) -> String {
    let widest = findings.iter().map(|finding| finding.name.len()).max().unwrap_or(0);
    let mut text = String::new();
    for finding in findings {
        let mark = match finding.verdict {
            Verdict::Yes => "ok",
            Verdict::No => "NO",
            Verdict::Fact => "",
        };
        text.push_str(&format!("{mark:2}  {:widest$}  {}\n", finding.name, finding.detail));
        if let Some(remedy) = &finding.remedy {
            text.push_str(&format!("{:indent$}{remedy}\n", "", indent = widest + 6));
        }
    }
    text
}

/// What all of it means.
fn closing(findings: &[Finding]) -> String {
    let prevents: Vec<&str> =
        findings.iter().filter(|finding| finding.prevents()).map(|finding| finding.name).collect();
    let no = |name: &str| findings.iter().any(|one| one.name == name && one.verdict == Verdict::No);
    match prevents[..] {
        [] if no("attach") => "\nStarted commands can be traced here, running processes cannot.\n".to_owned(),
        [] => "\nPrograms can be traced here.\n".to_owned(),
        _ => format!("\nNothing can be traced here, because of: {}.\n", prevents.join(", ")),
    }
}

#[cfg(test)]
mod tests {
    use super::{Finding, Outcome, Verdict, closing, json, outcome, text};

    fn finding(name: &'static str, verdict: Verdict, needed: bool) -> Finding {
        let remedy = (verdict == Verdict::No).then(|| "do this".to_owned());
        Finding { name, verdict, needed, detail: "seen".to_owned(), remedy }
    }

    #[test]
    fn only_what_is_needed_fails_the_command() {
        let some = [finding("launch", Verdict::Yes, true), finding("attach", Verdict::No, false)];
        assert_eq!(outcome(&some), Outcome::Done);
        assert!(closing(&some).contains("running processes cannot"));
        assert!(closing(&some[..1]).contains("Programs can be traced here"));
        let none = [finding("launch", Verdict::No, true), finding("attach", Verdict::Yes, false)];
        assert_eq!(outcome(&none), Outcome::Failed);
        assert!(closing(&none).contains("because of: launch."));
    }

    #[test]
    fn a_remedy_stands_below_what_it_is_for() {
        let all = [finding("cpu", Verdict::Fact, false), finding("launch", Verdict::No, true)];
        assert_eq!(text(&all), "    cpu     seen\nNO  launch  seen\n            do this\n");
        let line = json(&all[1]);
        assert!(line.contains(r#""name":"launch","verdict":"no","needed":true"#), "{line}");
        assert!(line.contains(r#""remedy":"do this""#) && line.ends_with("}\n"), "{line}");
    }
}
