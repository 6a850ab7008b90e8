//! Files as values: what the ELF file of a program or library contains about its code.
//!
//! In: a file's bytes, and those of its debug file. Out: functions with names and bounds, USDT probes,
//! critical sections, possible branch targets; and patterns resolved to functions. Invariants: IMG-1 reads
//! never leave the bytes. IMG-2 functions are sorted and do not overlap. IMG-3 no input causes a panic, or
//! memory use out of proportion to the file.
//! Does not: open files, know processes, decode instructions.
#![forbid(unsafe_code)]

mod begun;
mod bytes;
mod counted;
mod data;
mod debugdata;
mod debuginfo;
mod demangle;
mod dynamic;
mod elf;
mod entries;
mod error;
mod field;
mod function;
mod functions;
mod gopclntab;
mod image;
mod inlined;
mod lines;
mod locals;
mod nearest;
mod no_field;
mod notes;
mod operands;
mod path;
mod pattern;
mod prototype;
mod readers;
mod references;
mod sections;
mod select;
mod shapes;
mod sources;
mod spec;
mod split;
mod symbols;
mod targets;
mod types;
mod units;
mod unwind;
mod variable;

pub use begun::BegunProbe;
pub use bytes::{Bytes, DebugFile, DebugFiles, NoDebugFiles, SplitFiles};
pub use counted::Elements;
pub use data::DataSymbol;
pub use debuginfo::{DebugInfo, Encoding, Line, NoVariable, Variable};
pub use demangle::full as demangled;
pub use elf::{ImageKind, Machine, Segment};
pub use error::{ImageError, SpecError};
pub use field::{CountedField, Field, FieldBase, FieldContent};
pub use function::{
    Convention, Function, FunctionIndex, FunctionKind, Name, Names, NoMatch, Selected, Source,
};
pub use image::Image;
pub use lines::SourceLine;
pub use locals::{CodePlace, Frame, Local};
pub use no_field::{Misplaced, NoField};
pub use notes::Usdt;
pub use operands::{
    Extend, MARK_ARGUMENTS, MarkArgument, MarkClass, MarkIndex, MarkPlace, NoPlace, mark_arguments,
};
pub use pattern::{Exact, Glob, Pattern, Version};
pub use prototype::{
    Btf, DeclaredParameter, Form, LaidOut, Layout, MOST_BYTES, MOST_READ, ParameterPlace, Parts, Piece,
    Prototype, ValueType, Whereabouts,
};
pub use shapes::{FieldShape, RecordShape, Shape};
pub use spec::{ProbeKind, ProbeSpec};
pub use targets::RseqSection;
