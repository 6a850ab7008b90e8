//! The kernel's records as values.
//!
//! In: a record's type and body, and the fields that were requested for it. Out: [`Record`]. The other side
//! of a shared ring is not trusted: every length is checked, and what does not fit is [`Record::Malformed`].
//! Layout: perf_event_open(2).

use crate::native::{REGISTERS, user_regs};
pub use crate::trap_state::UserRegs;

const LOST: u32 = 2;
const COMM: u32 = 3;
const EXIT: u32 = 4;
const FORK: u32 = 7;
const SAMPLE: u32 = 9;
/// Bytes at the end of a task's record: process and thread, time, identifier.
const TRAILER: usize = 24;
/// Limit for a call chain; the kernel cuts longer ones already (`perf_event_max_stack`).
const MAX_CHAIN: u64 = 4096;
/// `PERF_RECORD_MISC_COMM_EXEC`.
const MISC_EXEC: u16 = 1 << 13;
/// `PERF_CONTEXT_MAX`: entries of a call chain from this value on are markers, not addresses.
const CONTEXT: u64 = -4095_i64 as u64;

/// What samples hold.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Layout {
    /// Whether they hold user registers.
    pub registers: bool,
    /// Whether they hold the call chain.
    pub stack: bool,
    /// Identifiers of the events with samples of what the BPF program read.
    pub value_ids: Vec<u64>,
}

/// One trap.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Sample {
    /// The event, or the one that it was inherited from.
    pub id: u64,
    /// The address behind the access (x86-64), or of it (arm64); in the kernel if the kernel made the access.
    pub ip: u64,
    /// The process.
    pub pid: u32,
    /// The thread.
    pub tid: u32,
    /// The time, in nanoseconds of CLOCK_MONOTONIC.
    pub time_ns: u64,
    /// The breakpoint's address.
    pub addr: u64,
    /// The CPU.
    pub cpu: u32,
    /// Registers, if requested and available.
    pub regs: Option<UserRegs>,
    /// Return addresses, innermost first, if requested.
    pub stack: Vec<u64>,
}

/// The word that the BPF program read at a trap.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Read {
    /// The process.
    pub pid: u32,
    /// The thread.
    pub tid: u32,
    /// The breakpoint's address.
    pub addr: u64,
    /// The 8 bytes at `addr` rounded down to 8; `None` when they could not be read.
    pub word: Option<u64>,
}

/// A record of a breakpoint.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Record {
    /// A trap.
    Sample(Sample),
    /// The word that was read at a trap. It comes right before the sample of that trap.
    Read(Read),
    /// This many records were dropped.
    Lost(u64),
    /// Any other record.
    Other,
    /// A record that is too short for its content.
    Malformed,
}

/// An event in the life of a thread.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Task {
    /// It was born.
    Fork {
        /// The thread that created it.
        parent: u32,
        /// The parent's process: the same process for a thread, another one for a child.
        parent_pid: u32,
    },
    /// It ended.
    Exit,
    /// It got a name.
    Comm(String),
    /// Its process executed another program, which has this name.
    Exec(String),
}

/// A record of a task.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct TaskRecord {
    /// The event.
    pub what: Task,
    /// The process of the thread concerned.
    pub pid: u32,
    /// The thread concerned.
    pub tid: u32,
    /// The thread in which it happened: for a birth, the parent.
    pub by: u32,
    /// The time, in nanoseconds of CLOCK_MONOTONIC.
    pub time_ns: u64,
    /// The identifier of the perf event that recorded it, or of the one from which that was inherited.
    pub id: u64,
    /// For a birth: whether the thread inherited all that its maker has. Set by the reader of all records
    /// (`births`).
    pub whole: bool,
}

/// Parses a breakpoint's record.
#[must_use]
pub fn parse(layout: &Layout, kind: u32, body: &[u8]) -> Record {
    let mut at = Cursor(body);
    let record = match kind {
        SAMPLE => sample(layout, &mut at),
        LOST => lost(&mut at).map(Record::Lost),
        _ => Some(Record::Other),
    };
    record.unwrap_or(Record::Malformed)
}

/// Parses a record of a task; `None` for a record that is not needed.
///
/// # Errors
/// The number of records that were dropped, or that made no sense.
pub fn task(kind: u32, misc: u16, body: &[u8]) -> Result<Option<TaskRecord>, u64> {
    let (mut at, mut end) = (Cursor(body), Cursor(&body[body.len().saturating_sub(TRAILER)..]));
    let what = match kind {
        LOST => return Err(lost(&mut at).unwrap_or(1)),
        FORK | EXIT => born_or_gone(kind, &mut at),
        COMM => named(misc, &mut at),
        _ => return Ok(None),
    };
    let cause = |at: &mut Cursor<'_>| {
        at.u32()?;
        Some((at.u32()?, at.u64()?, at.u64()?))
    };
    let (Some((what, pid, tid)), Some((by, time_ns, id))) = (what, cause(&mut end)) else { return Err(1) };
    Ok(Some(TaskRecord { what, pid, tid, by, time_ns, id, whole: false }))
}

struct Cursor<'a>(&'a [u8]);

impl Cursor<'_> {
    fn u32(&mut self) -> Option<u32> {
        let (bytes, rest) = self.0.split_first_chunk()?;
        self.0 = rest;
        Some(u32::from_le_bytes(*bytes))
    }
    fn u64(&mut self) -> Option<u64> {
        let (bytes, rest) = self.0.split_first_chunk()?;
        self.0 = rest;
        Some(u64::from_le_bytes(*bytes))
    }
}

fn sample(layout: &Layout, at: &mut Cursor<'_>) -> Option<Record> {
    let id = at.u64()?;
    if layout.value_ids.contains(&id) {
        return read(at).map(Record::Read);
    }
    let mut one = Sample { id, ip: at.u64()?, pid: at.u32()?, tid: at.u32()?, ..Sample::default() };
    (one.time_ns, one.addr) = (at.u64()?, at.u64()?);
    one.cpu = at.u32()?;
    at.u32()?;
    if layout.stack {
        let entries = at.u64()?;
        if entries > MAX_CHAIN {
            return None;
        }
        for _ in 0..entries {
            let entry = at.u64()?;
            if entry < CONTEXT {
                one.stack.push(entry);
            }
        }
    }
    if layout.registers {
        one.regs = registers(at)?;
    }
    Some(Record::Sample(one))
}

/// Parses the ABI, then the registers in the order of their bits; there are none for ABI 0.
fn registers(at: &mut Cursor<'_>) -> Option<Option<UserRegs>> {
    if at.u64()? == 0 {
        return Some(None);
    }
    let mut sampled = [0; REGISTERS];
    for word in &mut sampled {
        *word = at.u64()?;
    }
    Some(Some(user_regs(&sampled)))
}

/// Parses the length of what follows, then the BPF program's four words.
fn read(at: &mut Cursor<'_>) -> Option<Read> {
    if at.u32()? < 32 {
        return None;
    }
    let (task, addr, word, error) = (at.u64()?, at.u64()?, at.u64()?, at.u64()?);
    Some(Read { pid: (task >> 32) as u32, tid: task as u32, addr, word: (error == 0).then_some(word) })
}

fn lost(at: &mut Cursor<'_>) -> Option<u64> {
    at.u64()?;
    at.u64()
}

/// An event, with the process and thread concerned.
type Happened = Option<(Task, u32, u32)>;

fn born_or_gone(kind: u32, at: &mut Cursor<'_>) -> Happened {
    let (pid, parent_pid, tid, parent) = (at.u32()?, at.u32()?, at.u32()?, at.u32()?);
    Some((if kind == FORK { Task::Fork { parent, parent_pid } } else { Task::Exit }, pid, tid))
}

fn named(misc: u16, at: &mut Cursor<'_>) -> Happened {
    let (pid, tid) = (at.u32()?, at.u32()?);
    let end = at.0.iter().position(|&byte| byte == 0)?;
    let name = String::from_utf8_lossy(&at.0[..end]).into_owned();
    Some((if misc & MISC_EXEC != 0 { Task::Exec(name) } else { Task::Comm(name) }, pid, tid))
}

#[cfg(test)]
mod tests {
    use super::{COMM, FORK, LOST, Layout, MISC_EXEC, REGISTERS, Record, SAMPLE, Task, parse, task};
    use proptest::prelude::*;

    fn words(words: &[u64]) -> Vec<u8> {
        words.iter().flat_map(|word| word.to_le_bytes()).collect()
    }

    #[test]
    fn a_sample_is_read_field_by_field() {
        let layout = Layout { registers: true, stack: true, value_ids: vec![7] };
        let mut all = vec![5, 0x1000, 42 | 43 << 32, 99, 0x2000, 1, 3, -512_i64 as u64, 0x1000, 0x3000, 2];
        all.extend((100..).take(REGISTERS));
        let Record::Sample(one) = parse(&layout, SAMPLE, &words(&all)) else { panic!("a sample") };
        assert_eq!((one.id, one.ip, one.pid, one.tid, one.time_ns), (5, 0x1000, 42, 43, 99));
        assert_eq!((one.addr, one.cpu, &one.stack[..]), (0x2000, 1, &[0x1000, 0x3000][..]));
        crate::native::check_registers(one.regs.expect("registers"));
        for short in 0..all.len() {
            assert_eq!(parse(&layout, SAMPLE, &words(&all[..short])), Record::Malformed, "{short}");
        }
    }

    #[test]
    fn what_the_program_read_is_known_by_its_identifier() {
        let layout = Layout { value_ids: vec![7], ..Layout::default() };
        let mut body = words(&[7]);
        body.extend(36u32.to_le_bytes());
        body.extend(words(&[42 << 32 | 43, 0x2000, 0x55, 0]));
        let Record::Read(read) = parse(&layout, SAMPLE, &body) else { panic!("a value") };
        assert_eq!((read.pid, read.tid, read.addr, read.word), (42, 43, 0x2000, Some(0x55)));
    }

    #[test]
    fn what_becomes_of_threads_is_read_field_by_field() {
        let body = words(&[42 | 41 << 32, 43 | 40 << 32, 98, 41 | 40 << 32, 99, 7]);
        let record = task(FORK, 0, &body).expect("a birth").expect("of interest");
        assert_eq!(record.what, Task::Fork { parent: 40, parent_pid: 41 });
        assert_eq!((record.pid, record.tid, record.by, record.time_ns, record.id), (42, 43, 40, 99, 7));
        let mut body = words(&[42 | 42 << 32]);
        body.extend(*b"worker\0\0");
        body.extend(words(&[42 | 42 << 32, 99, 7]));
        let what = |misc| task(COMM, misc, &body).expect("whole").map(|record| record.what);
        assert_eq!(what(0), Some(Task::Comm("worker".into())));
        assert_eq!(what(MISC_EXEC), Some(Task::Exec("worker".into())));
        assert_eq!(task(LOST, 0, &words(&[7, 12])), Err(12));
        assert_eq!(task(FORK, 0, &[0; 16]), Err(1));
    }

    proptest! {
        #[test]
        fn hostile_bytes_do_no_harm(
            kind in 0u32..12, body in proptest::collection::vec(any::<u8>(), 0..400),
            registers: bool, stack: bool, id: u64,
        ) {
            let layout = Layout { registers, stack, value_ids: vec![id, 0] };
            let _record = (parse(&layout, kind, &body), task(kind, id as u16, &body));
        }
    }
}
