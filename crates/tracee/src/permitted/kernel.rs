//! Tries with the kernel: its release, shared code, breakpoints, perf, BPF, fanotify, tracefs, restartable sequences.
//!
//! In: nothing. Out: findings. Each says what Trapline uses it for. Does not: leave an event, a map or a mark behind.

use std::fs::{self, File};
use std::hint::black_box;
use std::io;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use trapline_record::RemoteAddr;

use super::Finding;
use crate::kernel::UprobeMulti;
use crate::maps::Mapping;
use crate::perf::breakpoint::{Breakpoint, Scope, Spec};
use crate::perf::{Access, TaskRings, possible_cpus};
use crate::process::Process;
use crate::sys::{own, tried};

/// The first release with all that Trapline asks of the kernel.
const OLDEST: (u32, u32) = (5, 14);
const AS_ROOT: &str = "run trapline as root";

/// The kernel's release.
pub(super) fn release() -> Finding {
    let text = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    let text = text.trim();
    let (major, minor) = OLDEST;
    match parse_release(text) {
        Some(release) if release >= OLDEST => Finding::yes("kernel", format!("Linux {text}")),
        _ => {
            let remedy = format!("a kernel of release {major}.{minor} or later is needed");
            Finding::no(
                "kernel",
                format!("Linux {}", if text.is_empty() { "of unknown release" } else { text }),
                remedy,
            )
        }
    }
}

fn parse_release(text: &str) -> Option<(u32, u32)> {
    let mut parts = text.split(|c: char| !c.is_ascii_digit());
    Some((parts.next()?.parse().ok()?, parts.next()?.parse().ok()?))
}

/// The processor's model, and what generated code may use of it.
pub(super) fn processor() -> Finding {
    let text = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let model = model(&text).unwrap_or("unknown model");
    let cpus = possible_cpus();
    let features = match Process::look_into(std::process::id()).and_then(|process| process.features()) {
        Ok(known) => {
            let names = [
                ("rdpid", known.rdpid),
                ("rdfsbase", known.fsgsbase),
                ("atomic additions", known.lse),
                ("SVE", known.sve),
            ];
            let names: Vec<&str> = names.iter().filter(|(_, there)| *there).map(|(name, _)| *name).collect();
            if names.is_empty() { "nothing optional".to_owned() } else { names.join(", ") }
        }
        Err(_) => "features unknown".to_owned(),
    };
    let cpus = format!("{cpus} {}", if cpus == 1 { "CPU" } else { "CPUs" });
    Finding::fact("cpu", format!("{model}, {}, {cpus}; {features}", std::env::consts::ARCH))
}

/// The model's name, or the number that arm64 has instead.
fn model(cpuinfo: &str) -> Option<&str> {
    let value = |key: &str| {
        let line =
            cpuinfo.lines().find(|line| line.split(':').next().is_some_and(|name| name.trim() == key))?;
        line.split_once(':').map(|(_, value)| value.trim()).filter(|value| !value.is_empty())
    };
    value("model name").or_else(|| value("CPU part"))
}

/// Shared memory that holds code, as stubs need it.
pub(super) fn shared_code() -> Finding {
    let tried = || {
        let file = own::memfd(c"trapline-doctor")?;
        File::from(file.try_clone()?).set_len(4096)?;
        tried::map_code(&file)
    };
    match tried() {
        Ok(()) => Finding::yes("shared-code", "a memfd can be mapped as code"),
        Err(error) => Finding::no(
            "shared-code",
            format!("a memfd cannot be mapped as code: {error}"),
            "sysctl vm.memfd_noexec=0, or a security module's rule that permits it",
        ),
    }
}

/// Restartable sequences, by which counts need no locks.
pub(super) fn rseq() -> Finding {
    match tried::knows_rseq() {
        true => Finding::yes("rseq", "the kernel knows restartable sequences"),
        false => Finding::no(
            "rseq",
            "the kernel knows no restartable sequences",
            "a kernel with CONFIG_RSEQ; until then counts use slower instructions",
        ),
    }
}

/// Barriers between cores, for programs that probe themselves.
pub(super) fn barriers() -> Finding {
    match own::sync_cores() {
        Ok(()) => Finding::yes("membarrier", "all cores of a process can be made to see new code"),
        Err(error) => Finding::no(
            "membarrier",
            format!("cores cannot be made to see new code: {error}"),
            "a kernel with CONFIG_MEMBARRIER; only programs that probe themselves need it",
        ),
    }
}

/// Sets a breakpoint on a word of ours, writes the word once, and reads the breakpoint's count.
pub(super) fn breakpoints() -> Finding {
    const NAME: &str = "breakpoints";
    let paranoid = fs::read_to_string("/proc/sys/kernel/perf_event_paranoid").unwrap_or_default();
    let paranoid = format!("perf_event_paranoid {}", paranoid.trim());
    let remedy = "watch needs them: sysctl kernel.perf_event_paranoid=2, or run as root (CAP_PERFMON)";
    match counted() {
        Ok(1) => Finding::yes(NAME, format!("a hardware breakpoint counted one store; {paranoid}")),
        Ok(count) => Finding::no(
            NAME,
            format!("a hardware breakpoint counted {count} stores of 1; {paranoid}"),
            remedy,
        ),
        Err(error) => Finding::no(NAME, error, remedy),
    }
}

/// Stores that a hardware breakpoint counts of one store.
fn counted() -> Result<u64, crate::perf::breakpoint::BreakpointError> {
    let word = AtomicU64::new(0);
    let scope = Scope::Thread { tid: None, cpu: None };
    let addr = RemoteAddr(std::ptr::from_ref(&word).addr() as u64);
    let breakpoint =
        Breakpoint::open(Spec { addr, len: 8, access: Access::Write, scope, inherit: false }, true)?;
    black_box(&word).store(1, Relaxed);
    breakpoint.count()
}

/// The kernel's records about threads, in a ring for each CPU.
pub(super) fn records() -> Finding {
    match TaskRings::open() {
        Ok(_) => Finding::yes("perf-records", "the kernel's records about threads can be read"),
        Err(error) => Finding::no(
            "perf-records",
            format!("the kernel's records about threads cannot be read: {error}"),
            "watch needs them: sysctl kernel.perf_event_paranoid=2 and kernel.perf_event_mlock_kb=2048, or run as root",
        ),
    }
}

/// Counts a call of a function of ours by a uprobe with a BPF program.
pub(super) fn bpf() -> Finding {
    const NAME: &str = "bpf";
    let remedy =
        "only --kernel-uprobes needs it: run as root (CAP_BPF and CAP_PERFMON), on Linux 6.6 or later";
    match by_uprobe() {
        Ok(1) => Finding::yes(NAME, "a uprobe with a BPF program counted one call"),
        Ok(count) => {
            Finding::no(NAME, format!("a uprobe with a BPF program counted {count} calls of 1"), remedy)
        }
        Err(why) => Finding::no(NAME, why, remedy),
    }
}

/// The function that the uprobe is at.
#[inline(never)]
extern "C" fn probed(number: u64) -> u64 {
    black_box(number) + 1
}

/// Calls that a uprobe counts of one call.
fn by_uprobe() -> Result<u64, String> {
    let offset =
        own_offset(probed as *const () as usize as u64).ok_or("our own code is not in /proc/self/maps")?;
    let probe =
        UprobeMulti::attach(Path::new("/proc/self/exe"), &[offset.into()], Some(std::process::id()), false)
            .map_err(|error| error.to_string())?;
    let call: extern "C" fn(u64) -> u64 = black_box(probed);
    black_box(call(1));
    let counts = probe.counts().map_err(|error| error.to_string())?;
    Ok(counts.iter().sum())
}

/// Where an address of our own code lies in its file.
fn own_offset(addr: u64) -> Option<u64> {
    let maps = fs::read_to_string("/proc/self/maps").ok()?;
    let mappings = maps.lines().filter_map(Mapping::parse);
    let own = mappings.into_iter().find(|mapping| (mapping.start.0..mapping.end.0).contains(&addr))?;
    Some(addr - own.start.0 + own.offset.0)
}

/// Notices of files that are opened, which Trapline does not use yet.
pub(super) fn fanotify() -> Finding {
    const NAME: &str = "fanotify";
    let tried =
        |all: bool| tried::fanotify(all).and_then(|group| tried::watch_executions(&group, c"/proc/self/exe"));
    match (tried(true), tried(false)) {
        (Ok(()), _) => Finding::yes(NAME, "executions of a file by any process can be noticed"),
        (Err(_), Ok(())) => {
            Finding::yes(NAME, "executions of a file can be noticed, but not by which process")
        }
        (Err(error), Err(_)) => Finding::no(
            NAME,
            format!("executions of a file cannot be noticed: {error}"),
            format!("nothing of trapline needs it; to have it, {AS_ROOT} (CAP_SYS_ADMIN)"),
        ),
    }
}

/// The list of the kernel's own uprobes, which shows other tracers' probes.
pub(super) fn tracefs() -> Finding {
    const NAME: &str = "tracefs";
    const FOLDERS: [&str; 2] = ["/sys/kernel/tracing", "/sys/kernel/debug/tracing"];
    let open = |folder: &str| File::open(format!("{folder}/uprobe_events")).map(drop);
    let mut why = io::Error::from(io::ErrorKind::NotFound);
    for folder in FOLDERS {
        match open(folder) {
            Ok(()) => return Finding::yes(NAME, format!("{folder} can be read")),
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied => why = error,
            Err(_) => {}
        }
    }
    let help = format!(
        "nothing of trapline needs it; to have it, {AS_ROOT} and mount -t tracefs tracefs {}",
        FOLDERS[0]
    );
    Finding::no(NAME, format!("{} cannot be read: {why}", FOLDERS[0]), help)
}

#[cfg(test)]
mod tests {
    use super::{model, own_offset, parse_release, probed};

    #[test]
    fn releases_are_compared_by_their_numbers() {
        assert_eq!(parse_release("6.18.44-fc-v769"), Some((6, 18)));
        assert_eq!(parse_release("5.4"), Some((5, 4)));
        assert!(parse_release("5.4.0").is_some_and(|release| release < super::OLDEST));
        assert_eq!(parse_release("unknown"), None);
    }

    #[test]
    fn the_model_is_the_first_cpus() {
        assert_eq!(model("processor\t: 0\nmodel name\t: A\n\nmodel name\t: B\n"), Some("A"));
        assert_eq!(model("CPU implementer\t: 0x41\nCPU part\t: 0xd0c\n"), Some("0xd0c"));
        assert_eq!(model("model name\t:\n"), None);
    }

    #[test]
    fn our_own_code_is_in_our_own_file() {
        assert_eq!(probed(1), 2);
        let offset = own_offset(probed as *const () as usize as u64).expect("mapped");
        let len = std::fs::metadata("/proc/self/exe").expect("it runs").len();
        assert!(offset > 0 && offset < len);
    }
}
