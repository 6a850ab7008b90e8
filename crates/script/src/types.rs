//! Types: what they are called, how large they are, and which type holds the values of two.
//!
//! In: types. Out: their names as messages show them, sizes, promoted types. Invariant: promotion only grows a type, so
//! inference ends. Does not: know expressions.

use std::fmt;
use std::rc::Rc;

/// An integer's type.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Int {
    /// Bytes: 1, 2, 4 or 8.
    pub size: u8,
    /// Whether it has a sign.
    pub signed: bool,
    /// Whether it comes from a literal that is not negative, so either sign suits it.
    pub flexible: bool,
    /// The enumeration to which it belongs.
    pub of: Option<Rc<str>>,
}

/// Ways of adding values up in a map.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Sum {
    /// How many.
    Count,
    /// Their sum.
    Total,
    /// The least.
    Min,
    /// The greatest.
    Max,
    /// Their average.
    Avg,
    /// Number, average and sum.
    Stats,
    /// A histogram of powers of two.
    Hist,
    /// A histogram of equal steps.
    Lhist,
    /// Values by time.
    Tseries,
}

impl Sum {
    /// Whether the value can be read as a number.
    pub const fn is_number(self) -> bool {
        matches!(self, Self::Count | Self::Total | Self::Min | Self::Max | Self::Avg)
    }
    const fn name(self) -> &'static str {
        match self {
            Self::Count => "count_t",
            Self::Total => "sum_t",
            Self::Min => "min_t",
            Self::Max => "max_t",
            Self::Avg => "avg_t",
            Self::Stats => "stats_t",
            Self::Hist => "hist_t",
            Self::Lhist => "lhist_t",
            Self::Tseries => "tseries_t",
        }
    }
}

/// The type of a value.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Type {
    /// Not known yet, or nothing.
    None,
    /// What `void *` points to.
    Void,
    /// `true` or `false`.
    Bool,
    /// A whole number.
    Int(Int),
    /// A text of at most so many bytes; 0 while that is not known.
    Text(u32),
    /// Bytes, at most so many.
    Buffer(u32),
    /// An address.
    Pointer(Rc<Self>),
    /// So many of one type.
    Array(Rc<Self>, u32),
    /// A structure or union of this name, and its size.
    Struct(Rc<str>, u32),
    /// Several values.
    Tuple(Rc<[Self]>),
    /// Several values with names.
    Record(Rc<[(String, Self)]>),
    /// What a map adds up; `true` if values have signs.
    Sum(Sum, bool),
    /// A stack of the program.
    Stack,
    /// An address that is shown as a name.
    Symbol,
    /// An address of the network.
    Inet,
    /// A user that is shown by name.
    Username,
    /// A moment that is shown as text.
    Timestamp,
    /// An address of a network card.
    Mac,
    /// A control group that is shown as paths.
    CgroupPath,
}

impl Type {
    /// A signed integer of so many bytes.
    pub const fn int(size: u8) -> Self {
        Self::Int(Int { size, signed: true, flexible: false, of: None })
    }
    /// An unsigned integer of so many bytes.
    pub const fn uint(size: u8) -> Self {
        Self::Int(Int { size, signed: false, flexible: false, of: None })
    }
    /// A pointer to a type.
    pub fn pointer(to: Self) -> Self {
        Self::Pointer(Rc::new(to))
    }
    /// The type of a literal that is not negative.
    pub fn of_literal(value: u64) -> Self {
        match i64::try_from(value) {
            Ok(value) => match Self::of_negative(value) {
                Self::Int(int) => Self::Int(Int { flexible: true, ..int }),
                other => other,
            },
            Err(_) => Self::uint(8),
        }
    }
    /// The smallest signed type that holds a value.
    pub fn of_negative(value: i64) -> Self {
        let size = if i8::try_from(value).is_ok() {
            1
        } else if i16::try_from(value).is_ok() {
            2
        } else if i32::try_from(value).is_ok() {
            4
        } else {
            8
        };
        Self::int(size)
    }
    /// Whether it is an integer.
    pub const fn is_int(&self) -> bool {
        matches!(self, Self::Int(_))
    }
    /// Whether nothing is known of it.
    pub const fn is_none(&self) -> bool {
        matches!(self, Self::None)
    }
    /// Whether it can be read as a number without a cast.
    pub fn is_number(&self) -> bool {
        matches!(self, Self::Int(_) | Self::Bool) || matches!(self, Self::Sum(sum, _) if sum.is_number())
    }
    /// Whether it can decide in a condition.
    pub fn is_condition(&self) -> bool {
        self.is_number() || matches!(self, Self::Pointer(_))
    }
    /// Whether its values have signs.
    pub const fn is_signed(&self) -> bool {
        match self {
            Self::Int(int) => int.signed,
            Self::Sum(_, signed) => *signed,
            _ => false,
        }
    }
    /// Bytes of a value, as C lays it out.
    pub fn size(&self) -> u32 {
        match self {
            Self::None | Self::Void => 0,
            Self::Bool => 1,
            Self::Int(int) => u32::from(int.size),
            Self::Text(size) | Self::Struct(_, size) => *size,
            Self::Buffer(size) => size.saturating_add(4),
            Self::Pointer(_) | Self::Username => 8,
            Self::Array(of, count) => of.size().saturating_mul(*count),
            Self::Tuple(parts) => layout(parts.iter()).1,
            Self::Record(fields) => layout(fields.iter().map(|(_, ty)| ty)).1,
            Self::Sum(Sum::Avg | Sum::Stats | Sum::Min | Sum::Max, _) => 16,
            Self::Sum(..) => 8,
            Self::Stack | Self::Timestamp | Self::CgroupPath | Self::Symbol => 16,
            Self::Inet => 24,
            Self::Mac => 8,
        }
    }
    /// What its address is a multiple of in a tuple.
    fn alignment(&self) -> u32 {
        match self {
            Self::Bool => 1,
            Self::Int(int) => u32::from(int.size),
            Self::Text(_) => 1,
            Self::Array(of, _) => of.alignment(),
            Self::Struct(..) => 1,
            Self::Tuple(parts) => parts.iter().map(Self::alignment).max().unwrap_or(1),
            Self::Record(fields) => fields.iter().map(|(_, ty)| ty.alignment()).max().unwrap_or(1),
            Self::Buffer(_) => 4,
            _ => 8,
        }
    }
    /// The types of a tuple's or record's parts.
    pub fn parts(&self) -> Vec<&Self> {
        match self {
            Self::Tuple(parts) => parts.iter().collect(),
            Self::Record(fields) => fields.iter().map(|(_, ty)| ty).collect(),
            _ => Vec::new(),
        }
    }
    /// Without what only literals and enumerations have.
    pub(crate) fn plain(&self) -> Self {
        match self {
            Self::Int(int) => Self::Int(Int { flexible: false, of: None, ..int.clone() }),
            other => other.clone(),
        }
    }
    /// The type that holds values of both, or `None`.
    pub(crate) fn promoted(&self, new: &Self) -> Option<Self> {
        match (self, new) {
            (Self::None, Self::Sum(sum, signed)) if sum.is_number() => {
                Some(if *signed { Self::int(8) } else { Self::uint(8) })
            }
            (Self::None, _) => Some(new.clone()),
            (_, Self::None) => Some(self.clone()),
            (Self::Int(old), Self::Int(new)) => Some(Self::Int(promoted_int(old, new))),
            (Self::Int(old), Self::Sum(sum, signed)) if sum.is_number() => {
                let new = Int { size: 8, signed: *signed, flexible: false, of: None };
                Some(Self::Int(promoted_int(old, &new)))
            }
            (Self::Text(old), Self::Text(new)) => Some(Self::Text(*old.max(new))),
            (Self::Buffer(old), Self::Buffer(new)) => Some(Self::Buffer(*old.max(new))),
            (Self::Pointer(old), Self::Pointer(new)) => promoted_pointer(old, new),
            (Self::Tuple(old), Self::Tuple(new)) if old.len() == new.len() => {
                let parts: Option<Vec<Self>> =
                    old.iter().zip(new.iter()).map(|(old, new)| old.promoted(new)).collect();
                parts.map(|parts| Self::Tuple(parts.into()))
            }
            (Self::Record(old), Self::Record(new)) if old.len() == new.len() => promoted_record(old, new),
            (Self::Sum(old, signed), Self::Sum(new, other)) if old == new => {
                Some(Self::Sum(*old, *signed || *other))
            }
            (Self::Array(old, 0), Self::Array(new, _)) if old == new => Some(Self::Array(old.clone(), 0)),
            (old, new) if old == new => Some(old.clone()),
            _ => None,
        }
    }
}

fn promoted_pointer(old: &Rc<Type>, new: &Rc<Type>) -> Option<Type> {
    match (&**old, &**new) {
        (Type::Void, _) => Some(Type::Pointer(old.clone())),
        (_, Type::Void) => Some(Type::Pointer(new.clone())),
        (a, b) => a.promoted(b).map(Type::pointer),
    }
}

/// Records may have their fields in another order; the first order stays.
fn promoted_record(old: &[(String, Type)], new: &[(String, Type)]) -> Option<Type> {
    let field = |(name, ty): &(String, Type)| {
        let other = new.iter().find(|(other, _)| other == name)?;
        Some((name.clone(), ty.promoted(&other.1)?))
    };
    let fields: Option<Vec<_>> = old.iter().map(field).collect();
    fields.map(|fields| Type::Record(fields.into()))
}

/// The integer type that holds values of both; `int64` where no type does.
fn promoted_int(old: &Int, new: &Int) -> Int {
    if old == new {
        return old.clone();
    }
    let of = None;
    let larger = old.size.max(new.size);
    if old.signed == new.signed {
        return Int { size: larger, signed: old.signed, flexible: old.flexible && new.flexible, of };
    }
    if old.flexible || new.flexible {
        let signed = (!old.flexible && old.signed) || (!new.flexible && new.signed);
        return Int { size: larger, signed, flexible: false, of };
    }
    let (signed, unsigned) = if old.signed { (old, new) } else { (new, old) };
    let size = if signed.size > unsigned.size { signed.size } else { (larger * 2).min(8) };
    Int { size, signed: true, flexible: false, of }
}

/// Where the parts of a tuple are, and its size.
pub(crate) fn layout<'a>(parts: impl Iterator<Item = &'a Type>) -> (Vec<u32>, u32) {
    let (mut at, mut largest, mut offsets) = (0u32, 1, Vec::new());
    for part in parts {
        let alignment = part.alignment().max(1);
        largest = largest.max(alignment);
        at = at.checked_next_multiple_of(alignment).unwrap_or(u32::MAX);
        offsets.push(at);
        at = at.saturating_add(part.size());
    }
    (offsets, at.checked_next_multiple_of(largest).unwrap_or(u32::MAX))
}

impl fmt::Display for Type {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let list = |parts: &[Self]| parts.iter().map(Self::to_string).collect::<Vec<_>>().join(",");
        match self {
            Self::None => out.write_str("none"),
            Self::Void => out.write_str("void"),
            Self::Bool => out.write_str("bool"),
            Self::Int(Int { of: Some(name), .. }) => write!(out, "enum {name}"),
            Self::Int(int) => {
                write!(out, "{}int{}", if int.signed { "" } else { "u" }, u32::from(int.size) * 8)
            }
            Self::Text(0) => out.write_str("string"),
            Self::Text(size) => write!(out, "string[{size}]"),
            Self::Buffer(size) => write!(out, "buffer[{size}]"),
            Self::Pointer(to) => write!(out, "{to} *"),
            Self::Array(of, count) => write!(out, "{of}[{count}]"),
            Self::Struct(name, _) => write!(out, "struct {name}"),
            Self::Tuple(parts) => write!(out, "({})", list(parts)),
            Self::Record(fields) => {
                let fields = fields.iter().map(|(name, ty)| format!(".{name} = {ty}")).collect::<Vec<_>>();
                write!(out, "record {{ {} }}", fields.join(", "))
            }
            Self::Sum(sum @ (Sum::Count | Sum::Hist | Sum::Lhist | Sum::Tseries), _) => {
                out.write_str(sum.name())
            }
            Self::Sum(sum, signed) => write!(out, "{}{}", if *signed { "" } else { "u" }, sum.name()),
            Self::Stack => out.write_str("ustack"),
            Self::Symbol => out.write_str("usym_t"),
            Self::Inet => out.write_str("inet"),
            Self::Username => out.write_str("username"),
            Self::Timestamp => out.write_str("timestamp"),
            Self::Mac => out.write_str("mac_address"),
            Self::CgroupPath => out.write_str("cgroup_path"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::Type;

    #[test]
    fn integers_grow_to_what_holds_both() {
        let cases = [
            (Type::int(1), Type::int(4), "int32"),
            (Type::uint(1), Type::int(1), "int16"),
            (Type::uint(4), Type::int(8), "int64"),
            (Type::uint(8), Type::int(1), "int64"),
            (Type::of_literal(5), Type::uint(8), "uint64"),
            (Type::of_literal(300), Type::uint(1), "uint16"),
        ];
        for (old, new, result) in cases {
            assert_eq!(old.promoted(&new).expect("a type").to_string(), result, "{old} {new}");
            assert_eq!(new.promoted(&old).expect("a type").to_string(), result, "{new} {old}");
        }
    }

    #[test]
    fn a_tuple_is_laid_out_as_c_does() {
        let tuple = |parts: &[Type]| Type::Tuple(parts.to_vec().into());
        let (one, two, four, eight) = (Type::int(1), Type::int(2), Type::int(4), Type::int(8));
        assert_eq!(tuple(&[one.clone(), eight.clone(), one.clone(), eight]).size(), 32);
        assert_eq!(tuple(&[one.clone(), two.clone(), four.clone()]).size(), 8);
        assert_eq!(tuple(&[four, two, one]).size(), 8);
    }

    #[test]
    fn what_does_not_go_together_has_no_common_type() {
        assert_eq!(Type::int(8).promoted(&Type::Text(3)), None);
        assert_eq!(Type::Text(3).promoted(&Type::Text(9)), Some(Type::Text(9)));
        assert_eq!(Type::Tuple(vec![Type::int(1)].into()).promoted(&Type::Tuple(Vec::new().into())), None);
    }
}
