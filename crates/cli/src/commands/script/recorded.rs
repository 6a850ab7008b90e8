//! Memory in records: from what blocks ask for to what the engine reads, and from a call's fields to addresses.
//!
//! In: reads of blocks; calls. Out: fields of a probe's filter; the memory, registers and further arguments of a hit.
//! Invariant: bytes are given for the address from which the target read them, and for no other.
//! Does not: decide what a block needs.

use std::rc::Rc;

use trapline::Call;
use trapline::beyond;
use trapline::calls::{FieldRead, ReadOutcome, Text};
use trapline_order::Order as _;
use trapline_script::{FileVariable, Hit, Memory, Read, Root};

use super::registers::engine_name;

/// Arguments that are in every record.
const RECORDED: u8 = 6;

/// What the records of a probe hold besides arguments.
#[derive(Debug, Clone, Default)]
pub(super) struct Recorded {
    reads: Vec<Read>,
}

impl Recorded {
    /// Adds what a block needs.
    pub(super) fn add(&mut self, reads: &[Read]) {
        let new: Vec<Read> = reads.iter().filter(|read| !self.reads.contains(read)).cloned().collect();
        self.reads.extend(new);
        // What leads to other memory comes before it.
        self.reads.order_by_key(|read| read.offsets.len());
    }
    /// Adds what other blocks need.
    pub(super) fn merge(&mut self, other: &Self) {
        self.add(&other.reads);
    }
    /// The engine's fields, in this order; or what a script asks for and the engine cannot read.
    pub(super) fn fields(&self) -> Result<Vec<FieldRead>, String> {
        match self.reads.len() > trapline::filter::MAX_FIELDS {
            true => {
                let (count, most) = (self.reads.len(), trapline::filter::MAX_FIELDS);
                Err(format!(
                    "the blocks at it need {count} loads of the program's memory; a record holds {most}"
                ))
            }
            false => self.reads.iter().map(field).collect(),
        }
    }
    /// Whether a call has all that could be there. What the program itself could not have read is there, too.
    pub(super) fn is_known(&self, call: &Call) -> bool {
        self.reads.iter().zip(&call.fields).all(|(read, field)| match field.reading {
            ReadOutcome::Failed(_) => false,
            // A value that is no memory is there or not.
            ReadOutcome::Fault => !read.offsets.is_empty(),
            ReadOutcome::Whole => true,
        })
    }
    /// Puts what a call holds into its hit.
    pub(super) fn fill(&self, call: &Call, hit: &mut Hit) {
        for text in &call.texts {
            let at = hit.args.get(usize::from(text.argument)).copied().unwrap_or(0);
            add(&mut hit.memory, at, text);
        }
        for (read, field) in self.reads.iter().zip(&call.fields) {
            match (&read.root, &read.offsets[..]) {
                (Root::Argument(nth), []) => {
                    if let Some(argument) = hit.args.get_mut(usize::from(*nth)) {
                        *argument = field.word().unwrap_or(0);
                    }
                }
                (Root::Register(name), []) => {
                    hit.registers.push((Rc::clone(name), field.word().unwrap_or(0)))
                }
                (Root::Variable(variable), []) => {
                    let at = field.word().map_or(0, |mapped| mapped.wrapping_add(variable.at));
                    hit.variables.push((variable.clone(), at));
                }
                (root, [through @ .., last]) => {
                    let at =
                        through.iter().fold(value(root, hit), |at, step| word(&hit.memory, moved(at, *step)));
                    add(&mut hit.memory, moved(at, *last), field);
                }
            }
        }
    }
}

/// How the engine reads the same.
fn field(read: &Read) -> Result<FieldRead, String> {
    let base = match &read.root {
        Root::Argument(nth) if *nth < RECORDED => {
            FieldRead { register: *nth, offsets: Vec::new(), bytes: read.bytes }
        }
        Root::Argument(nth) => beyond::argument_register(*nth, read.bytes)
            .unwrap_or_else(|| beyond::stack_argument(nth - beyond::ARGUMENT_REGISTERS, read.bytes)),
        Root::Register(name) => {
            let register = engine_name(name).and_then(|name| beyond::register(&name));
            register.ok_or_else(|| format!("{name} is no register that is recorded"))?
        }
        Root::Variable(variable) => return of_variable(variable, read),
    };
    let offsets = base.offsets.iter().chain(&read.offsets).copied().collect();
    Ok(FieldRead { offsets, bytes: read.bytes, ..base })
}

/// Without offsets, where the variable's file is mapped.
fn of_variable(variable: &FileVariable, read: &Read) -> Result<FieldRead, String> {
    let mut offsets = read.offsets.clone();
    if let Some(first) = offsets.first_mut() {
        let at = i32::try_from(variable.at).ok().and_then(|at| at.checked_add(*first));
        *first = at.ok_or_else(|| format!("{} is too far away", variable.name))?;
    }
    Ok(FieldRead { register: FieldRead::FILE, offsets, bytes: read.bytes })
}

fn moved(at: u64, by: i32) -> u64 {
    at.wrapping_add_signed(i64::from(by))
}

/// The value that a chain begins with.
fn value(root: &Root, hit: &Hit) -> u64 {
    match root {
        Root::Argument(nth) => hit.args.get(usize::from(*nth)).copied().unwrap_or(0),
        Root::Register(name) => {
            hit.registers.iter().find(|(other, _)| other == name).map_or(0, |(_, value)| *value)
        }
        Root::Variable(variable) => {
            hit.variables.iter().find(|(other, _)| other == variable).map_or(0, |(_, at)| *at)
        }
    }
}

/// A word of memory. The interpreter takes what could not be read for zero, too.
fn word(memory: &Memory, at: u64) -> u64 {
    <[u8; 8]>::try_from(memory.read(at, 8).0).map_or(0, u64::from_le_bytes)
}

/// Adds what was read at an address.
pub(super) fn add(memory: &mut Memory, at: u64, text: &Text) {
    memory.add(at, text.bytes.clone(), text.reading == ReadOutcome::Fault);
}
