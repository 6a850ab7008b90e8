//! Names of code that a program generated itself, as its runtime wrote them to `/tmp/perf-PID.map`. That file
//! has a line for each function with its address, its length (both hexadecimal) and its name. (Linux,
//! tools/perf/Documentation/jit-interface.txt; written by the JVM's agent, Node, V8, LuaJIT, Python 3.12 with
//! `-X perf`.)
//!
//! In: the text. Out: names of addresses; if several were written for one address, the last. Does not: follow
//! code that was moved since.

use std::collections::BTreeMap;

use trapline_tracee::{ThreadStatus, folder_of};

/// Contents of a process' file.
#[derive(Debug, Default)]
pub(super) struct JitMap {
    /// Length and name, by address.
    functions: BTreeMap<u64, (u64, String)>,
}

impl JitMap {
    /// File of a process: in its own root and under its own number there, if that can still be read;
    /// otherwise in the tracer's `/tmp`.
    pub(super) fn of(pid: u32) -> Self {
        let status = ThreadStatus::parse(&std::fs::read(format!("/proc/{pid}/status")).unwrap_or_default());
        let inside = status.ns_pids.last().map(|own| folder_of(pid).join(format!("root/tmp/perf-{own}.map")));
        let paths = inside.into_iter().chain([format!("/tmp/perf-{pid}.map").into()]);
        paths
            .filter_map(|path| std::fs::read(path).ok())
            .next()
            .map_or_else(Self::default, |bytes| Self::parse(&bytes))
    }
    /// Lines in another form are skipped.
    fn parse(bytes: &[u8]) -> Self {
        let text = String::from_utf8_lossy(bytes);
        let hex = |text: &str| u64::from_str_radix(text.trim_start_matches("0x"), 16).ok();
        let functions = text.lines().filter_map(|line| {
            let mut fields = line.splitn(3, ' ');
            let (at, len, name) = (hex(fields.next()?)?, hex(fields.next()?)?, fields.next()?.trim());
            (!name.is_empty()).then(|| (at, (len, name.to_owned())))
        });
        Self { functions: functions.collect() }
    }
    /// Name of the function at an address.
    pub(super) fn name(&self, address: u64) -> Option<&str> {
        let (at, (len, name)) = self.functions.range(..=address).next_back()?;
        (address - at < *len).then_some(name)
    }
}

#[cfg(test)]
mod tests {
    use super::JitMap;

    #[test]
    fn lines_are_read() {
        let map = JitMap::parse(
            b"1000 20 one two\nnonsense\n0x2000 10 old\n2000 8 new\n3000 zz no\n\xff 1 x\n4000 1 \n",
        );
        let names = [0x0fff, 0x1000, 0x101f, 0x1020, 0x2000, 0x2007, 0x2008, 0x4000].map(|at| map.name(at));
        assert_eq!(
            names,
            [None, Some("one two"), Some("one two"), None, Some("new"), Some("new"), None, None]
        );
    }
}
