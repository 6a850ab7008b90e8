//! The kernel's own uprobes on the victim's file must count as many hits. Needs root and tracefs.

use std::fs;
use std::io::Write as _;

use trapline_image::{Bytes, Image, NoDebugFiles};

const TRACING: &str = "/sys/kernel/tracing";

/// A uprobe that is removed when this value is dropped.
pub(crate) struct Uprobe {
    name: String,
}

impl Uprobe {
    /// Probes the word `past` bytes behind the start of a function of this program's file.
    pub(crate) fn new(function: &str, past: u64) -> Result<Self, String> {
        Self::make("p", function, past)
    }
    /// Probes returns of calls that reach that word. The word must come before the function stores its return
    /// address.
    pub(crate) fn of_returns(function: &str, past: u64) -> Result<Self, String> {
        Self::make("r", function, past)
    }
    fn make(kind: &str, function: &str, past: u64) -> Result<Self, String> {
        let program = std::env::current_exe().map_err(|error| error.to_string())?;
        let bytes = fs::read(&program).map_err(|error| error.to_string())?;
        let image = Image::parse(Bytes::from(bytes), &mut NoDebugFiles).map_err(|error| error.to_string())?;
        let is = |one: &&trapline_image::Function| image.display_name(one, "") == function;
        let found = image.functions().iter().find(is).ok_or("no such function")?;
        let offset = image.offset_of(found.start + past).ok_or("no such place")?.0;
        let name = format!("outside_{kind}_{function}_{past}");
        write("uprobe_events", &format!("{kind}:trapline/{name} {}:{offset:#x}", program.display()))?;
        write(&format!("events/trapline/{name}/enable"), "1")?;
        let probe = Self { name };
        if kind == "r" {
            // The kernel's own count of a return probe is that of entries.
            write(&format!("events/trapline/{}/trigger", probe.name), "hist:keys=common_pid")?;
        }
        Ok(probe)
    }
    /// Number of returns.
    pub(crate) fn returns(&self) -> u64 {
        let file = format!("{TRACING}/events/trapline/{}/hist", self.name);
        let text = fs::read_to_string(file).expect("the kernel's histogram");
        let hits = text.lines().find_map(|line| line.trim().strip_prefix("Hits: "));
        hits.and_then(|word| word.trim().parse().ok()).expect("a count")
    }
    /// Number of hits.
    pub(crate) fn hits(&self) -> u64 {
        let profile = fs::read_to_string(format!("{TRACING}/uprobe_profile")).expect("the kernel's counts");
        let line = profile.lines().find(|line| line.split_whitespace().nth(1) == Some(&self.name));
        let count = line.expect("our probe").split_whitespace().nth(2);
        count.and_then(|word| word.parse().ok()).expect("a count")
    }
}

impl Drop for Uprobe {
    fn drop(&mut self) {
        drop(write(&format!("events/trapline/{}/trigger", self.name), "!hist:keys=common_pid"));
        drop(write(&format!("events/trapline/{}/enable", self.name), "0"));
        drop(write("uprobe_events", &format!("-:trapline/{}", self.name)));
    }
}

fn write(file: &str, text: &str) -> Result<(), String> {
    let path = format!("{TRACING}/{file}");
    let opened = fs::OpenOptions::new().append(true).open(&path);
    opened.and_then(|mut file| file.write_all(text.as_bytes())).map_err(|error| format!("{path}: {error}"))
}
