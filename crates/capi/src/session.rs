//! Other processes: counts and durations, from attach to detach.
//!
//! In: processes and probes. Out: a session, and its reports. Does not: wait, print, launch commands, or read
//! what a pointer leads to (`functions`).

use std::ffi::c_char;
use std::time::Duration;

use trapline::{Builder, ProbeSpec};

use crate::error::{Error, Fault};
use crate::pointers::Growing;
use crate::report::Report;

/// Follow fork and exec.
pub const TRAPLINE_OPTION_FOLLOW: u32 = 1;
/// Stop all threads while code changes.
pub const TRAPLINE_OPTION_STRICT: u32 = 2;
/// The processes' SIGSEGV and SIGBUS handlers look no address up, so instructions that may fault can be
/// moved.
pub const TRAPLINE_OPTION_FAULTS_ARE_FATAL: u32 = 4;
/// Of recursive calls, time only the outermost.
pub const TRAPLINE_OPTION_OUTERMOST: u32 = 8;

/// Count by kernel uprobes where no jump fits. A hit there costs microseconds; without this such sites are
/// refused.
pub const TRAPLINE_OPTION_KERNEL_UPROBES: u32 = 16;

const FLAGS: u32 = TRAPLINE_OPTION_FOLLOW
    | TRAPLINE_OPTION_STRICT
    | TRAPLINE_OPTION_FAULTS_ARE_FATAL
    | TRAPLINE_OPTION_OUTERMOST
    | TRAPLINE_OPTION_KERNEL_UPROBES;

/// What to trace, and how.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// sizeof; set by the caller.
    pub size: usize,
    /// Pids of processes. If there are none: every process that maps a file which a probe names.
    pub pids: *const u32,
    /// Number of pids.
    pub pids_len: usize,
    /// Probes, in bpftrace's words: "libssl:SSL_*", "uretprobe:/bin/x:f", "usdt:libc:libc:setjmp".
    pub probes: *const *const c_char,
    /// Number of probes.
    pub probes_len: usize,
    /// Time only calls that take at least this long.
    pub at_least_ns: u64,
    /// TRAPLINE_OPTION_FOLLOW and so on.
    pub flags: u32,
    /// Zero.
    pub reserved: u32,
}

impl Growing for Options {
    const NAME: &'static str = "trapline_options";
    const FIRST: usize = 56;
}

/// Probes at work in other processes. Only the thread that started a session may use it: for the kernel, that
/// thread is the tracer.
#[derive(Debug)]
pub struct Session(trapline::Session);

impl Options {
    /// Fails if it asks for what this version does not know.
    pub(crate) fn check_flags(&self) -> Result<(), Fault> {
        if self.flags & !FLAGS != 0 || self.reserved != 0 {
            let unknown = format!("flags {:#x}, reserved {:#x}", self.flags & !FLAGS, self.reserved);
            return Err(Fault::new(Error::UnknownFlag, format!("trapline_options: unknown {unknown}")));
        }
        Ok(())
    }
    /// The session that it describes, with these processes and probes.
    pub(crate) fn builder<'a>(
        &self,
        pids: &[u32],
        probes: impl Iterator<Item = Result<&'a str, Fault>>,
    ) -> Result<Builder, Fault> {
        let has = |flag: u32| self.flags & flag != 0;
        let mut builder = trapline::Session::builder()
            .follow(has(TRAPLINE_OPTION_FOLLOW))
            .strict(has(TRAPLINE_OPTION_STRICT))
            .faults_are_fatal(has(TRAPLINE_OPTION_FAULTS_ARE_FATAL))
            .kernel_uprobes(has(TRAPLINE_OPTION_KERNEL_UPROBES))
            .outermost(has(TRAPLINE_OPTION_OUTERMOST))
            .at_least(Duration::from_nanos(self.at_least_ns));
        for &pid in pids {
            builder = builder.pid(pid);
        }
        let mut specs = Vec::new();
        for probe in probes {
            let spec: Result<ProbeSpec, _> = probe?.parse();
            specs.push(spec.map_err(trapline::Error::from)?);
        }
        Ok(builder.probes(specs))
    }
}

impl Session {
    pub(crate) const fn new(session: trapline::Session) -> Self {
        Self(session)
    }
    /// Returns whether anything is left to trace.
    pub(crate) fn poll(&mut self) -> bool {
        self.0.poll()
    }
    /// A report since attach.
    pub(crate) fn report(&mut self) -> Report {
        Report::new(self.0.report(), self.0.take_notices())
    }
    /// Takes all patches out. Returns how to make the last report.
    pub(crate) fn detach(self) -> impl FnOnce() -> Report {
        let finished = self.0.detach();
        move || Report::new(finished.reports, finished.summary.notices)
    }
}

#[cfg(test)]
mod tests {
    use super::{Growing as _, Options};
    use std::mem::{offset_of, size_of};

    /// Programs were compiled with these offsets, so they must stay.
    #[test]
    fn the_first_versions_fields_stay_where_they_are() {
        let fields = [
            offset_of!(Options, size),
            offset_of!(Options, pids),
            offset_of!(Options, pids_len),
            offset_of!(Options, probes),
            offset_of!(Options, probes_len),
            offset_of!(Options, at_least_ns),
            offset_of!(Options, flags),
            offset_of!(Options, reserved),
            Options::FIRST,
        ];
        assert_eq!(fields, [0, 8, 16, 24, 32, 40, 48, 52, 56]);
        assert!(size_of::<Options>() >= Options::FIRST);
    }
}
