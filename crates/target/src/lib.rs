//! A live process seen from outside: threads, maps, memory, remote calls, stops. The only user of ptrace and
//! perf_event_open.
//!
//! Input: a pid and what to do with it. Output: facts from /proc, bytes, a shared mapping, counts of the kernel's own
//! probes. Invariants: TGT-1 at every instant of a remote call the tracer may die and the thread restores itself;
//! TGT-4 no byte that the program may read lies under a frame while a thread can run;
//! TGT-2 no stop is consumed by waiting, so a signal is never lost with the tracer; TGT-3 a call that we interrupt is
//! restarted, and one that had a finite timeout is counted. Does not: decide what is patched, or know what a patch is.
#![deny(unsafe_code)]
#![cfg_attr(
    not(target_arch = "x86_64"),
    allow(
        dead_code,
        reason = "what seizes other processes is written for x86-64; here it is our own process alone"
    )
)]

#[cfg(target_arch = "aarch64")]
mod aarch64;
#[cfg(target_arch = "x86_64")]
mod batch;
mod bell;
#[cfg(target_arch = "x86_64")]
mod calls;
#[cfg(target_arch = "x86_64")]
mod choose;
mod clock;
mod error;
#[cfg(target_arch = "x86_64")]
pub mod filter;
mod find;
#[cfg(target_arch = "x86_64")]
mod follow;
#[cfg(target_arch = "x86_64")]
mod frame;
#[cfg(target_arch = "x86_64")]
mod function;
#[cfg(target_arch = "x86_64")]
mod gadget;
mod interrupt;
pub mod kernel;
#[cfg(target_arch = "x86_64")]
mod launch;
mod maps;
mod own;
#[cfg(target_arch = "x86_64")]
mod park;
pub mod perf;
mod permission;
mod process;
#[cfg(target_arch = "x86_64")]
mod regs;
#[cfg(target_arch = "x86_64")]
mod remote;
#[cfg(target_arch = "x86_64")]
mod room;
#[cfg(target_arch = "x86_64")]
mod seizing;
#[cfg(target_arch = "x86_64")]
mod serve;
#[cfg(target_arch = "x86_64")]
mod session;
mod shared;
mod status;
#[cfg(target_arch = "x86_64")]
mod stop;
mod sys;
mod watch;
#[cfg(target_arch = "x86_64")]
mod x86_64;

#[cfg(target_arch = "aarch64")]
pub use aarch64::{Spare, is_emulated};
#[cfg(target_arch = "x86_64")]
pub use batch::{Batch, BatchOptions, BatchReport, Event, Handler, Served};
pub use bell::Bell;
pub use clock::{TickClock, time_of_day};
pub use error::TargetError;
pub use find::{by_mapped_file, by_name, users_of};
#[cfg(target_arch = "x86_64")]
pub use follow::{Followed, Follower};
pub use interrupt::{Interrupt, Interrupts};
#[cfg(target_arch = "x86_64")]
pub use launch::Launched;
pub use maps::{FileId, FileOf, Mapping, Perms};
pub use own::OwnCaller;
#[cfg(target_arch = "x86_64")]
pub use park::Parked;
#[cfg(target_arch = "x86_64")]
pub use process::CpuFeatures;
pub use process::Process;
#[cfg(target_arch = "x86_64")]
pub use regs::Regs;
#[cfg(target_arch = "x86_64")]
pub use remote::{RemoteCaller, RemoteOptions, RemoteReport, Rseq};
pub use shared::SharedMap;
pub use status::{InCall, Seccomp, ThreadStatus};
#[cfg(target_arch = "x86_64")]
pub use stop::{StopReport, StoppedAll};
pub use watch::{MapWatcher, NewMapping};
#[cfg(target_arch = "x86_64")]
pub use x86_64::ExtendedState;
