//! A process that we may trace: opened once, read often.
//!
//! Input: a pid. Output: facts from /proc, and bytes that are read or written. Invariants: PID-1 a process is
//! known by pid and start time, so a reused pid is never touched. Does not: stop anything.

use std::convert::Infallible;
use std::ffi::OsStr;
use std::fs::{self, File};
use std::io;
use std::ops::Range;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use trapline_record::RemoteAddr;

use crate::auxv::{AT_HWCAP, AT_HWCAP2, Auxv};
use crate::error::{TargetError, gone_or};
use crate::features::CpuFeatures;
use crate::host::FollowerThread;
use crate::living::{self, Stat};
use crate::maps::{self, DELETED, Mapping};
use crate::numbers::features;
use crate::permission;
use crate::procfs;
use crate::rendezvous::Rendezvous;
use crate::spare;
use crate::status::{InCall, Seccomp, ThreadStatus};
use crate::sys::wait::within;
use crate::sys::{fault, fd};

/// A live process.
#[derive(Debug)]
pub struct Process {
    pid: u32,
    start_time: u64,
    pidfd: OwnedFd,
    mem: File,
    entry_wait: Option<Range<u64>>,
    follower: Option<FollowerThread>,
}

impl Process {
    /// Opens a process and checks that it can be traced.
    ///
    /// # Errors
    /// The error names the exact obstacle.
    pub fn open(pid: u32) -> Result<Self, TargetError> {
        spare::keep().map_err(|e| TargetError::system(pid, "keep descriptors to clean up with", e))?;
        const LOOKS: u32 = 8;
        let is_there = |path: String| Path::new(&path).exists();
        let mut last = 0;
        for _ in 0..LOOKS {
            let (process, tracer) = Self::open_traced(pid)?;
            last = tracer;
            // A child that our own batch holds may be opened.
            if tracer == 0 || is_there(format!("/proc/self/task/{tracer}")) {
                return Ok(process);
            }
            // A batch of another Trapline may have ended meanwhile.
            if is_there(format!("/proc/{tracer}")) {
                return Err(permission::traced(pid, tracer));
            }
        }
        Err(permission::traced(pid, last))
    }
    /// Names the thread that may follow the process. Batches run there while it does.
    #[must_use]
    pub fn with_follower(self, thread: FollowerThread) -> Self {
        Self { follower: Some(thread), ..self }
    }
    pub(crate) const fn follower(&self) -> Option<&FollowerThread> {
        self.follower.as_ref()
    }
    /// Opens a forked child of the process, which the same thread may follow.
    ///
    /// # Errors
    /// As [`Self::open`].
    pub fn open_child(&self, pid: u32) -> Result<Self, TargetError> {
        Ok(Self { follower: self.follower.clone(), ..Self::open(pid)? })
    }
    /// Opens a process only to read its memory. Another tracer does not prevent that.
    ///
    /// # Errors
    /// As [`Self::open`], except that another tracer is no error.
    pub fn look_into(pid: u32) -> Result<Self, TargetError> {
        Ok(Self::open_traced(pid)?.0)
    }
    /// Opens a process; also returns the thread that traces it, 0 if there is none.
    fn open_traced(pid: u32) -> Result<(Self, u32), TargetError> {
        let status = permission::check_kind(pid)?;
        let start_time = living::start_time(pid).map_err(|e| gone_or(pid, "read its start time", e))?;
        let pidfd = fd::pidfd_open(pid).map_err(|e| gone_or(pid, "open a pidfd", e))?;
        let mem = File::options()
            .read(true)
            .write(true)
            .open(living::folder(pid).join("mem"))
            .map_err(|e| permission::explain(pid, &status, e))?;
        permission::check_program(pid)?;
        Ok((Self { pid, start_time, pidfd, mem, entry_wait: None, follower: None }, status.tracer))
    }
    /// Its pid in our namespace.
    #[must_use]
    pub const fn pid(&self) -> u32 {
        self.pid
    }
    /// The same process, with the code in which it waits at its entry point.
    pub(crate) fn with_entry_wait(self, code: Range<u64>) -> Self {
        Self { entry_wait: Some(code), ..self }
    }
    /// Code that only a thread at the program's entry point executes, if the process was opened while it
    /// waited there ([`Parked::process`](crate::Parked::process)). This stays true when it has gone on.
    #[must_use]
    pub const fn entry_wait(&self) -> Option<&Range<u64>> {
        self.entry_wait.as_ref()
    }
    /// Its start time: field 22 of /proc/PID/stat, in clock ticks after boot.
    #[must_use]
    pub const fn start_time(&self) -> u64 {
        self.start_time
    }
    /// Whether the same process still runs (any thread of it, not a reused pid).
    #[must_use]
    pub fn alive(&self) -> bool {
        living::start_time(self.pid).is_ok_and(|start| start == self.start_time) && living::runs(self.pid)
    }
    /// Waits until it has ended with all its threads, for at most `at_most`; returns whether it has. A process
    /// that is killed loses its memory first.
    #[must_use]
    pub fn ends_within(&self, at_most: Duration) -> bool {
        fd::ends_within(self.pidfd.as_fd(), at_most)
    }
    /// Whether the memory that it had when it was opened is gone. A process that ends loses it first; one that
    /// executes a program has other memory.
    #[must_use]
    pub fn has_lost_memory(&self) -> bool {
        // The kernel reads nothing from memory that is gone. Address 0 of other memory is an error.
        matches!(self.mem.read_at(&mut [0], 0), Ok(0))
    }
    /// The same; waits for it while all threads are ending, for at most `at_most`. A thread that was killed
    /// does not show that for a moment, so it lives only if it does at all looks of some milliseconds.
    #[must_use]
    pub fn loses_memory(&self, at_most: Duration) -> bool {
        const LIVES: Duration = Duration::from_millis(5);
        let mut seen_alive = None;
        let mut has_lost = false;
        let Ok(_) = within(at_most, || {
            has_lost = self.has_lost_memory();
            let lives = !has_lost && !living::is_ending(self.pid);
            seen_alive = seen_alive.filter(|_| lives).or_else(|| lives.then(Instant::now));
            Ok::<_, Infallible>(has_lost || seen_alive.is_some_and(|since| since.elapsed() >= LIVES))
        });
        has_lost
    }
    /// The signal that ended it, if it has ended and the signal is known: from the zombie, or from the pidfd.
    #[must_use]
    pub fn ended_by(&self) -> Option<i32> {
        const STATUS: usize = 52;
        let zombie = || {
            let stat = living::stat(self.pid).ok()?;
            let ours = stat.has_ended() && stat.field(22) == Some(self.start_time);
            stat.field(STATUS).filter(|_| ours)
        };
        let status = zombie().or_else(|| fd::exit_status(self.pidfd.as_fd()).map(|status| status as u64))?;
        Some((status & 0x7f) as i32).filter(|signal| *signal != 0)
    }
    /// The folder of /proc that shows it at this moment. It is another thread's if the main thread has ended.
    #[must_use]
    pub fn folder(&self) -> PathBuf {
        living::folder(self.pid)
    }
    pub(crate) fn stat(&self, what: &str) -> Result<Stat, TargetError> {
        Stat::read(&self.folder()).map_err(|e| gone_or(self.pid, what, e))
    }
    /// Calls `read` with the folder that shows the process: the main thread's; once that has ended, another thread's.
    /// `read` must fail where a folder shows nothing.
    pub(crate) fn look<T>(
        &self,
        what: &str,
        read: impl Fn(&Path) -> io::Result<T>,
    ) -> Result<T, TargetError> {
        let mut folder = PathBuf::from(format!("/proc/{}", self.pid));
        loop {
            let error = match read(&folder) {
                Ok(seen) => return Ok(seen),
                Err(error) => error,
            };
            // The thread to which the folder belongs may have ended.
            let shows = self.folder();
            if shows == folder {
                return Err(gone_or(self.pid, what, error));
            }
            folder = shows;
        }
    }
    /// The error for a process that is gone.
    pub(crate) fn gone(&self, how: &str) -> TargetError {
        TargetError::Gone { pid: self.pid, how: how.to_owned() }
    }
    fn bytes(&self, name: &str) -> Result<Vec<u8>, TargetError> {
        procfs::read(format!("/proc/{}/{name}", self.pid))
            .map_err(|e| gone_or(self.pid, &format!("read /proc/{}/{name}", self.pid), e))
    }
    fn text(&self, name: &str) -> Result<String, TargetError> {
        Ok(String::from_utf8_lossy(&self.bytes(name)?).into_owned())
    }
    /// The program's file, as a path in the target's namespace, even if it is no longer there.
    ///
    /// # Errors
    /// When the process is gone.
    pub fn exe_path(&self) -> Result<PathBuf, TargetError> {
        let path = self.look("read its program's path", |folder| fs::read_link(folder.join("exe")))?;
        let Some(bare) = path.as_os_str().as_bytes().strip_suffix(DELETED.as_bytes()) else {
            return Ok(path);
        };
        // A file's own name may end like that.
        let id = |path: &Path| fs::metadata(path).map(|meta| (meta.dev(), meta.ino())).ok();
        let mapped = id(&self.folder().join("exe"));
        let is_name = mapped.is_some() && self.seen_as(&path).iter().any(|seen| id(seen) == mapped);
        Ok(if is_name { path } else { OsStr::from_bytes(bare).into() })
    }
    /// File name of the program, without directories.
    ///
    /// # Errors
    /// When the process is gone.
    pub fn exe_name(&self) -> Result<String, TargetError> {
        let path = self.exe_path()?;
        Ok(path.file_name().unwrap_or(path.as_os_str()).to_string_lossy().into_owned())
    }
    /// Its mappings, in order of address.
    ///
    /// # Errors
    /// When the process is gone, or has lost its memory and is about to be gone.
    pub fn maps(&self) -> Result<Vec<Mapping>, TargetError> {
        let text = self.look("read its mappings", |folder| {
            let read = || spare::with(|| maps::read_whole(File::open(folder.join("maps"))?));
            // A process that executes a program meanwhile has other mappings.
            read().or_else(|_| read())
        })?;
        let mut maps = maps::parse(&text);
        for mapping in maps.iter_mut().filter(|mapping| mapping.deleted) {
            self.look_at_name(mapping);
        }
        Ok(maps)
    }
    /// The ids of the program's threads. Threads in which the kernel works for the program are left out.
    ///
    /// # Errors
    /// When the process is gone.
    pub fn threads(&self) -> Result<Vec<u32>, TargetError> {
        living::threads(self.pid).map_err(|e| gone_or(self.pid, "list its threads", e))
    }
    /// The main thread's status, or another thread's if the main thread has ended.
    ///
    /// # Errors
    /// When the process is gone.
    pub fn status(&self) -> Result<ThreadStatus, TargetError> {
        let main = self.thread_status(self.pid);
        match &main {
            Ok(status) if !matches!(status.state, 'Z' | 'X') => main,
            _ => living::living(self.pid).map_or(main, |tid| self.thread_status(tid)),
        }
    }
    /// A thread's status.
    ///
    /// # Errors
    /// When the thread is gone.
    pub fn thread_status(&self, tid: u32) -> Result<ThreadStatus, TargetError> {
        Ok(ThreadStatus::parse(&self.bytes(&format!("task/{tid}/status"))?))
    }
    /// The most restricted of the threads that have a seccomp mode, if there is one. Filters belong to single
    /// threads, so all are looked at.
    ///
    /// # Errors
    /// When the process is gone.
    pub fn restricted(&self) -> Result<Option<(u32, Seccomp)>, TargetError> {
        // A thread that has ended makes no calls.
        let statuses = self.threads()?.into_iter().filter_map(|tid| self.thread_status(tid).ok());
        let restricted = statuses.filter(|status| status.seccomp != Seccomp::Off);
        let most = restricted.max_by_key(|status| status.seccomp == Seccomp::Strict);
        Ok(most.map(|status| (status.tid, status.seccomp)))
    }
    /// The status of the calling thread; for use in our own process.
    ///
    /// # Errors
    /// When /proc cannot be read.
    pub fn status_of_caller(&self) -> Result<ThreadStatus, TargetError> {
        let text = procfs::read("/proc/thread-self/status");
        let bytes = text.map_err(|e| gone_or(self.pid, "read /proc/thread-self/status", e))?;
        Ok(ThreadStatus::parse(&bytes))
    }
    /// Whether another process runs on its memory: a child of `vfork`, or of `clone` with CLONE_VM. True also
    /// if that cannot be found out.
    #[must_use]
    pub fn is_shared(&self) -> bool {
        if self.threads().is_err() {
            return true;
        }
        living::children(self.pid).into_iter().any(|child| match fd::same_memory(self.pid, child) {
            Ok(same) => same,
            // It is gone.
            Err(error) => error.raw_os_error() != Some(libc::ESRCH),
        })
    }
    /// The system call that a thread is in.
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
            // Nothing at all where the memory is gone, a part at the end of a mapping.
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
        match (self.has_lost_memory(), self.alive()) {
            (false, true) => TargetError::Memory { pid: self.pid, what, addr, len, source },
            (true, true) => self.gone("it ended or executed another program"),
            (_, false) => self.gone("it ended"),
        }
    }
    /// Where its loader tells of libraries: the address of the function, and that of the state in its `r_debug`.
    /// `None` if it has no such loader.
    #[must_use]
    pub fn rendezvous(&self) -> Option<(RemoteAddr, RemoteAddr)> {
        let loader = self.look("read auxv", Auxv::in_folder).ok()?.loader()?;
        let found = Rendezvous::of(&self.mem, loader)?;
        Some((RemoteAddr(found.at), RemoteAddr(found.state())))
    }
    /// The features that generated code may use.
    ///
    /// # Errors
    /// When the process is gone.
    pub fn features(&self) -> Result<CpuFeatures, TargetError> {
        let auxv = self.look("read auxv", Auxv::in_folder)?;
        let value = |key: u64| auxv.word(key).unwrap_or(0);
        Ok(features(value(AT_HWCAP), value(AT_HWCAP2), possible_cpus()))
    }
    /// The main thread's stack pointer when the program began. It points at the number of arguments.
    ///
    /// # Errors
    /// When the process is gone, or the value cannot be read.
    pub fn stack_start(&self) -> Result<Option<RemoteAddr>, TargetError> {
        Ok(self.stat("read its stack's start")?.field(28).filter(|&start| start != 0).map(RemoteAddr))
    }
    /// A copy of one of the target's descriptors.
    pub(crate) fn descriptor(&self, number: i32) -> io::Result<OwnedFd> {
        fd::pidfd_getfd(self.pidfd.as_fd(), number).or_else(|error| {
            // A main thread that has ended has no descriptors; another thread has the same ones.
            let other = living::living(self.pid).filter(|&tid| tid != self.pid).ok_or(error)?;
            fd::pidfd_getfd(fd::pidfd_of_thread(other)?.as_fd(), number)
        })
    }
}

/// Number of CPUs that may ever be online. The kernel fixes it when it starts.
pub(crate) fn possible_cpus() -> u32 {
    static POSSIBLE: OnceLock<u32> = OnceLock::new();
    *POSSIBLE.get_or_init(|| {
        let text = procfs::text("/sys/devices/system/cpu/possible").unwrap_or_default();
        let last = text.trim().rsplit([',', '-']).next().and_then(|n| n.parse::<u32>().ok());
        last.map_or_else(
            || std::thread::available_parallelism().map_or(1, |n| n.get() as u32),
            |last| last + 1,
        )
    })
}
