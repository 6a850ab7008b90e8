//! Why a process may not be traced, and what to do about it.
//!
//! Input: a pid, and the kernel's error. Output: the one obstacle. The kernel only answers EPERM, so its
//! checks are repeated here in the kernel's order: user ids, dumpable, capabilities, user namespace, YAMA.

use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::error::{SHIELD_NAME, TargetError, gone_or};
use crate::living;
use crate::numbers::{MACHINE, SMALL};
use crate::procfs;
use crate::status::ThreadStatus;
use crate::sys::fd;
use crate::waiting::NO_ROOM;

const CAP_SYS_PTRACE: u64 = 1 << 19;

/// Refuses a pid that names no process which can be traced.
pub(crate) fn check_kind(pid: u32) -> Result<ThreadStatus, TargetError> {
    let text = procfs::read(format!("/proc/{pid}/status")).map_err(|_| TargetError::NoProcess { pid })?;
    let status = ThreadStatus::parse(&text);
    if status.tgid != pid {
        return Err(TargetError::IsThread { tid: pid, pid: status.tgid });
    }
    let has_ended = |status: &ThreadStatus| matches!(status.state, 'Z' | 'X') || !status.has_memory;
    if !has_ended(&status) {
        return Ok(status);
    }
    if living::is_kernel_thread(pid) {
        return Err(TargetError::KernelThread { pid, comm: status.comm });
    }
    // The main thread has ended, or is about to; others may live on.
    let text =
        procfs::read(living::folder(pid).join("status")).map_err(|_| TargetError::NoProcess { pid })?;
    let living = ThreadStatus::parse(&text);
    match status.state {
        _ if !has_ended(&living) => Ok(living),
        'Z' => Err(TargetError::Zombie { pid, parent: status.ppid }),
        _ => Err(TargetError::Gone { pid, how: "it ended".to_owned() }),
    }
}

/// Refuses programs of another class or machine.
pub(crate) fn check_program(pid: u32) -> Result<(), TargetError> {
    use std::io::Read;
    let mut head = [0u8; 20];
    let mut file =
        fs::File::open(living::folder(pid).join("exe")).map_err(|e| gone_or(pid, "open its program", e))?;
    file.read_exact(&mut head).map_err(|e| gone_or(pid, "read its program", e))?;
    other_kind(head).map_or(Ok(()), |what| Err(TargetError::WrongClass { pid, what }))
}

/// The kind of program that an ELF file with this head is; `None` if it is one for this machine.
fn other_kind(head: [u8; 20]) -> Option<String> {
    let machine = u16::from_le_bytes([head[18], head[19]]);
    Some(match (head[4], machine) {
        _ if head[5] != 1 => "big-endian".to_owned(),
        (2, MACHINE) => return None,
        (1, MACHINE) => format!("32-bit ({SMALL})"),
        (1, 40) => "32-bit (AArch32)".to_owned(),
        (1, _) => "32-bit".to_owned(),
        _ => format!("foreign (ELF machine {machine})"),
    })
}

/// Refuses a command if its program is an ELF file of another kind. The kernel could not execute it, and it
/// would be given to a shell, which would then be what runs.
pub(crate) fn check_command(command: &Command) -> io::Result<()> {
    use std::io::Read;
    let Some(program) = program_of(command) else { return Ok(()) };
    let mut head = [0u8; 20];
    let is_elf = fs::File::open(&program).is_ok_and(|mut file| file.read_exact(&mut head).is_ok())
        && head.starts_with(b"\x7FELF");
    match other_kind(head).filter(|_| is_elf) {
        Some(what) => {
            let (program, machine) = (program.display(), std::env::consts::ARCH);
            Err(io::Error::other(format!(
                "{program} is a {what} program; only 64-bit {machine} is supported"
            )))
        }
        None => Ok(()),
    }
}

/// The file that will be executed, if it can be found.
fn program_of(command: &Command) -> Option<PathBuf> {
    let name = Path::new(command.get_program());
    if name.components().count() > 1 {
        return Some(command.get_current_dir().map_or_else(|| name.to_owned(), |folder| folder.join(name)));
    }
    let folders = std::env::var_os("PATH")?;
    std::env::split_paths(&folders).map(|folder| folder.join(name)).find(|path| path.is_file())
}

/// The error for a process that has another tracer. The kernel names the thread that traces; a user knows its process.
pub(crate) fn traced(pid: u32, tracer: u32) -> TargetError {
    let status = procfs::read(format!("/proc/{tracer}/status")).unwrap_or_default();
    let process = Some(ThreadStatus::parse(&status).tgid).filter(|&tgid| tgid != 0).unwrap_or(tracer);
    let thread = living::comm(tracer);
    // The way out of a shield is another one.
    let comm = if thread == SHIELD_NAME { thread } else { living::comm(process) };
    TargetError::AlreadyTraced { pid, tracer: process, comm }
}

/// Turns a refusal by the kernel into its reason.
pub(crate) fn explain(pid: u32, status: &ThreadStatus, error: io::Error) -> TargetError {
    if !matches!(error.raw_os_error(), Some(libc::EPERM | libc::EACCES)) {
        return gone_or(pid, "open its memory", error);
    }
    if status.tracer != 0 {
        return traced(pid, status.tracer);
    }
    let (obstacle, remedy) = obstacle(pid, status);
    TargetError::Denied { pid, obstacle, remedy: remedy.to_owned() }
}

/// Why a command that we start cannot be held. `None` if the kernel's refusal to start it has another reason.
#[must_use]
pub fn why_not_held(error: &io::Error) -> Option<String> {
    if error.get_ref().is_some_and(|inner| inner.to_string() == NO_ROOM) {
        return Some(NO_ROOM.to_owned());
    }
    if error.raw_os_error() != Some(libc::EPERM) {
        return None;
    }
    let own = procfs::read("/proc/self/status").ok()?;
    Some(match ThreadStatus::parse(&own).tracer {
        0 => "the kernel lets trapline trace no process that it starts; a container or a filter of system calls may forbid it"
            .into(),
        tracer => format!(
            "{} ({tracer}) traces trapline and all that it starts, and a process has one tracer",
            living::comm(tracer)
        ),
    })
}

fn obstacle(pid: u32, theirs: &ThreadStatus) -> (String, &'static str) {
    const AS_ROOT: &str = "run trapline as root (it needs CAP_SYS_PTRACE)";
    const AS_USER: &str = "run trapline as that user or as root (CAP_SYS_PTRACE)";
    let own = procfs::read("/proc/self/status")
        .map_or_else(|_| ThreadStatus::default(), |t| ThreadStatus::parse(&t));
    let capable = own.cap_eff & CAP_SYS_PTRACE != 0;
    let (uid, gid) = fd::whoami();
    if capable {
        return match other_namespace(pid) {
            Some(true) => (
                "it lives in another user namespace, where our CAP_SYS_PTRACE counts for nothing".into(),
                "run trapline in that namespace or in its parent",
            ),
            _ => lsm(),
        };
    }
    if theirs.uids[..3].iter().any(|&id| id != uid) {
        let ids = theirs.uids;
        return (
            format!("it runs as uid {} (effective {}, saved {}), we are uid {uid}", ids[0], ids[1], ids[2]),
            AS_USER,
        );
    }
    if theirs.gids[..3].iter().any(|&id| id != gid) {
        let ids = theirs.gids;
        return (
            format!("it runs as gid {} (effective {}, saved {}), we are gid {gid}", ids[0], ids[1], ids[2]),
            AS_USER,
        );
    }
    // If the process is not dumpable, the files in /proc/PID belong to root (the directory does not).
    if uid != 0 && fs::metadata(living::folder(pid).join("stat")).is_ok_and(|m| m.uid() == 0) {
        return (
            "it is not dumpable (set-id or unreadable program, file capabilities, or PR_SET_DUMPABLE 0)"
                .into(),
            AS_ROOT,
        );
    }
    if theirs.cap_prm & !own.cap_prm != 0 {
        return ("it has capabilities that we lack, and we lack CAP_SYS_PTRACE".into(), AS_ROOT);
    }
    yama().unwrap_or_else(lsm)
}

/// What YAMA forbids, and what helps; `None` if it forbids nothing, or is not there.
pub(crate) fn yama() -> Option<(String, &'static str)> {
    let scope = fs::read_to_string("/proc/sys/kernel/yama/ptrace_scope").ok()?;
    let scope: u32 = scope.trim().parse().ok()?;
    let remedy = match scope {
        0 => return None,
        1 => {
            "start the program with `trapline … -- CMD`, run as root, or `sysctl kernel.yama.ptrace_scope=0`"
        }
        2 => "run trapline as root (CAP_SYS_PTRACE), or `sysctl kernel.yama.ptrace_scope=0`",
        _ => "tracing is off until the next boot with another kernel.yama.ptrace_scope",
    };
    let meaning = match scope {
        1 => "only descendants may be traced",
        2 => "only CAP_SYS_PTRACE may trace",
        _ => "no process may trace",
    };
    Some((format!("YAMA's kernel.yama.ptrace_scope is {scope}: {meaning}"), remedy))
}

/// The kernel's security modules, if it lists any.
pub(crate) fn lsm_names() -> Option<String> {
    let modules = fs::read_to_string("/sys/kernel/security/lsm").ok()?;
    Some(modules.trim().to_owned()).filter(|modules| !modules.is_empty())
}

fn lsm() -> (String, &'static str) {
    let named = match lsm_names() {
        Some(modules) => format!("a security module ({modules})"),
        None => "a security module".to_owned(),
    };
    (format!("{named} forbids it"), "look for its denial in the kernel log or audit log")
}

/// Whether it lives in another user namespace; `None` when we have no right to find out.
fn other_namespace(pid: u32) -> Option<bool> {
    let own = fs::read_link("/proc/self/ns/user").ok()?;
    fs::read_link(format!("/proc/{pid}/ns/user")).ok().map(|theirs| theirs != own)
}
