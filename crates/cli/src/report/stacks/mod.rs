//! Stacks for people, as JSON lines (docs/guide/json.md), folded, as a flame graph and for pprof.
//!
//! In: sums of stacks, and the source of names. Out: text, or a file's bytes. Where a tool requires it, a
//! stack is written from the outermost function to the probed one; for people the probed one stands first.
//! Does not: sort, or write.

pub(crate) mod flame;
pub(crate) mod pprof;

use std::fmt::Write as _;
use std::sync::Arc;

use serde::Serialize;
use trapline::stacks::{Function, StackSum, Symbols};
use trapline_order::Order as _;

use super::json::{SCHEMA, line};
use super::number::{duration, grouped, percent, plural};
use crate::report::visible;

/// Sums of stacks, with the source of names.
#[derive(Debug)]
pub(crate) struct Shown<'a> {
    pub(crate) stacks: &'a [StackSum],
    /// Whether durations are summed, not calls.
    pub(crate) time: bool,
    symbols: Symbols,
}

#[derive(Serialize)]
struct StackRow<'a> {
    r#type: &'static str,
    schema: u32,
    pid: u32,
    probe: &'a str,
    hits: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    time_ns: Option<u64>,
    cut: bool,
    frames: Vec<FrameRow<'a>>,
}

#[derive(Serialize)]
struct FrameRow<'a> {
    address: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    module: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    offset: Option<u64>,
    functions: Vec<FunctionRow>,
}

#[derive(Serialize)]
struct FunctionRow {
    name: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    file: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    line: Option<u32>,
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    inlined: bool,
}

impl<'a> Shown<'a> {
    pub(crate) fn new(stacks: &'a [StackSum], time: bool) -> Self {
        Self { stacks, time, symbols: Symbols::default() }
    }
    /// The value that a stack counts for: hits, or nanoseconds.
    pub(crate) fn value(&self, stack: &StackSum) -> u64 {
        if self.time { nanos(stack) } else { stack.calls }
    }
    /// The functions of each frame of a stack, innermost first.
    pub(crate) fn frames(&mut self, stack: &StackSum) -> Vec<Arc<[Function]>> {
        let mut frames: Vec<Arc<[Function]>> =
            stack.frames.iter().map(|frame| self.symbols.of(stack.pid, frame)).collect();
        // If debug information has no name for the probed function, the name that was typed is used.
        if let Some(first) = frames.first_mut()
            && first.iter().all(|function| !function.named)
        {
            let (module, name) = (first[0].module.clone(), stack.site.label.clone());
            *first =
                Arc::new([Function { name, module, line: None, inlined: false, named: true, offset: 0 }]);
        }
        frames
    }
    /// The most frequent stacks, for people.
    pub(crate) fn text(&mut self, top: usize) -> String {
        let total: u64 = self.stacks.iter().map(|stack| self.value(stack)).sum();
        let mut out = String::new();
        for stack in self.stacks.iter().take(top) {
            let value = self.value(stack);
            let share = if total == 0 { 0.0 } else { value as f64 / total as f64 };
            let calls = plural(stack.calls, "call", "calls");
            let much = if self.time { format!("{} in {calls}", duration(value)) } else { calls };
            writeln!(out, "\n{much} ({}) of process {} ({})", percent(share), stack.pid, stack.process).ok();
            for functions in self.frames(stack) {
                functions.iter().for_each(|function| out.push_str(&plain(function)));
            }
            if stack.cut {
                out.push_str("    ...\n");
            }
        }
        let rest = self.stacks.get(top..).unwrap_or_default();
        let left: u64 = rest.iter().map(|stack| stack.calls).sum();
        if !rest.is_empty() {
            let stacks = plural(rest.len() as u64, "more stack", "more stacks");
            writeln!(out, "\n{stacks} with {} hits; --top shows more", grouped(left)).ok();
        }
        out
    }
    /// A JSON object for each stack.
    pub(crate) fn json(&mut self) -> Vec<String> {
        let stacks = self.stacks;
        stacks.iter().map(|stack| self.row(stack)).collect()
    }
    fn row(&mut self, stack: &StackSum) -> String {
        let functions = self.frames(stack);
        let frames = stack.frames.iter().zip(&functions).map(|(frame, functions)| FrameRow {
            address: frame.address,
            module: frame.place.as_ref().map(|(file, _)| file.path.as_str()),
            offset: frame.place.as_ref().map(|(_, offset)| *offset),
            functions: functions.iter().map(function).collect(),
        });
        line(&StackRow {
            r#type: "stack",
            schema: SCHEMA,
            pid: stack.pid,
            probe: &stack.site.probe,
            hits: stack.calls,
            time_ns: self.time.then(|| nanos(stack)),
            cut: stack.cut,
            frames: frames.collect(),
        })
    }
    /// A line for each stack, as perf and bcc write it: the process, then names from the outermost on, and a
    /// number.
    pub(crate) fn folded(&mut self) -> String {
        let stacks = self.stacks;
        let mut lines: Vec<String> = stacks.iter().map(|stack| self.fold(stack)).collect();
        lines.order();
        lines.concat()
    }
    fn fold(&mut self, stack: &StackSum) -> String {
        let mut names = vec![folded_name(&stack.process)];
        names.extend(stack.cut.then(|| "[...]".to_owned()));
        for functions in self.frames(stack).iter().rev() {
            let suffix = |inlined: bool| if inlined { "_[i]" } else { "" };
            names.extend(functions.iter().rev().map(|f| folded_name(&f.name) + suffix(f.inlined)));
        }
        format!("{} {}\n", names.join(";"), self.value(stack))
    }
}

fn nanos(stack: &StackSum) -> u64 {
    u64::try_from(stack.time.as_nanos()).unwrap_or(u64::MAX)
}

fn function(function: &Function) -> FunctionRow {
    let (file, line) = function.line.clone().unzip();
    FunctionRow { name: function.name.clone(), file, line, inlined: function.inlined }
}

/// Replaces what has a meaning in folded lines: `;` separates names, and a line's end ends the stack.
fn folded_name(name: &str) -> String {
    name.replace(';', ":").replace(['\n', '\r'], " ")
}

fn plain(function: &Function) -> String {
    let place = match (&function.line, &function.module) {
        (Some((file, line)), _) => format!(" at {file}:{line}"),
        (None, Some(module)) if function.named => {
            format!(" ({})", module.rsplit('/').next().unwrap_or(module))
        }
        _ => String::new(),
    };
    let inlined = if function.inlined { " (inlined)" } else { "" };
    format!("    {}\n", visible::name(&format!("{}{inlined}{place}", function.name)))
}

#[cfg(test)]
pub(crate) mod tests {
    use super::Shown;
    use std::sync::Arc;
    use std::time::Duration;
    use trapline::Site;
    use trapline::report::Tactic;
    use trapline::stacks::{Frame, StackSum};

    /// Stacks of code without files, which are named by their addresses.
    pub(crate) fn sample() -> Vec<StackSum> {
        let site = Arc::new(Site {
            probe: "uprobe:/bin/x:f".to_owned(),
            aliases: Vec::new(),
            file: "/bin/x".to_owned(),
            offset: 1,
            label: "f".to_owned(),
            tactic: Tactic::Jump,
            slot: 0,
        });
        let frame = |address| Frame { address, place: None, is_return: true };
        let stack = |callers: &[u64], calls, cut| StackSum {
            pid: u32::MAX,
            process: "x;y".to_owned(),
            site: Arc::clone(&site),
            frames: [0x10].iter().chain(callers).map(|&at| frame(at)).collect(),
            cut,
            calls,
            time: Duration::from_nanos(calls * 1000),
        };
        vec![stack(&[0x20, 0x30], 3, false), stack(&[0x40], 1, true)]
    }

    #[test]
    fn stacks_are_folded_from_the_outermost_on() {
        let stacks = sample();
        let folded = |time| Shown::new(&stacks, time).folded();
        assert_eq!(folded(false), "x:y;[...];[0x40];f 1\nx:y;[0x30];[0x20];f 3\n");
        assert_eq!(folded(true), "x:y;[...];[0x40];f 1000\nx:y;[0x30];[0x20];f 3000\n");
    }

    #[test]
    fn people_read_the_probed_function_first() {
        let stacks = sample();
        let text = Shown::new(&stacks, false).text(1);
        let expected = "
3 calls (75 %) of process 4294967295 (x;y)
    f
    [0x20]
    [0x30]

1 more stack with 1 hits; --top shows more
";
        assert_eq!(text, expected);
        assert!(Shown::new(&stacks, true).text(9).contains("\n    [0x40]\n    ...\n"));
    }

    #[test]
    fn an_object_has_each_frame() {
        let stacks = sample();
        let line = &Shown::new(&stacks, true).json()[1];
        let expected = concat!(
            r#"{"type":"stack","schema":1,"pid":4294967295,"probe":"uprobe:/bin/x:f","hits":1,"time_ns":1000,"cut":true,"#,
            r#""frames":[{"address":16,"functions":[{"name":"f"}]},{"address":64,"functions":[{"name":"[0x40]"}]}]}"#,
            "\n"
        );
        assert_eq!(line, expected);
    }
}
