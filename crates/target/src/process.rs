//! A process that we may trace: opened once, asked often.
//!
//! Input: a pid. Output: facts from /proc, read and written bytes. Invariants: TGT-4 a process is known by pid and start
//! time, so a reused pid is never touched. Does not: stop anything.

use std::fs::{self, File};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};

use trapline_record::RemoteAddr;

use crate::error::TargetError;
use crate::maps::{self, FileId, FileOf, Mapping};
use crate::native::features;
use crate::permission;
use crate::status::{InCall, ThreadStatus};
use crate::sys::{fault, fd};

/// What the CPU offers generated code.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct CpuFeatures {
    /// x86-64: `rdpid` may be used.
    pub rdpid: bool,
    /// x86-64: `rdfsbase` may be used (AT_HWCAP2 bit 1).
    pub fsgsbase: bool,
    /// arm64: one instruction adds to memory (FEAT_LSE).
    pub lse: bool,
    /// arm64: there are vectors that a system call does not keep (SVE).
    pub sve: bool,
    /// Possible CPUs: one more than the highest number that a thread may run on.
    pub cpus: u32,
}

/// A live process.
#[derive(Debug)]
pub struct Process {
    pid: u32,
    start_time: u64,
    pidfd: OwnedFd,
    mem: File,
}

impl Process {
    /// Opens a process and checks that it can be traced.
    ///
    /// # Errors
    /// Names the exact obstacle.
    pub fn open(pid: u32) -> Result<Self, TargetError> {
        let status = permission::check_kind(pid)?;
        let start_time = start_time(pid).map_err(|e| gone_or(pid, "read its start time", e))?;
        let pidfd = fd::pidfd_open(pid).map_err(|e| gone_or(pid, "open a pidfd", e))?;
        let mem = File::options()
            .read(true)
            .write(true)
            .open(format!("/proc/{pid}/mem"))
            .map_err(|e| permission::explain(pid, &status, e))?;
        permission::check_program(pid)?;
        // A child that our own batch holds may be opened.
        let ours = || std::path::Path::new(&format!("/proc/self/task/{}", status.tracer)).exists();
        if status.tracer != 0 && !ours() {
            return Err(permission::traced(pid, status.tracer));
        }
        Ok(Self { pid, start_time, pidfd, mem })
    }
    /// Its pid in our namespace.
    #[must_use]
    pub const fn pid(&self) -> u32 {
        self.pid
    }
    /// Field 22 of /proc/PID/stat: clock ticks after boot.
    #[must_use]
    pub const fn start_time(&self) -> u64 {
        self.start_time
    }
    /// Whether the same process still runs (not a zombie, not a reused pid).
    #[must_use]
    pub fn alive(&self) -> bool {
        stat_fields(self.pid).is_ok_and(|stat| {
            !matches!(stat.first().map(String::as_str), Some("Z" | "X"))
                && field(&stat, 22) == Some(self.start_time)
        })
    }
    /// The error for a process that went away.
    pub(crate) fn gone(&self, how: &str) -> TargetError {
        TargetError::Gone { pid: self.pid, how: how.to_owned() }
    }
    fn text(&self, name: &str) -> Result<String, TargetError> {
        let bytes = fs::read(format!("/proc/{}/{name}", self.pid))
            .map_err(|e| gone_or(self.pid, &format!("read /proc/{}/{name}", self.pid), e))?;
        Ok(String::from_utf8_lossy(&bytes).into_owned())
    }
    /// The program's file, as a path in the target's namespace.
    ///
    /// # Errors
    /// When the process is gone.
    pub fn exe_path(&self) -> Result<PathBuf, TargetError> {
        fs::read_link(format!("/proc/{}/exe", self.pid))
            .map_err(|e| gone_or(self.pid, "read its program's path", e))
    }
    /// File name of the program, without directories.
    ///
    /// # Errors
    /// When the process is gone.
    pub fn exe_name(&self) -> Result<String, TargetError> {
        let path = self.exe_path()?;
        let name = path.file_name().unwrap_or(path.as_os_str()).to_string_lossy();
        Ok(name.strip_suffix(" (deleted)").unwrap_or(&name).to_owned())
    }
    /// Its mappings, in order of address.
    ///
    /// # Errors
    /// When the process is gone.
    pub fn maps(&self) -> Result<Vec<Mapping>, TargetError> {
        Ok(maps::parse(&self.text("maps")?))
    }
    /// Its thread ids.
    ///
    /// # Errors
    /// When the process is gone.
    pub fn threads(&self) -> Result<Vec<u32>, TargetError> {
        let dir = fs::read_dir(format!("/proc/{}/task", self.pid))
            .map_err(|e| gone_or(self.pid, "list its threads", e))?;
        Ok(dir.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok()).collect())
    }
    /// Whether a thread is the kernel's own, which never runs the program's code: io_uring's, for one.
    #[must_use]
    pub fn is_kernel_worker(&self, tid: u32) -> bool {
        /// PF_IO_WORKER and PF_USER_WORKER (linux/sched.h), as /proc shows them.
        const WORKERS: u64 = 0x10 | 0x4000;
        let Ok(stat) = self.text(&format!("task/{tid}/stat")) else { return false };
        let flags =
            stat.rsplit_once(')').and_then(|(_, rest)| rest.split_whitespace().nth(6)?.parse::<u64>().ok());
        flags.is_some_and(|flags| flags & WORKERS != 0)
    }
    /// The main thread's status.
    ///
    /// # Errors
    /// When the process is gone.
    pub fn status(&self) -> Result<ThreadStatus, TargetError> {
        self.thread_status(self.pid)
    }
    /// A thread's status.
    ///
    /// # Errors
    /// When the thread is gone.
    pub fn thread_status(&self, tid: u32) -> Result<ThreadStatus, TargetError> {
        Ok(ThreadStatus::parse(&self.text(&format!("task/{tid}/status"))?))
    }
    /// The status of the thread that asks; of use in our own process.
    ///
    /// # Errors
    /// When /proc cannot be read.
    pub fn status_of_caller(&self) -> Result<ThreadStatus, TargetError> {
        let text = fs::read("/proc/thread-self/status");
        let bytes = text.map_err(|e| gone_or(self.pid, "read /proc/thread-self/status", e))?;
        Ok(ThreadStatus::parse(&String::from_utf8_lossy(&bytes)))
    }
    /// What call a thread is in.
    ///
    /// # Errors
    /// When the thread is gone.
    pub fn in_call(&self, tid: u32) -> Result<InCall, TargetError> {
        let text = self.text(&format!("task/{tid}/syscall"))?;
        InCall::parse(&text).ok_or_else(|| self.gone("its state cannot be read"))
    }
    /// Nanoseconds that a thread has run on a CPU.
    ///
    /// # Errors
    /// When the thread is gone.
    pub fn run_time(&self, tid: u32) -> Result<u64, TargetError> {
        let text = self.text(&format!("task/{tid}/schedstat"))?;
        text.split(' ')
            .next()
            .and_then(|ns| ns.parse().ok())
            .ok_or_else(|| self.gone("its run time cannot be read"))
    }
    /// Reads memory.
    ///
    /// # Errors
    /// When not all bytes can be read.
    pub fn read(&self, addr: RemoteAddr, into: &mut [u8]) -> Result<(), TargetError> {
        self.mem.read_exact_at(into, addr.0).map_err(|e| self.memory_error("read", addr, into.len(), e))
    }
    /// Reads a word.
    ///
    /// # Errors
    /// When it cannot be read.
    pub fn read_u64(&self, addr: RemoteAddr) -> Result<u64, TargetError> {
        let mut word = [0; 8];
        self.read(addr, &mut word)?;
        Ok(u64::from_le_bytes(word))
    }
    /// Writes memory by one pwrite to /proc/PID/mem, whatever its protection.
    ///
    /// # Errors
    /// When not all bytes can be written.
    pub fn write_text(&self, addr: RemoteAddr, bytes: &[u8]) -> Result<(), TargetError> {
        match fault::point(|| self.mem.write_at(bytes, addr.0)) {
            Ok(n) if n == bytes.len() => Ok(()),
            Ok(_) => Err(self.memory_error("write", addr, bytes.len(), io::ErrorKind::WriteZero.into())),
            Err(error) => Err(self.memory_error("write", addr, bytes.len(), error)),
        }
    }
    fn memory_error(
        &self,
        what: &'static str,
        addr: RemoteAddr,
        len: usize,
        source: io::Error,
    ) -> TargetError {
        if self.alive() {
            TargetError::Memory { pid: self.pid, what, addr, len, source }
        } else {
            self.gone("it ended")
        }
    }
    /// Opens the file of a mapping, by map_files, else by path in the target's root with device and inode compared.
    ///
    /// # Errors
    /// When neither way gives the very file that is mapped.
    pub fn open_file_of(&self, mapping: &Mapping) -> Result<FileOf, TargetError> {
        let fail = |why: String| TargetError::File { path: mapping.path.clone().into(), why };
        let id = mapping.file.ok_or_else(|| fail("it is not a file".into()))?;
        let rooted = self.rooted(&mapping.path);
        let on_disk = fs::metadata(&rooted).ok();
        let same = on_disk
            .as_ref()
            .is_some_and(|m| m.ino() == id.inode && same_device(m.dev(), id, mapping, self.pid));
        let replaced = mapping.deleted || !same;
        let link = mapping.map_files_path(self.pid);
        if let Ok(file) = File::open(&link) {
            return Ok(FileOf { file, path: if replaced { link } else { rooted }, replaced });
        }
        if replaced {
            return Err(fail(
                "it was replaced on disk since the process mapped it; restart the program".into(),
            ));
        }
        let file = File::open(&rooted).map_err(|e| fail(e.to_string()))?;
        Ok(FileOf { file, path: rooted, replaced })
    }
    /// A path of the target's, as we can open it.
    #[must_use]
    pub fn rooted(&self, path: &str) -> PathBuf {
        Path::new(&format!("/proc/{}/root", self.pid)).join(path.trim_start_matches('/'))
    }
    /// What generated code may use.
    ///
    /// # Errors
    /// When the process is gone.
    pub fn features(&self) -> Result<CpuFeatures, TargetError> {
        const AT_HWCAP: u64 = 16;
        const AT_HWCAP2: u64 = 26;
        let auxv =
            fs::read(format!("/proc/{}/auxv", self.pid)).map_err(|e| gone_or(self.pid, "read auxv", e))?;
        let value = |wanted: u64| {
            let mut pairs = auxv.chunks_exact(16).map(|pair| (word(&pair[..8]), word(&pair[8..])));
            pairs.find_map(|(key, value)| (key == wanted).then_some(value)).unwrap_or(0)
        };
        Ok(features::features(value(AT_HWCAP), value(AT_HWCAP2), possible_cpus()))
    }
    /// The break: where the heap ends and will grow.
    ///
    /// # Errors
    /// When the process is gone.
    pub fn heap_end(&self) -> Result<Option<RemoteAddr>, TargetError> {
        if let Some(heap) = self.maps()?.iter().rev().find(|m| m.path == "[heap]") {
            return Ok(Some(heap.end));
        }
        let stat = stat_fields(self.pid).map_err(|e| gone_or(self.pid, "read its break", e))?;
        Ok(field(&stat, 47).filter(|&brk| brk != 0).map(RemoteAddr))
    }
    /// Where the main thread's stack pointer stood when the program began, at the number of its arguments.
    ///
    /// # Errors
    /// When the process is gone, or does not say.
    pub fn stack_start(&self) -> Result<Option<RemoteAddr>, TargetError> {
        let stat = stat_fields(self.pid).map_err(|e| gone_or(self.pid, "read its stack's start", e))?;
        Ok(field(&stat, 28).filter(|&start| start != 0).map(RemoteAddr))
    }
    /// A pidfd, for `poll`: readable when the process has exited.
    #[must_use]
    pub fn pidfd(&self) -> BorrowedFd<'_> {
        self.pidfd.as_fd()
    }
}

fn word(bytes: &[u8]) -> u64 {
    bytes.iter().rev().fold(0, |word, &byte| word << 8 | u64::from(byte))
}

/// Some file systems show one device in maps and another in stat: ask the mapping itself when we may.
fn same_device(dev: u64, id: FileId, mapping: &Mapping, pid: u32) -> bool {
    dev == id.dev
        || fs::metadata(mapping.map_files_path(pid)).is_ok_and(|m| m.dev() == dev && m.ino() == id.inode)
}

/// ESRCH and ENOENT mean that the process is gone.
pub(crate) fn gone_or(pid: u32, what: &str, error: io::Error) -> TargetError {
    match error.raw_os_error() {
        Some(libc::ESRCH | libc::ENOENT) => TargetError::Gone { pid, how: "it ended".to_owned() },
        _ => TargetError::system(pid, what, error),
    }
}

/// Fields of /proc/PID/stat from the third on.
fn stat_fields(pid: u32) -> io::Result<Vec<String>> {
    let text = String::from_utf8_lossy(&fs::read(format!("/proc/{pid}/stat"))?).into_owned();
    let rest = text.rsplit_once(')').map_or("", |(_, rest)| rest);
    Ok(rest.split_whitespace().map(str::to_owned).collect())
}

/// Field `number` of stat, counted from 1 as proc(5) does.
fn field(stat: &[String], number: usize) -> Option<u64> {
    stat.get(number - 3)?.parse().ok()
}

/// Field 22 of a process's stat.
pub(crate) fn start_time(pid: u32) -> io::Result<u64> {
    field(&stat_fields(pid)?, 22).ok_or_else(|| io::ErrorKind::InvalidData.into())
}

pub(crate) fn possible_cpus() -> u32 {
    let text = fs::read_to_string("/sys/devices/system/cpu/possible").unwrap_or_default();
    let last = text.trim().rsplit([',', '-']).next().and_then(|n| n.parse::<u32>().ok());
    last.map_or_else(|| std::thread::available_parallelism().map_or(1, |n| n.get() as u32), |last| last + 1)
}
