//! A process that we may trace: opened once, asked often.

use trapline_record::RemoteAddr;

use crate::error::TargetError;
use crate::maps::{FileOf, Mapping};
use crate::status::{InCall, ThreadStatus};

/// What the CPU offers generated code.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct CpuFeatures {
    /// `rdpid` may be used.
    pub rdpid: bool,
    /// `rdfsbase` may be used (AT_HWCAP2 bit 1).
    pub fsgsbase: bool,
    /// Possible CPUs: one more than the highest number that a thread may run on.
    pub cpus: u32,
}

/// A live process.
#[derive(Debug)]
pub struct Process {
    pid: u32,
    start_time: u64,
}

impl Process {
    /// Opens a process and checks that it can be traced.
    ///
    /// # Errors
    /// Names the exact obstacle.
    pub fn open(pid: u32) -> Result<Self, TargetError> {
        let _ = pid;
        todo!()
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
        todo!()
    }
    /// File name of the program, without directories.
    ///
    /// # Errors
    /// When the process is gone.
    pub fn exe_name(&self) -> Result<String, TargetError> {
        todo!()
    }
    /// Its mappings, in order of address.
    ///
    /// # Errors
    /// When the process is gone.
    pub fn maps(&self) -> Result<Vec<Mapping>, TargetError> {
        todo!()
    }
    /// Its thread ids.
    ///
    /// # Errors
    /// When the process is gone.
    pub fn threads(&self) -> Result<Vec<u32>, TargetError> {
        todo!()
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
        let _ = tid;
        todo!()
    }
    /// What call a thread is in.
    ///
    /// # Errors
    /// When the thread is gone.
    pub fn in_call(&self, tid: u32) -> Result<InCall, TargetError> {
        let _ = tid;
        todo!()
    }
    /// Nanoseconds that a thread has run on a CPU.
    ///
    /// # Errors
    /// When the thread is gone.
    pub fn run_time(&self, tid: u32) -> Result<u64, TargetError> {
        let _ = tid;
        todo!()
    }
    /// Reads memory.
    ///
    /// # Errors
    /// When not all bytes can be read.
    pub fn read(&self, addr: RemoteAddr, into: &mut [u8]) -> Result<(), TargetError> {
        let _ = (addr, into);
        todo!()
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
        let _ = (addr, bytes);
        todo!()
    }
    /// Opens the file of a mapping, by map_files, else by path in the target's root with device and inode compared.
    ///
    /// # Errors
    /// When neither way gives the very file that is mapped.
    pub fn open_file_of(&self, mapping: &Mapping) -> Result<FileOf, TargetError> {
        let _ = mapping;
        todo!()
    }
    /// What generated code may use.
    ///
    /// # Errors
    /// When the process is gone.
    pub fn features(&self) -> Result<CpuFeatures, TargetError> {
        todo!()
    }
    /// The break: where the heap ends and will grow.
    ///
    /// # Errors
    /// When the process is gone.
    pub fn heap_end(&self) -> Result<Option<RemoteAddr>, TargetError> {
        todo!()
    }
    /// A pidfd, for `poll`: readable when the process has exited.
    #[must_use]
    pub fn pidfd(&self) -> std::os::fd::BorrowedFd<'_> {
        todo!()
    }
}
