//! Prototypes from BTF, the types that `gcc -gbtf`, `clang` and `pahole -J` write to a section of that name:
//! names and types, no addresses.
//!
//! In: a file's `.BTF` section, a function's name. Out: a [`Prototype`]. A linker without support for BTF
//! concatenates the sections of the object files, each with a header of its own; so there are several parts.
//! Invariants: IMG-3: sections larger than a stated limit, and texts that would make them still larger once
//! read, are not read; types that contain themselves end each walk. PRO-2 if functions of the same name have
//! different prototypes, nothing is known about them.
//! Does not: find fields of structures; DWARF does that.

use std::collections::BTreeMap;
use std::fmt;

use btfparse::{Integer32Value, Integer64Value, Offset, Readable, TypeInformation, TypeVariant};

use super::passing::{Components, Passage, passed, places};
use super::{Prototype, ValueType, passing_aarch64};
use crate::entries::MAX_CHAIN;

/// First bytes of a little-endian part.
const MAGIC: [u8; 2] = 0xeb9f_u16.to_le_bytes();
/// Maximum length of a section in bytes; the kernel's own is 6 MiB.
const MAX_SECTION: usize = 16 << 20;
/// Maximum length of a text in bytes. Longer ones are forged: each type that names one has a copy. The
/// kernel's limit for names is 512.
const MAX_TEXT: usize = 512;

/// A file's BTF.
pub struct Btf {
    parts: Vec<Part>,
    /// Part and type of each function; `None` for a name with several prototypes.
    functions: BTreeMap<String, Option<(usize, u32)>>,
    is_x86_64: bool,
}

impl fmt::Debug for Btf {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Btf").field("functions", &self.functions.len()).finish_non_exhaustive()
    }
}

/// The types of one object file.
struct Part(TypeInformation);

/// A section's bytes, as input of the parser.
struct Section<'a>(&'a [u8]);

impl Readable for Section<'_> {
    fn read(&self, offset: u64, buffer: &mut [u8]) -> btfparse::Result<()> {
        let from = usize::try_from(offset).unwrap_or(usize::MAX);
        let bytes = from.checked_add(buffer.len()).and_then(|to| self.0.get(from..to));
        let end = || btfparse::Error::new(btfparse::ErrorKind::IOError, "the section ends here");
        buffer.copy_from_slice(bytes.ok_or_else(end)?);
        Ok(())
    }
}

/// The type does not exist, or refers to itself.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Forged;

impl Btf {
    pub(crate) fn read(section: &[u8], is_x86_64: bool) -> Option<Self> {
        let longest = section.split(|byte| *byte == 0).map(<[u8]>::len).max().unwrap_or(0);
        if section.len() > MAX_SECTION || longest > MAX_TEXT {
            return None;
        }
        let mut btf = Self { parts: Vec::new(), functions: BTreeMap::new(), is_x86_64 };
        let mut rest = section;
        while let Some(len) = part_len(rest) {
            let Ok(types) = TypeInformation::new(&Section(&rest[..len])) else { break };
            btf.add(Part(types));
            // Each part may begin at a multiple of four.
            let next = (len..rest.len().min(len + 4)).find(|at| rest[*at..].starts_with(&MAGIC));
            rest = next.map_or(&[], |at| &rest[at..]);
        }
        (!btf.parts.is_empty()).then_some(btf)
    }
    fn add(&mut self, part: Part) {
        let nth = self.parts.len();
        let mut found = Vec::new();
        for one in part.0.get().values() {
            if let TypeVariant::Func(function) = one {
                found.extend(function.name().clone().map(|name| (name, *function.prototype_tid())));
            }
        }
        self.parts.push(part);
        for (name, of) in found {
            let known = self.functions.get(&name).copied();
            let same = match known {
                None => true,
                Some(other) => other.is_some_and(|other| self.read_at(other) == self.read_at((nth, of))),
            };
            self.functions.insert(name, same.then_some((nth, of)));
        }
    }
    fn read_at(&self, (part, of): (usize, u32)) -> Option<Prototype> {
        self.parts[part].read_prototype(of, self.is_x86_64).ok()
    }
    /// The prototype of the function of that name. `None`: nothing is recorded, or functions of that name
    /// differ.
    #[must_use]
    pub fn prototype(&self, function: &str) -> Option<Prototype> {
        self.read_at((*self.functions.get(function)?)?)
    }
}

/// Length in bytes of the part that begins there. Its header contains its own length, and where types and
/// texts are behind it.
fn part_len(bytes: &[u8]) -> Option<usize> {
    let word = |at: usize| Some(u32::from_le_bytes(bytes.get(at..at + 4)?.try_into().ok()?) as usize);
    let behind = |at: usize| Some(word(at)? + word(at + 4)?);
    let len = word(4)? + behind(8)?.max(behind(16)?);
    (bytes.starts_with(&MAGIC) && (24..=bytes.len()).contains(&len)).then_some(len)
}

impl Part {
    fn read_prototype(&self, of: u32, is_x86_64: bool) -> Result<Prototype, Forged> {
        let TypeVariant::FuncProto(noted) = self.at(of)? else { return Err(Forged) };
        let known = |of: u32| {
            let shapes = &mut |of| self.shape(of);
            let passed = if is_x86_64 { passed(of, shapes)? } else { passing_aarch64::passed(of, shapes)? };
            let (bytes, of) = (self.size(of, 0)?, self.value_type(of)?);
            // Of an integer of 16 bytes alone it is known that it is aligned.
            Ok(Passage { aligned: is_wide(&of), of, passed, layout: None, bytes })
        };
        let value = match known(*noted.return_tid())? {
            Passage { of: ValueType::Void, .. } => Passage::VOID,
            value => value,
        };
        // A parameter of type void at the end of the list stands for a variable number of arguments.
        let listed = noted.parameter_list().iter().filter(|one| one.tid() != 0);
        let mut parameters = Vec::new();
        for one in listed {
            parameters.push((one.name().unwrap_or_default(), known(one.tid())?));
        }
        Ok(match is_x86_64 {
            true => places(value, parameters, None),
            false => passing_aarch64::places(value, parameters),
        })
    }
    fn at(&self, of: u32) -> Result<&TypeVariant, Forged> {
        if of == 0 { Ok(&TypeVariant::Void) } else { self.0.get().get(&of).ok_or(Forged) }
    }
    /// A type without typedefs and qualifiers.
    fn bare(&self, mut of: u32) -> Result<&TypeVariant, Forged> {
        for _ in 0..MAX_CHAIN {
            of = match self.at(of)? {
                TypeVariant::Typedef(to) => *to.tid(),
                TypeVariant::Const(to) => *to.tid(),
                TypeVariant::Volatile(to) => *to.tid(),
                TypeVariant::Restrict(to) => *to.tid(),
                TypeVariant::TypeTag(to) => *to.tid(),
                bare => return Ok(bare),
            }
        }
        Err(Forged)
    }
    /// How to show a value of a type.
    fn value_type(&self, of: u32) -> Result<ValueType, Forged> {
        let narrow = |size: usize| u8::try_from(size).ok().filter(|size| matches!(size, 1 | 2 | 4 | 8));
        Ok(match self.bare(of)? {
            TypeVariant::Void => ValueType::Void,
            TypeVariant::Int(int) => match (int.name().as_deref(), narrow(*int.size())) {
                (_, Some(1)) if *int.boolean() => ValueType::Bool,
                (Some("char"), Some(1)) => ValueType::Char,
                (_, Some(bytes)) => ValueType::Integer { bytes, signed: *int.signed() },
                (name, None) => ValueType::Other(name.unwrap_or_default().to_owned()),
            },
            TypeVariant::Ptr(to) => {
                let is_text = matches!(self.bare(*to.tid())?, TypeVariant::Int(int) if int.name().as_deref() == Some("char"));
                let is_code = matches!(self.bare(*to.tid())?, TypeVariant::FuncProto(_));
                match (is_text, is_code) {
                    (true, _) => ValueType::Text,
                    (_, true) => ValueType::Code,
                    _ => ValueType::Pointer,
                }
            }
            TypeVariant::Enum(of) => {
                let values = of.named_value_list().iter().map(|one| {
                    let value = match one.value {
                        Integer32Value::Signed(value) => i128::from(value),
                        Integer32Value::Unsigned(value) => i128::from(value),
                    };
                    (one.name.clone(), value)
                });
                enumeration(narrow(*of.size()), *of.signed(), values.collect())
            }
            TypeVariant::Enum64(of) => {
                let values = of.named_value_list().iter().map(|one| {
                    let value = match one.value {
                        Integer64Value::Signed(value) => i128::from(value),
                        Integer64Value::Unsigned(value) => i128::from(value),
                    };
                    (one.name.clone(), value)
                });
                enumeration(narrow(*of.size()), *of.signed(), values.collect())
            }
            TypeVariant::Float(float) => match narrow(*float.size()) {
                Some(bytes @ (4 | 8)) => ValueType::Float(bytes),
                _ => ValueType::Other(float.name().clone().unwrap_or_default()),
            },
            TypeVariant::Struct(of) => named("struct", of.name().as_deref()),
            TypeVariant::Union(of) => named("union", of.name().as_deref()),
            TypeVariant::Array(_) => named("array", None),
            _ => named("", None),
        })
    }
    /// The components of a type.
    fn shape(&self, of: u32) -> Result<Components<u32>, Forged> {
        let members = |size: usize, list: &btfparse::MemberList| {
            let at = |offset| match offset {
                Offset::ByteOffset(bytes) => u64::from(bytes),
                Offset::BitOffsetAndSize(bits, _) => u64::from(bits / 8),
            };
            Components::Members(size as u64, list.iter().map(|one| (at(one.offset()), one.tid())).collect())
        };
        Ok(match (self.bare(of)?, self.value_type(of)?) {
            (TypeVariant::Struct(of), _) => members(*of.size(), of.member_list()),
            (TypeVariant::Union(of), _) => members(*of.size(), of.member_list()),
            (TypeVariant::Array(array), _) => {
                let of = *array.element_tid();
                let bytes = self.size(of, 0)?;
                Components::Array { of, bytes, count: u64::from(*array.element_count()) }
            }
            (TypeVariant::Float(_), ValueType::Float(bytes)) => Components::Vector(bytes.into()),
            (TypeVariant::Float(_), ValueType::Other(name)) if name == "long double" => Components::X87,
            (TypeVariant::Int(int), ValueType::Integer { .. } | ValueType::Char | ValueType::Bool) => {
                Components::General(*int.size() as u64)
            }
            (TypeVariant::Int(int), of) if *int.size() == 16 && is_wide(&of) => Components::Wide,
            (TypeVariant::Ptr(_), _) => Components::General(8),
            (_, ValueType::Enumeration { bytes, .. }) => Components::General(bytes.into()),
            _ => Components::Unknown,
        })
    }
    /// Size of a type in bytes; 0 if it has none.
    fn size(&self, of: u32, depth: u32) -> Result<u64, Forged> {
        if depth > MAX_CHAIN {
            return Err(Forged);
        }
        Ok(match self.bare(of)? {
            TypeVariant::Int(int) => *int.size() as u64,
            TypeVariant::Float(float) => *float.size() as u64,
            TypeVariant::Enum(of) => *of.size() as u64,
            TypeVariant::Enum64(of) => *of.size() as u64,
            TypeVariant::Struct(of) => *of.size() as u64,
            TypeVariant::Union(of) => *of.size() as u64,
            TypeVariant::Ptr(_) => 8,
            TypeVariant::Array(array) => {
                self.size(*array.element_tid(), depth + 1)?.saturating_mul(u64::from(*array.element_count()))
            }
            _ => 0,
        })
    }
}

fn enumeration(bytes: Option<u8>, signed: bool, names: Vec<(String, i128)>) -> ValueType {
    bytes.map_or_else(|| named("", None), |bytes| ValueType::Enumeration { bytes, signed, names })
}

/// Whether it is an integer of 16 bytes.
fn is_wide(of: &ValueType) -> bool {
    matches!(of, ValueType::Other(name) if name.contains("int128"))
}

/// `struct pair`.
fn named(kind: &str, name: Option<&str>) -> ValueType {
    let words: Vec<&str> =
        [kind, name.unwrap_or_default()].into_iter().filter(|word| !word.is_empty()).collect();
    ValueType::Other(words.join(" "))
}
