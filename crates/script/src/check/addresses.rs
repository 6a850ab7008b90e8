//! Which addresses an expression may have, as far as that is known before the script runs.
//!
//! In: a block's expressions. Out: chains of loads with constant steps, one for each value that the expression may
//! have; or why there are none. Invariants: a chain that is returned is what the interpreter computes on one of its
//! ways; the search ends, however
//! variables depend on each other. Does not: decide what is recorded.

use std::collections::HashMap;

use super::lower::variable;
use super::parts::Parts;
use crate::bytes::wrap;
use crate::calls::Meaning;
use crate::diagnostic::At;
use crate::memory::{MOST_POINTERS, Root};
use crate::program::{Op, Typed};
use crate::tree::Binary;
use crate::types::{Int, Type};

/// Most values that one expression may have.
const MOST: usize = 16;
/// Most expressions inside each other, with those of variables; and in all, for one block.
const MOST_DEPTH: u32 = 200;
const MOST_STEPS: u32 = 1 << 20;

/// What an address is counted from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Origin {
    /// The script's own variables and parameters.
    Own,
    /// Nothing: it is a constant.
    Constant,
    /// A value of the hit.
    Root(Root),
    /// What the function returned.
    Returned,
}

/// An address: an origin, the words that are loaded on the way, and a distance.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Address {
    pub(super) origin: Origin,
    pub(super) through: Vec<i64>,
    pub(super) add: i64,
}

/// Why an address is not known.
#[derive(Debug, Clone)]
pub(super) struct Unknown {
    pub(super) why: &'static str,
    pub(super) at: At,
}

type Addresses = Result<Vec<Address>, Unknown>;

impl Address {
    fn of(origin: Origin) -> Vec<Self> {
        vec![Self { origin, through: Vec::new(), add: 0 }]
    }
    fn constant(value: i64) -> Vec<Self> {
        vec![Self { origin: Origin::Constant, through: Vec::new(), add: value }]
    }
    fn as_constant(&self) -> Option<i64> {
        (self.origin == Origin::Constant && self.through.is_empty()).then_some(self.add)
    }
    /// The word that is there.
    fn loaded(mut self) -> Self {
        self.through.push(self.add);
        Self { add: 0, ..self }
    }
    fn plus(mut self, by: i64) -> Self {
        self.add = self.add.wrapping_add(by);
        self
    }
}

/// Finds addresses in one block.
pub(super) struct Finder<'p> {
    parts: &'p Parts<'p>,
    /// What is known of variables; `None` while it is being found.
    locals: HashMap<usize, Option<Addresses>>,
    maps: HashMap<usize, Option<Addresses>>,
    /// Expressions inside each other that are being looked at, and how many may be looked at in all.
    depth: u32,
    left: u32,
}

impl<'p> Finder<'p> {
    pub(super) fn new(parts: &'p Parts<'p>) -> Self {
        Self { parts, locals: HashMap::new(), maps: HashMap::new(), depth: 0, left: MOST_STEPS }
    }
    /// Looks at an expression, which may lead to itself through a variable.
    fn bounded(
        &mut self,
        expr: &'p Typed,
        look: impl FnOnce(&mut Self, &'p Typed) -> Addresses,
    ) -> Addresses {
        if self.depth > MOST_DEPTH || self.left == 0 {
            return Err(Unknown { why: "too many variables lead to the address", at: expr.at.clone() });
        }
        self.depth += 1;
        self.left -= 1;
        let found = look(self, expr);
        self.depth -= 1;
        found
    }
    /// The values of an expression of eight bytes, or of a constant.
    pub(super) fn values(&mut self, expr: &'p Typed) -> Addresses {
        self.bounded(expr, Self::values_inside)
    }
    fn values_inside(&mut self, expr: &'p Typed) -> Addresses {
        let no = |why| Err(Unknown { why, at: expr.at.clone() });
        let whole = expr.ty.size() == 8;
        match &*expr.op {
            Op::Zero => Ok(Address::constant(0)),
            Op::Int(value) => Ok(Address::constant(*value)),
            Op::Local(slot) => self.local(*slot, expr),
            Op::Map { map, .. } => self.map(*map, expr),
            Op::AddressOfLocal(_) | Op::Positional { .. } => Ok(Address::of(Origin::Own)),
            Op::Compute(Binary::Add, a, b) => self.sum(a, b, 1, expr),
            Op::Compute(Binary::Subtract, a, b) => self.sum(a, b, -1, expr),
            Op::Offset { pointer, by, scale } => self.sum(pointer, by, *scale, expr),
            Op::If { then, other, .. } => both(self.values(then)?, self.values(other)?, expr),
            Op::Block { value, .. } => self.values(value),
            Op::Cast(of) => self.cast(of, &expr.ty),
            Op::Load { address, bits: None } if whole => self.loaded(address),
            Op::Slice { bits: None, .. } if whole => {
                Ok(self.place(expr)?.into_iter().map(Address::loaded).collect::<Vec<_>>())
                    .and_then(|all| near(all, expr))
            }
            Op::Load { .. } | Op::Slice { .. } => no("an address is made of what is no whole pointer"),
            Op::Call { meaning: Meaning::Argument(nth), .. } => {
                Ok(Address::of(Origin::Root(Root::Argument(*nth))))
            }
            Op::Call { meaning: Meaning::Retval, .. } => Ok(Address::of(Origin::Returned)),
            Op::Call { meaning: Meaning::Reg, args } => {
                let name = String::from_utf8_lossy(args.first().and_then(Typed::literal).unwrap_or_default())
                    .into_owned();
                Ok(Address::of(Origin::Root(Root::Register(name.into()))))
            }
            Op::Call { meaning: Meaning::Uaddr, args } => {
                Ok(Address::of(Origin::Root(Root::Variable(variable(args)))))
            }
            Op::Call { meaning: Meaning::Uptr, args } => self.values(&args[0]),
            Op::Part(of, index) if whole => self.part(of, *index, expr),
            Op::Step { .. } => no("the address changes while the block runs"),
            _ => no("the address is computed, and known only when the block runs"),
        }
    }
    /// A part of a tuple or record, where it is put together.
    fn part(&mut self, of: &'p Typed, index: usize, expr: &'p Typed) -> Addresses {
        let values = match &*of.op {
            Op::Tuple(parts) => return self.values(&parts[index]),
            Op::Local(slot) if !self.parts.changing.contains(slot) => self.parts.locals.get(slot),
            Op::Map { map, .. } => self.parts.maps.get(map),
            _ => None,
        };
        let mut all = Vec::new();
        for value in values.cloned().unwrap_or_default() {
            let Op::Tuple(parts) = &*value.op else {
                return Err(Unknown { why: "the pointer is in a copy of a copy", at: expr.at.clone() });
            };
            all = both(all, self.values(&parts[index])?, expr)?;
        }
        match all.is_empty() {
            true => Err(Unknown { why: "the pointer was not put there in this block", at: expr.at.clone() }),
            false => Ok(all),
        }
    }
    /// Where the bytes of a structure or array come from.
    fn place(&mut self, expr: &'p Typed) -> Addresses {
        self.bounded(expr, Self::place_inside)
    }
    fn place_inside(&mut self, expr: &'p Typed) -> Addresses {
        match &*expr.op {
            Op::Load { address, bits: None } => self.values(address),
            Op::Slice { of, offset, scale, bits: None } => {
                let (of, by) = (self.place(of)?, self.values(offset)?);
                let by = by.iter().map(Address::as_constant).collect::<Option<Vec<i64>>>();
                let Some(by) = by else {
                    let why = "an index is known only when the block runs";
                    return Err(Unknown { why, at: offset.at.clone() });
                };
                let all =
                    of.iter().flat_map(|of| by.iter().map(|by| of.clone().plus(by * i64::from(*scale))));
                few(all.collect(), expr)
            }
            Op::Local(slot) if !self.parts.changing.contains(slot) => {
                let values = self.parts.locals.get(slot).cloned().unwrap_or_default();
                self.places(&values, expr)
            }
            Op::Map { map, .. } => {
                let values = self.parts.maps.get(map).cloned().unwrap_or_default();
                self.places(&values, expr)
            }
            _ => Err(Unknown {
                why: "the pointer is in a value that is no memory of the hit",
                at: expr.at.clone(),
            }),
        }
    }
    /// The same of all values that a variable or map may have. Those that are zero lead nowhere.
    fn places(&mut self, values: &[&'p Typed], expr: &'p Typed) -> Addresses {
        let mut all = Vec::new();
        for value in values.iter().filter(|value| !matches!(&*value.op, Op::Zero)) {
            // What is assigned from itself has no place of its own.
            if matches!(&*value.op, Op::Local(_) | Op::Map { .. }) {
                return Err(Unknown { why: "the pointer is in a copy of a copy", at: expr.at.clone() });
            }
            all = both(all, self.place(value)?, expr)?;
        }
        match all.is_empty() {
            true => Err(Unknown { why: "the pointer was not read in this block", at: expr.at.clone() }),
            false => Ok(all),
        }
    }
    fn local(&mut self, slot: usize, expr: &'p Typed) -> Addresses {
        let changes =
            || Err(Unknown { why: "the address changes while the block runs", at: expr.at.clone() });
        match self.locals.get(&slot) {
            Some(Some(known)) => return known.clone(),
            Some(None) => return changes(),
            None if self.parts.changing.contains(&slot) => return changes(),
            None => {}
        }
        self.locals.insert(slot, None);
        let values = self.parts.locals.get(&slot).cloned().unwrap_or_default();
        let all = self.all(&values, expr);
        self.locals.insert(slot, Some(all.clone()));
        all
    }
    /// What this block puts into a map. What other hits put there is no memory of this one.
    fn map(&mut self, map: usize, expr: &'p Typed) -> Addresses {
        let no = |why| Err(Unknown { why, at: expr.at.clone() });
        match self.maps.get(&map) {
            Some(Some(known)) => return known.clone(),
            Some(None) => return no("the address changes while the block runs"),
            None => {}
        }
        self.maps.insert(map, None);
        let values = self.parts.maps.get(&map).cloned().unwrap_or_default();
        let all = match values.is_empty() {
            true => no("another block put the address into the map"),
            false => self.all(&values, expr),
        };
        self.maps.insert(map, Some(all.clone()));
        all
    }
    fn all(&mut self, values: &[&'p Typed], expr: &'p Typed) -> Addresses {
        let mut all = Vec::new();
        for value in values {
            all = both(all, self.values(value)?, expr)?;
        }
        Ok(all)
    }
    /// `a + b * scale`; one of them is a constant.
    fn sum(&mut self, a: &'p Typed, b: &'p Typed, scale: i64, expr: &'p Typed) -> Addresses {
        let (left, right) = (self.values(a)?, self.values(b)?);
        let mut all = Vec::new();
        for left in &left {
            for right in &right {
                all.push(match (left.as_constant(), right.as_constant()) {
                    (_, Some(by)) => left.clone().plus(by.wrapping_mul(scale)),
                    (Some(by), _) if scale == 1 => right.clone().plus(by),
                    _ => {
                        let why = "the distance is known only when the block runs";
                        return Err(Unknown { why, at: b.at.clone() });
                    }
                });
            }
        }
        few(all, expr)
    }
    fn cast(&mut self, of: &'p Typed, ty: &Type) -> Addresses {
        if matches!(of.ty, Type::Text(_)) {
            return Ok(Address::of(Origin::Own));
        }
        let values = self.values(of)?;
        // An address has no sign: a negative number of few bits is a small address.
        let int = match (ty, &of.ty) {
            (Type::Int(int), _) => int.clone(),
            (Type::Pointer(_), Type::Int(int)) => Int { signed: false, ..int.clone() },
            _ => return Ok(values),
        };
        let one = |address: Address| match address.as_constant() {
            Some(value) => Ok(Address { add: wrap(value, &int), ..address }),
            None if int.size == 8 => Ok(address),
            None => Err(Unknown { why: "an address is made of what is no whole pointer", at: of.at.clone() }),
        };
        values.into_iter().map(one).collect()
    }
    fn loaded(&mut self, address: &'p Typed) -> Addresses {
        let all = self.values(address)?.into_iter().map(Address::loaded).collect();
        near(all, address)
    }
}

/// What either of two gives.
fn both(mut one: Vec<Address>, other: Vec<Address>, expr: &Typed) -> Addresses {
    one.extend(other);
    few(one, expr)
}

fn few(all: Vec<Address>, expr: &Typed) -> Addresses {
    let mut distinct: Vec<Address> = Vec::new();
    all.into_iter().for_each(|one| {
        if !distinct.contains(&one) {
            distinct.push(one)
        }
    });
    match distinct.len() > MOST {
        true => Err(Unknown { why: "the address may be one of too many", at: expr.at.clone() }),
        false => Ok(distinct),
    }
}

/// Addresses that are not too far, and can be reached.
fn near(all: Vec<Address>, expr: &Typed) -> Addresses {
    match all.iter().any(|one| one.through.len() >= MOST_POINTERS) {
        true => Err(Unknown { why: "more pointers lead to it than are followed", at: expr.at.clone() }),
        false => Ok(all),
    }
}
