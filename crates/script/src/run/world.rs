//! What a script can learn of the world and do to it.
//!
//! In: nothing. Out: traits and plain data. Does not: implement them.

use std::rc::Rc;

use crate::calls::Meaning;
use crate::memory::{FileVariable, Memory};
use crate::value::StackMode;

/// Where output goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stream {
    /// What the script writes.
    Output,
    /// Messages about the script.
    Error,
}

/// A clock.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Clock {
    /// Since the system began, without time asleep.
    Monotonic,
    /// Since the system began.
    Boot,
    /// Atomic time.
    Tai,
    /// Universal time.
    Wall,
}

/// All that an interpreter asks for.
pub trait World {
    /// Writes bytes.
    fn write(&mut self, stream: Stream, bytes: &[u8]);
    /// The time of a clock in nanoseconds.
    fn now(&mut self, clock: Clock) -> u64;
    /// A number of the system or of our process, such as the CPU or the user; `None` if it cannot be known.
    fn number(&mut self, of: Meaning) -> Option<u64>;
    /// The begin of a file.
    fn file(&mut self, path: &str, most: u64) -> Result<Vec<u8>, String>;
    /// What a command of the shell writes.
    fn command(&mut self, text: &str) -> Result<Vec<u8>, String>;
    /// Sends a signal to a process.
    fn signal(&mut self, pid: u32, signal: i32) -> Result<(), String>;
    /// The name of a user.
    fn user(&mut self, uid: u32) -> Option<String>;
    /// The paths of a control group.
    fn cgroup_path(&mut self, id: u64) -> String;
    /// The name of a process's first thread, or of its parent's; `?` if there is no such process any more.
    fn name_of_process(&mut self, _pid: u32, _parent: bool) -> Vec<u8> {
        b"?".to_vec()
    }
    /// The symbol of an address in a process.
    fn symbol(&mut self, pid: u32, address: u64) -> String;
    /// The text of a stack.
    fn stack(&self, frames: &[u64], mode: StackMode) -> Vec<u8>;
    /// Seconds by which local time is ahead at a moment.
    fn ahead(&self, seconds: i64) -> i32;
}

/// What happened, as a block sees it.
#[derive(Debug, Clone, Default)]
pub struct Hit {
    /// The probe, as it was written.
    pub probe: String,
    /// The sort of probe.
    pub sort: &'static str,
    /// The function.
    pub func: String,
    /// The process.
    pub pid: u32,
    /// The thread.
    pub tid: u32,
    /// The thread's name.
    pub comm: Vec<u8>,
    /// When it was, by [`Clock::Boot`]; `None` for now.
    pub nsecs: Option<u64>,
    /// Arguments.
    pub args: Vec<u64>,
    /// Registers, by the names that scripts have for them.
    pub registers: Vec<(Rc<str>, u64)>,
    /// Variables that were asked for, and where they are.
    pub variables: Vec<(FileVariable, u64)>,
    /// What the function returned.
    pub retval: u64,
    /// What was read of the program's memory.
    pub memory: Memory,
    /// Return addresses, the innermost first.
    pub stack: Vec<u64>,
}
