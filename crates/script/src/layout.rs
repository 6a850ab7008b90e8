//! Structures, unions and enumerations of the script, laid out as C does.
//!
//! In: definitions. Out: offsets and sizes; the names of values. Invariants: offsets and sizes do not overflow; a
//! structure that is not defined has no size. Does not: read definitions of the system or of programs.

use std::cell::RefCell;
use std::collections::HashMap;
use std::rc::Rc;

use crate::attach::Probe;
use crate::declared::Declared;
use crate::diagnostic::Diagnostic;
use crate::fields::{Bits, Field, Struct};
use crate::tree::{EnumDef, StructDef, TypeKind, TypeName};
use crate::types::{Int, Type};

/// All structures and enumerations of a script.
#[derive(Debug, Clone, Default)]
pub struct Layouts {
    structs: HashMap<String, Rc<Struct>>,
    enums: HashMap<String, Vec<(String, i64)>>,
    /// The enumeration and the value of each name.
    pub(crate) constants: HashMap<String, (Rc<str>, i64)>,
    /// Debug information, with the attach points whose programs are meant.
    declared: Option<(Rc<dyn Declared>, Vec<Probe>)>,
    /// What was asked of it.
    found: RefCell<HashMap<String, Option<Rc<Struct>>>>,
}

impl Layouts {
    /// Lays all definitions out, in their order.
    pub(crate) fn new(structs: &[StructDef], enums: &[EnumDef]) -> Result<Self, Box<Diagnostic>> {
        let mut all = Self::default();
        for def in enums {
            let name: Rc<str> = def.name.as_str().into();
            for (variant, value) in &def.variants {
                all.constants.insert(variant.clone(), (name.clone(), *value));
            }
            all.enums.insert(def.name.clone(), def.variants.clone());
        }
        for def in structs {
            let laid = all.lay_out(def)?;
            all.structs.insert(def.name.clone(), Rc::new(laid));
        }
        Ok(Self {
            structs: all.structs.iter().map(|(name, laid)| (name.clone(), all.complete(laid))).collect(),
            ..all
        })
    }
    /// The structure with the sizes of what its pointers lead to, which may be defined behind it.
    fn complete(&self, laid: &Struct) -> Rc<Struct> {
        let fields = laid.fields.iter().map(|field| Field { ty: self.sized(&field.ty), ..field.clone() });
        Rc::new(Struct { fields: fields.collect(), ..laid.clone() })
    }
    fn sized(&self, ty: &Type) -> Type {
        match ty {
            Type::Struct(name, 0) => {
                Type::Struct(name.clone(), self.structs.get(&**name).map_or(0, |laid| laid.size))
            }
            Type::Pointer(to) => Type::pointer(self.sized(to)),
            Type::Array(of, count) => Type::Array(Rc::new(self.sized(of)), *count),
            other => other.clone(),
        }
    }
    /// Lets structures that the script does not define be those of the probed programs.
    pub(crate) fn declare(&mut self, declared: Rc<dyn Declared>, probes: Vec<Probe>) {
        self.declared = Some((declared, probes));
    }
    /// A structure by name: the script's own, or the programs'.
    pub fn structure(&self, name: &str) -> Option<Rc<Struct>> {
        if let Some(own) = self.structs.get(name) {
            return Some(Rc::clone(own));
        }
        let (declared, probes) = self.declared.as_ref()?;
        if let Some(known) = self.found.borrow().get(name) {
            return known.clone();
        }
        let found = probes.iter().find_map(|probe| declared.structure(probe, name)).map(Rc::new);
        self.found.borrow_mut().insert(name.to_owned(), found.clone());
        found
    }
    /// The name of an enumeration's value.
    pub fn variant(&self, of: &str, value: i64) -> Option<&str> {
        self.enums.get(of)?.iter().find(|(_, other)| *other == value).map(|(name, _)| name.as_str())
    }
    pub(crate) fn has_enum(&self, name: &str) -> bool {
        self.enums.contains_key(name)
    }
    /// A type by its written name; `None` if there is no such type.
    pub(crate) fn resolve(&self, name: &TypeName) -> Option<Type> {
        Some(match &name.kind {
            TypeKind::Named(name) => match named(name) {
                Some(ty) => ty,
                None => Type::Struct(name.as_str().into(), self.structure(name)?.size),
            },
            TypeKind::Struct(name) => {
                let size = self.structure(name).map_or(0, |laid| laid.size);
                Type::Struct(name.as_str().into(), size)
            }
            TypeKind::Enum(name) => {
                let of = self.enums.get_key_value(name)?.0.as_str().into();
                Type::Int(Int { size: 4, signed: false, flexible: false, of: Some(of) })
            }
            TypeKind::Pointer(to) => Type::pointer(self.resolve(to)?),
            TypeKind::Array(of, count) => {
                array(self.resolve(of)?, u32::try_from(count.unwrap_or(0)).unwrap_or(u32::MAX))
            }
        })
    }
    /// A type of a field: as in C, where an array of characters is one.
    fn field_type(&self, name: &TypeName) -> Option<Type> {
        match &name.kind {
            TypeKind::Named(name) if floating(name).is_some() => {
                Some(Type::Struct(name.as_str().into(), floating(name)?))
            }
            TypeKind::Pointer(to) => Some(Type::pointer(self.field_type(to)?)),
            TypeKind::Array(of, count) => {
                let count = u32::try_from(count.unwrap_or(0)).unwrap_or(u32::MAX);
                match self.field_type(of)? {
                    Type::Int(Int { size: 1, signed: true, .. }) if count > 0 => Some(Type::Text(count)),
                    of => Some(Type::Array(Rc::new(of), count)),
                }
            }
            _ => self.resolve(name),
        }
    }
    fn alignment(&self, ty: &Type) -> u32 {
        match ty {
            Type::Array(of, _) => self.alignment(of),
            Type::Struct(name, size) if floating(name) == Some(*size) => *size,
            Type::Struct(name, _) => self.structs.get(&**name).map_or(1, |laid| laid.align),
            Type::Text(_) => 1,
            other => other.size().clamp(1, 8),
        }
    }
    fn lay_out(&self, def: &StructDef) -> Result<Struct, Box<Diagnostic>> {
        let mut laid = Struct { align: 1, ..Struct::default() };
        // In bits, since bit fields share bytes.
        let mut at = 0u64;
        for field in &def.fields {
            let fail = |message: String| Box::new(Diagnostic::error(message, field.ty.span));
            let unknown = || fail(format!("unknown type in struct {}", def.name));
            let ty = self.field_type(&field.ty).ok_or_else(unknown)?;
            // `struct float` is no `float`.
            if let Type::Struct(name, size) = element(&ty)
                && !self.structs.contains_key(&**name)
                && floating(name) != Some(*size)
            {
                return Err(fail(format!("field has incomplete type 'struct {name}'")));
            }
            let align = if def.packed { 1 } else { self.alignment(&ty) };
            let (unit, size) = (u64::from(align) * 8, u64::from(ty.size()) * 8);
            let behind = if def.union { 0 } else { at };
            let (place, bits) = match field.bits {
                None => (behind.next_multiple_of(unit), None),
                Some(count) => {
                    let wide =
                        || fail(format!("width of bit-field ({count} bits) exceeds the width of its type"));
                    let place = bit_field(behind, count, size).ok_or_else(wide)?;
                    (place, Some(Bits { from: (place % size) as u32, count }))
                }
            };
            let width = field.bits.map_or(size, u64::from);
            at = at.max(place + width);
            laid.align = laid.align.max(align);
            let byte = if bits.is_some() { place / size * size / 8 } else { place / 8 };
            let too_large = || fail(format!("struct {} is too large", def.name));
            let offset = u32::try_from(byte).map_err(|_| too_large())?;
            if at > u64::from(u32::MAX) {
                return Err(too_large());
            }
            self.push(&mut laid, field.name.as_deref(), ty, offset, bits);
        }
        laid.size = at.div_ceil(8).next_multiple_of(u64::from(laid.align)) as u32;
        Ok(laid)
    }
    /// Adds a field, or the fields of one without a name.
    fn push(&self, laid: &mut Struct, name: Option<&str>, ty: Type, offset: u32, bits: Option<Bits>) {
        match (name, &ty) {
            (Some(name), _) => laid.fields.push(Field { name: name.to_owned(), ty, offset, bits }),
            (None, Type::Struct(inner, _)) => {
                let inner = self.structs.get(&**inner).map(|inner| inner.fields.clone()).unwrap_or_default();
                let inside = inner.into_iter().map(|field| Field { offset: offset + field.offset, ..field });
                laid.fields.extend(inside);
            }
            (None, _) => {}
        }
    }
}

/// What an array holds, or the type itself.
fn element(ty: &Type) -> &Type {
    if let Type::Array(of, _) = ty { element(of) } else { ty }
}

/// `string[64]` and `buffer[64]` are not arrays; the number is their size.
fn array(of: Type, count: u32) -> Type {
    match of {
        Type::Text(0) => Type::Text(count),
        Type::Buffer(0) => Type::Buffer(count),
        of => Type::Array(Rc::new(of), count),
    }
}

/// Where a bit field begins, in bits: behind what came before, and within one unit of its type. `None` if it is wider.
fn bit_field(behind: u64, count: u32, size: u64) -> Option<u64> {
    if u64::from(count) > size || count > 64 || size == 0 {
        return None;
    }
    let crosses = || behind / size != (behind + u64::from(count) - 1) / size;
    Some(if count == 0 || crosses() { behind.next_multiple_of(size) } else { behind })
}

/// Bytes of a floating-point type of C. A script has no such values: a field of this type is a structure without
/// fields, so it takes its room, and is shown as nothing.
fn floating(name: &str) -> Option<u32> {
    match name {
        "float" => Some(4),
        "double" => Some(8),
        _ => None,
    }
}

/// A type that needs no definition.
fn named(name: &str) -> Option<Type> {
    let bits = |rest: &str| match rest.trim_end_matches("_t") {
        "8" => Some(1),
        "16" => Some(2),
        "32" => Some(4),
        "64" => Some(8),
        _ => None,
    };
    let starts = [("uint", false), ("int", true), ("__u", false), ("__s", true), ("u", false), ("s", true)];
    for (start, signed) in starts {
        if let Some(size) = name.strip_prefix(start).and_then(bits) {
            return Some(if signed { Type::int(size) } else { Type::uint(size) });
        }
    }
    Some(match name {
        "bool" | "_Bool" => Type::Bool,
        "void" => Type::Void,
        "string" => Type::Text(0),
        "buffer" => Type::Buffer(0),
        "inet" => Type::Inet,
        "username_t" => Type::Username,
        "size_t" | "uintptr_t" => Type::uint(8),
        "ssize_t" | "off_t" | "time_t" => Type::int(8),
        "uid_t" | "gid_t" => Type::uint(4),
        "pid_t" => Type::int(4),
        _ => return None,
    })
}
