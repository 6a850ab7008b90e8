//! The kernel's uprobe on a function of this program, set through tracefs.

use std::fs;
use std::io::Write as _;

use anyhow::{Context as _, Result};

const TRACING: &str = "/sys/kernel/tracing";

/// A uprobe that is removed when this value is dropped.
pub(super) struct Uprobe {
    name: String,
    addr: u64,
}

impl Uprobe {
    /// Probes the word at `addr`, or the function's returns.
    pub(super) fn new(name: &str, addr: u64, returns: bool) -> Result<Self> {
        let (program, offset) = place(addr)?;
        let kind = if returns { 'r' } else { 'p' };
        append("uprobe_events", &format!("{kind}:trapline/{name} {program}:{offset:#x}"))?;
        let probe = Self { name: name.to_owned(), addr };
        append(&format!("events/trapline/{name}/enable"), "1")?;
        Ok(probe)
    }
    pub(super) const fn addr(&self) -> u64 {
        self.addr
    }
}

impl Drop for Uprobe {
    fn drop(&mut self) {
        drop(append(&format!("events/trapline/{}/enable", self.name), "0"));
        drop(append("uprobe_events", &format!("-:trapline/{}", self.name)));
    }
}

fn append(file: &str, text: &str) -> Result<()> {
    let path = format!("{TRACING}/{file}");
    let opened = fs::OpenOptions::new().append(true).open(&path);
    opened.and_then(|mut file| file.write_all(text.as_bytes())).context(path)
}

/// Path of the file that is mapped at `addr`, and the offset of `addr` in it.
fn place(addr: u64) -> Result<(String, u64)> {
    let maps = fs::read_to_string("/proc/self/maps").context("own maps")?;
    let found = maps.lines().find_map(|line| {
        let mut words = line.split_whitespace();
        let (start, end) = words.next()?.split_once('-')?;
        let hex = |word: &str| u64::from_str_radix(word, 16).ok();
        let (start, end, offset) = (hex(start)?, hex(end)?, hex(words.nth(1)?)?);
        let path = words.nth(2)?;
        (start..end).contains(&addr).then(|| (path.to_owned(), addr - start + offset))
    });
    found.context("the function lies in no file")
}
