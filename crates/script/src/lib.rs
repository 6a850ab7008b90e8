//! The language of `trapline run`: text, tree, checked program, and what it means. Internal to Trapline.
//!
//! In: a script, and what it is compiled with. Out: a program, and an interpreter that is the definition of what it
//! does; or messages, each with its place.
//!
//! ```text
//!   text ─▶ lex, parse ─▶ tree ─▶ check ─▶ program ─▶ run ─▶ text or JSON
//!           attach, config          │                  │
//!                              calls, types, layout    World: clocks, memory, files
//! ```
//!
//! Invariants: SCR-1 whatever bytes a script has, it compiles or there is a message with a place. SCR-2 a checked
//! program runs: each expression has a type, and nothing fails but memory, files, and room in maps. SCR-3 a map has
//! at most as many keys as it has room for; what finds no room is counted and reported. SCR-4 a block ends: loops are
//! bounded. SCR-5 what a block leaves in maps by its operations (`native`) is what the interpreter leaves there.
//!
//! Does not: call the system, read files, know how programs are probed.
//! docs/design/language.md has the rules of the language.
#![forbid(unsafe_code)]

mod amount;
mod attach;
mod bytes;
mod calls;
mod cell;
mod check;
mod config;
mod declared;
mod diagnostic;
mod fields;
mod format;
mod json;
mod layout;
mod lex;
mod list;
mod memory;
mod names;
pub mod native;
mod outline;
mod parse;
mod plain;
mod program;
mod run;
mod shown;
mod source;
mod suggest;
mod table;
mod text;
mod time;
mod tree;
mod types;
mod value;
mod zone;

pub use amount::Amount;
pub use attach::Probe;
pub use calls::Meaning;
pub use check::{Compiled, Options, compile};
pub use config::Config;
pub use declared::{Declared, Parameter};
pub use diagnostic::{At, Severity};
pub use fields::{Bits, Field, Struct};
pub use list::{is_match, listed, matching};
pub use memory::{End, FileVariable, Memory, Read, Root};
pub use outline::shown_tree;
pub use program::{Block, MapInfo, Needs, Program};
pub use run::{Clock, Hit, Lost, Machine, Stream, Style, Totals, World};
pub use source::{Source, Span};
pub use types::Type;
pub use value::StackMode;
pub use zone::Zone;
