//! Tries with processes: our own folder in /proc, a command that we start, a process that runs, other users' processes.
//!
//! In: nothing. Out: findings. Does not: stop a process that is not ours.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use super::Finding;
use crate::launch::Launched;
use crate::living;
use crate::park::{in_own_thread, wait_stop};
use crate::permission::{lsm_names, why_not_held, yama};
use crate::process::Process;
use crate::status::{Seccomp, ThreadStatus};
use crate::sys::{fd, orphan::Orphan, ptrace, wait};

/// Capabilities that open something, and their bits.
const CAPABILITIES: [(&str, u32); 4] =
    [("CAP_SYS_PTRACE", 19), ("CAP_SYS_ADMIN", 21), ("CAP_PERFMON", 38), ("CAP_BPF", 39)];
/// The inode of the first PID namespace, as the kernel fixes it (linux/proc_ns.h).
const FIRST_NAMESPACE: u64 = 0xefff_fffc;
/// Longer than any program takes to print its version.
const PATIENCE: Duration = Duration::from_secs(10);

fn own_status() -> io::Result<ThreadStatus> {
    Ok(ThreadStatus::parse(&fs::read("/proc/self/status")?))
}

/// /proc shows ourselves, and under the number that we have.
pub(super) fn own_folder() -> Finding {
    const REMEDY: &str = "mount it: mount -t proc proc /proc, in this PID namespace";
    let own = std::process::id();
    match own_status().and_then(|status| fs::read("/proc/self/maps").map(|maps| (status, maps))) {
        Ok((status, maps)) if status.tgid == own && !maps.is_empty() => {
            Finding::yes("proc", "/proc shows this process and its memory")
        }
        Ok((status, _)) => Finding::no(
            "proc",
            format!("/proc is of another PID namespace: {own} is {} there", status.tgid),
            REMEDY,
        ),
        Err(error) => Finding::no("proc", format!("/proc: {error}"), REMEDY),
    }
}

/// Whether other processes of the machine can be seen at all.
pub(super) fn namespace() -> Finding {
    let number = fs::metadata("/proc/self/ns/pid").map(|file| file.ino());
    let detail = match number {
        Ok(FIRST_NAMESPACE) => "the machine's own; every process can be named".to_owned(),
        Ok(_) => {
            "a container's own; only its processes can be named. For others, run trapline outside".to_owned()
        }
        Err(error) => format!("unknown: {error}"),
    };
    Finding::fact("pid-namespace", detail)
}

/// The user, and those of our capabilities that matter.
pub(super) fn rights() -> Finding {
    let (uid, _) = fd::whoami();
    let effective = own_status().map_or(0, |status| status.cap_eff);
    let have = CAPABILITIES.iter().filter(|(_, bit)| effective >> bit & 1 == 1);
    let have: Vec<&str> = have.map(|(name, _)| *name).collect();
    let have = if have.is_empty() { "no capability that matters here".to_owned() } else { have.join(", ") };
    Finding::fact("user", format!("uid {uid}; {have}"))
}

/// What restricts us besides: YAMA, security modules, a filter of system calls.
pub(super) fn restrictions() -> Finding {
    let scope = fs::read_to_string("/proc/sys/kernel/yama/ptrace_scope");
    let yama = match scope.as_deref().map(str::trim) {
        Ok(scope) => format!("ptrace_scope {scope}"),
        Err(_) => "no YAMA".to_owned(),
    };
    let filter = match own_status().map(|status| status.seccomp) {
        Ok(Seccomp::Off) | Err(_) => "no filter of system calls",
        Ok(Seccomp::Strict | Seccomp::Filter) => "a filter of system calls (seccomp)",
    };
    let modules = lsm_names().map_or_else(|| "not listed".to_owned(), |names| names.replace(',', " "));
    Finding::fact("restrictions", format!("{yama}; security modules: {modules}; {filter}"))
}

/// Starts this program a second time, parks it at its entry point, and lets it run to its end.
#[must_use]
pub fn launch() -> Finding {
    const NAME: &str = "launch";
    const REMEDY: &str = "in a container, permit ptrace: docker run --cap-add SYS_PTRACE";
    let mut command = Command::new("/proc/self/exe");
    command.arg("--version").stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    match Launched::start(command) {
        Ok((mut launched, Some(parked))) => {
            let ended = parked.release().and_then(|_| end(&mut launched));
            match ended {
                Ok(()) => {
                    Finding::yes(NAME, "a command was started, held at its first instruction, and let go")
                }
                Err(error) => Finding::no(NAME, format!("a held command did not go on: {error}"), REMEDY),
            }
        }
        Ok((mut launched, None)) => {
            launched.kill();
            Finding::no(NAME, "a started command ended before it could be held", REMEDY)
        }
        Err(error) => {
            let why = why_not_held(&error).unwrap_or_else(|| error.to_string());
            Finding::no(NAME, format!("no command can be held at its start: {why}"), REMEDY)
        }
    }
}

/// Waits for its end; ends it if that takes too long.
fn end(launched: &mut Launched) -> io::Result<()> {
    let start = Instant::now();
    loop {
        match launched.try_wait()? {
            Some(_) => return Ok(()),
            None if start.elapsed() > PATIENCE => {
                launched.kill();
                return Err(io::Error::other("it did not end"));
            }
            None => wait::pause(start.elapsed()),
        }
    }
}

/// Stops a process of ours that is not below us, as `-p` does, and lets it go.
#[must_use]
pub fn attach() -> Finding {
    const NAME: &str = "attach";
    const COMMANDS: &str = "commands can be started instead: trapline … -- CMD";
    let orphan = match Orphan::start() {
        Ok(orphan) => orphan,
        Err(error) => return Finding::no(NAME, format!("no process could be started: {error}"), COMMANDS),
    };
    let pid = orphan.pid();
    if let Err(error) = Process::open(pid) {
        let remedy = yama().map_or(COMMANDS, |(_, remedy)| remedy);
        return Finding::no(NAME, error, remedy);
    }
    let stopped = in_own_thread(move || {
        ptrace::seize(pid, ptrace::OPTIONS)?;
        ptrace::interrupt(pid)?;
        wait_stop(pid)?;
        ptrace::detach(pid)
    });
    match stopped {
        Ok(()) => Finding::yes(NAME, "a running process of this user was stopped and let go"),
        Err(error) => Finding::no(NAME, format!("a running process cannot be stopped: {error}"), COMMANDS),
    }
}

/// Opens the memory of a process of another user, as an attach does first.
pub(super) fn strangers() -> Finding {
    const NAME: &str = "other-users";
    let (uid, _) = fd::whoami();
    let Some(pid) = strangers_pid(uid) else {
        return Finding::fact(NAME, "no process of another user is here to be tried");
    };
    let comm = living::comm(pid);
    match File::options().read(true).write(true).open(format!("/proc/{pid}/mem")) {
        Ok(_) => Finding::yes(NAME, format!("the memory of {comm} ({pid}), another user's, can be opened")),
        Err(error) => Finding::no(
            NAME,
            format!("the memory of {comm} ({pid}), another user's, cannot be opened: {error}"),
            "run trapline as root (CAP_SYS_PTRACE) for processes of other users",
        ),
    }
}

/// A process with a program, of another user.
fn strangers_pid(uid: u32) -> Option<u32> {
    let folders = fs::read_dir("/proc").ok()?.filter_map(Result::ok);
    let pids = folders.filter_map(|folder| folder.file_name().to_str()?.parse::<u32>().ok());
    pids.into_iter().find(|pid| {
        let status = fs::read(format!("/proc/{pid}/status")).map(|text| ThreadStatus::parse(&text));
        status.is_ok_and(|status| status.has_memory && status.uids[0] != uid)
    })
}
