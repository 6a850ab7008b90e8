//! DWARF: the source line of an address, and variables with their types.
//!
//! In: debug sections. Out: [`Line`]s, [`Variable`]s. addr2line reads lines, gimli everything else.
//! Invariants: IMG-3: sections larger than a stated limit are not read.
//! Does not: evaluate locations other than fixed addresses.

use std::cell::RefCell;
use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;

use gimli::UnitOffset;
use trapline_record::Svma;

use crate::debugdata;
use crate::elf::{Elf, Machine};
use crate::sections::{EntryId, MAX_INFO, Slice, slice};
use crate::split::Split;
use crate::units::AllUnits;

/// A line of a source file.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Line {
    /// The file's name, as it was given to the compiler.
    pub file: String,
    /// Number of the line, counted from 1.
    pub line: u32,
}

/// How bytes are interpreted.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Encoding {
    /// Unsigned integer; also used for unknown encodings.
    #[default]
    Unsigned,
    /// Two's complement.
    Signed,
    /// IEEE 754.
    Float,
    /// An address.
    Pointer,
    /// True or false.
    Bool,
    /// A character without a sign; one with a sign counts as a number.
    Char,
}

/// A variable, or a field of one.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Variable {
    /// The path as it was requested.
    pub path: String,
    /// Address of its first byte.
    pub at: Svma,
    /// Size in bytes.
    pub size: u64,
    /// How they are interpreted.
    pub encoding: Encoding,
}

/// Why a path refers to no variable.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum NoVariable {
    /// No global variable has this name.
    #[error("no variable {name}{}", near(.nearest))]
    Unknown {
        /// The name.
        name: String,
        /// Similar names.
        nearest: Vec<String>,
    },
    /// Its type has no such field.
    #[error("{of} has no field {field}{}", near(.nearest))]
    NoField {
        /// The type or path.
        of: String,
        /// The field.
        field: String,
        /// Similar fields.
        nearest: Vec<String>,
    },
    /// A field of a value that is not a structure.
    #[error("{of} is no structure, so it has no field {field}")]
    NotAStructure {
        /// The path so far.
        of: String,
        /// The field.
        field: String,
    },
    /// The path goes through a pointer.
    #[error("{of} is a pointer; what it points to may move: read it and watch 0xADDRESS:LEN")]
    Pointer {
        /// The path so far.
        of: String,
    },
    /// The index is out of range.
    #[error("{of} has {len} elements; {index} is none of them")]
    Index {
        /// The path so far.
        of: String,
        /// Number of elements; 0 if it is not an array.
        len: u64,
        /// The index in the path.
        index: u64,
    },
    /// It is in registers, on stacks, or in each thread separately.
    #[error("{name} has no fixed address: {why}")]
    NotFixed {
        /// The variable.
        name: String,
        /// Where it is instead.
        why: &'static str,
    },
    /// It is a bit-field, which does not begin and end at byte boundaries.
    #[error("{of} is a bit-field, which shares its bytes with others; watch what holds it, 0xADDRESS:LEN")]
    Bits {
        /// The path so far.
        of: String,
    },
    /// The path does not have the form `name.field[3]`.
    #[error("cannot read `{0}`; write for example server.clients[2].count")]
    Syntax(String),
}

fn near(nearest: &[String]) -> String {
    if nearest.is_empty() { String::new() } else { format!(" (did you mean {}?)", nearest.join(", ")) }
}

/// A file's debug information.
pub struct DebugInfo {
    pub(crate) dwarf: Arc<gimli::Dwarf<Slice>>,
    pub(crate) lines: Option<addr2line::Context<Slice>>,
    /// What is split off from it.
    pub(crate) split: Split,
    /// Units to which references led.
    pub(crate) units: AllUnits,
    /// For each unit in which a function was looked for, where functions begin and where their entries are.
    pub(crate) beginnings: RefCell<HashMap<EntryId, Arc<HashMap<Svma, UnitOffset>>>>,
    /// Whether registers have x86-64's numbers.
    pub(crate) is_x86_64: bool,
}

impl fmt::Debug for DebugInfo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DebugInfo").finish_non_exhaustive()
    }
}

impl DebugInfo {
    pub(crate) fn read(elf: &Elf, split: Split) -> Option<Self> {
        if elf.section(".debug_info").is_none_or(|section| section.size > MAX_INFO) {
            return None;
        }
        let load =
            |id: gimli::SectionId| Ok::<Slice, gimli::Error>(slice(&debugdata::section(elf, id.name())));
        let mut dwarf = gimli::Dwarf::load(load).ok()?;
        if let Some(shared) = split.shared(elf) {
            dwarf.set_sup(shared);
        }
        let dwarf = Arc::new(dwarf);
        let lines = addr2line::Context::from_arc_dwarf(dwarf.clone()).ok();
        let units = AllUnits::default();
        Some(Self {
            dwarf,
            lines,
            split,
            units,
            beginnings: RefCell::default(),
            is_x86_64: elf.machine == Machine::X86_64,
        })
    }
    /// The source line from which an instruction was compiled.
    #[must_use]
    pub fn line(&self, at: Svma) -> Option<Line> {
        let found = self.lines.as_ref()?.find_location(at.0).ok()??;
        Some(Line { file: found.file?.to_owned(), line: found.line? })
    }
}
