//! The kernel's own uprobes beside our traps count as many hits. Needs root, tracefs, and a kernel, not
//! user-mode emulation.

use std::fs;
use std::os::unix::ffi::OsStrExt as _;
use std::path::PathBuf;
use std::sync::Mutex;

use crate::site::{Text, arena, call, nothing, text, trapped};

const TRACING: &str = "/sys/kernel/tracing";

/// A kernel uprobe on a function in this program's file. Removed when dropped.
pub(crate) struct Uprobe {
    name: String,
    pub(crate) addr: u64,
}

impl Uprobe {
    /// Probes the first word of the function, or its returns. The error says why that is not possible.
    pub(crate) fn new(name: &str, text: Text, returns: bool) -> Result<Self, String> {
        let addr = text.words().as_ptr() as u64;
        let program = std::env::current_exe().map_err(|error| error.to_string())?;
        let offset = file_offset(addr, &program).ok_or("this program's file is not mapped there")?;
        let kind = if returns { 'r' } else { 'p' };
        let line = format!("{kind}:trapline/{name} {}:{offset:#x}", program.display());
        write("uprobe_events", &line)?;
        write(&format!("events/trapline/{name}/enable"), "1")?;
        Ok(Self { name: name.to_owned(), addr })
    }
    /// The kernel's own counts: hits, and hits that it missed.
    pub(crate) fn counts(&self) -> (u64, u64) {
        let profile = fs::read_to_string(format!("{TRACING}/uprobe_profile")).expect("the kernel's counts");
        let line = profile.lines().find(|line| line.split_whitespace().nth(1) == Some(&self.name));
        let mut counts =
            line.expect("our probe").split_whitespace().skip(2).map(|word| word.parse().expect("a count"));
        (counts.next().expect("hits"), counts.next().unwrap_or(0))
    }
}

impl Drop for Uprobe {
    fn drop(&mut self) {
        drop(write(&format!("events/trapline/{}/enable", self.name), "0"));
        drop(write("uprobe_events", &format!("-:trapline/{}", self.name)));
    }
}

fn write(file: &str, text: &str) -> Result<(), String> {
    use std::io::Write as _;
    let path = format!("{TRACING}/{file}");
    let opened = fs::OpenOptions::new().append(true).open(&path);
    opened.and_then(|mut file| file.write_all(text.as_bytes())).map_err(|error| format!("{path}: {error}"))
}

/// Offset in the file of what is mapped at `addr`, if that file is `program`.
fn file_offset(addr: u64, program: &PathBuf) -> Option<u64> {
    let maps = fs::read("/proc/self/maps").ok()?;
    maps.split(|byte| *byte == b'\n').find_map(|line| {
        let text = String::from_utf8_lossy(line);
        let mut words = text.split_whitespace();
        let (start, end) = words.next()?.split_once('-')?;
        let hex = |word: &str| u64::from_str_radix(word, 16).ok();
        let (start, end, offset) = (hex(start)?, hex(end)?, hex(words.nth(1)?)?);
        let is_ours = line.ends_with(program.as_os_str().as_bytes());
        (is_ours && (start..end).contains(&addr)).then(|| addr - start + offset)
    })
}

const THREADS: u64 = 4;
const CALLS: u64 = 500;

#[test]
fn counts_agree_with_the_kernels() {
    let theirs = text!(kernel_nop: "nop", "add x0, x0, x1", "ret");
    let theirs_push =
        text!(kernel_push: "stp x29, x30, [sp, #-16]!", "add x0, x0, x1", "ldp x29, x30, [sp], #16", "ret");
    let theirs_mul = text!(kernel_mul: "mul x0, x0, x1", "ret");
    arena();
    let probes: Result<Vec<_>, _> = [("nop", theirs), ("push", theirs_push), ("mul", theirs_mul)]
        .into_iter()
        .map(|(name, text)| {
            // Ours is placed first: the kernel's breakpoint changes the code that ours is copied from.
            let site = trapped(text, nothing);
            Uprobe::new(name, text, false).map(|probe| (probe, site))
        })
        .collect();
    let probes = match probes {
        Ok(probes) => probes,
        Err(why) => {
            println!("SKIP: {why}");
            return;
        }
    };
    // The kernel's count is not atomic: it loses some hits that come on two processors at once.
    let in_turn = Mutex::new(());
    std::thread::scope(|scope| {
        for thread in 0..THREADS {
            let (probes, in_turn) = (&probes, &in_turn);
            scope.spawn(move || {
                arena();
                for round in 0..CALLS {
                    for (probe, site) in probes {
                        let ours = site.call(thread, round);
                        let _one = in_turn.lock().expect("no panic");
                        assert_eq!(call(probe.addr, thread, round), ours);
                    }
                }
            });
        }
    });
    for (probe, site) in &probes {
        println!("{}: the kernel's {:?}, ours {}", probe.name, probe.counts(), site.hits());
        assert_eq!((probe.counts(), site.hits()), ((THREADS * CALLS, 0), THREADS * CALLS), "{}", probe.name);
    }
}
