//! Prototypes of functions that Go's compiler made (ABIInternal), on x86-64.
//!
//! In: DWARF and a function's entry. Out: a [`Prototype`], in which general registers are counted in Go's own order
//! ([`GO_GENERAL`]). Each part of a parameter that is one number takes one register, in order. A parameter for whose
//! parts too few registers are left is on the stack as a whole. What is returned is assigned likewise, from the first
//! register on. Source: "Go internal ABI specification", cmd/compile/abi-internal.md. Go before 1.22 does not declare
//! parameters without a name. Those behind them are then in later registers than the rules say. Invariant: PRO-7 where
//! the rules do not say for certain where parameters are, or a location at the first instruction contradicts them, only
//! locations count. Does not: know the older way, by the stack alone; such units do not say "regabi".

use super::entry::{AtEntry, GO_GENERAL, GO_VECTORS, Rules};
use super::parts::{Layout, Parts, Piece, Whereabouts};
use super::{Declared, DeclaredParameter, LaidOut, ParameterPlace, Prototype, ValueType};
use crate::debuginfo::DebugInfo;
use crate::entries::{At, Entry, MAX_CHAIN};

/// Parts of one value that are looked at; no value in registers has more.
const MOST_PARTS: usize = GO_GENERAL.len() + GO_VECTORS as usize;
/// Name of the parameter by which a generic function is given its types. Optimized code does not declare it. Source:
/// `shapeSig` in cmd/compile/internal/noder/reader.go: it stands behind the receiver.
const DICTIONARY: &str = ".dict";
/// The first version 1.n that declares parameters without a name, too.
const DECLARES_BLANK: u32 = 22;

/// Types and members that are looked at for one function; more are forged.
const MOST_LOOKED_AT: u32 = 10_000;
/// Bytes of everything that registers return, each result from a word of its own on.
const MOST_RETURNED: u64 = 8 * MOST_PARTS as u64;

/// A part of a value that one register holds: where it is in the value, its bytes, and whether it is a float.
type Part = (u64, u64, bool);

/// Registers that are taken already.
#[derive(Default)]
struct Taken {
    general: u8,
    vector: u8,
}

impl Taken {
    /// Takes a register for each part; `None` if there are not enough.
    fn take(&mut self, parts: &[Part]) -> Option<Vec<Piece>> {
        let (mut general, mut vector) = (self.general, self.vector);
        let mut pieces = Vec::new();
        for (offset, bytes, is_float) in parts {
            let place = match is_float {
                true => ParameterPlace::Vector(vector),
                false => ParameterPlace::General(general),
            };
            if *is_float {
                vector += 1
            } else {
                general += 1
            };
            pieces.push(Piece { place, offset: u8::try_from(*offset).ok()?, bytes: *bytes as u8 });
        }
        let fits = usize::from(general) <= GO_GENERAL.len() && u16::from(vector) <= GO_VECTORS;
        fits.then(|| (self.general, self.vector) = (general, vector))?;
        Some(pieces)
    }
}

impl DebugInfo {
    pub(super) fn of_go(&self, entry: &Entry<'_>, at: u64) -> gimli::Result<Option<Prototype>> {
        let root = entry.root()?;
        let producer = root.map(|root| root.text(gimli::DW_AT_producer)).transpose()?.flatten();
        let Some(producer) = producer.filter(|producer| self.is_x86_64 && producer.contains("regabi")) else {
            return Ok(None);
        };
        let (declared, results) = (self.parameters(entry)?, self.results(entry)?);
        let noted = self.compiled(entry, &declared, (at, false, Rules::Go))?.parameters;
        let (mut shapes, mut left) = (Vec::new(), MOST_LOOKED_AT);
        for one in &declared {
            let mut parts = Vec::new();
            let fits = self.parts_of((one.of, 0), &mut parts, (0, &mut left))?;
            shapes.push((fits, parts));
        }
        let name = self.source(entry)?.name()?.unwrap_or_default();
        let is_noted = declared.iter().any(|one| one.name == DICTIONARY);
        let hidden: &[Option<usize>] = match name.split_once("[go.shape.").filter(|_| !is_noted) {
            Some((_, behind)) if behind.ends_with(']') => &[None, Some(0)],
            // A method, or a function within one.
            Some(_) => &[None, Some(0), Some(1)],
            None => &[None],
        };
        let mut possible = hidden.iter().filter_map(|hidden| assigned(&shapes, &noted, *hidden));
        let is_clear = minor_version(&producer).is_some_and(|minor| minor >= DECLARES_BLANK);
        let found = possible.next().filter(|_| possible.next().is_none());
        let located = shapes.iter().zip(&noted).map(|((fits, parts), noted)| noted.holding(*fits, parts));
        let places: Vec<Whereabouts> = match found {
            Some(found) if is_clear => found,
            // What the rules have on the stack is there. Parameters that are not declared take still more registers.
            Some(found) => {
                let is_stack = |one: &Whereabouts| matches!(one, Whereabouts::Stack(_));
                let both = found.into_iter().zip(located);
                both.map(|(rule, located)| if is_stack(&rule) { rule } else { located }).collect()
            }
            None => located.collect(),
        };
        let places = declared.iter().zip(places);
        let parameters: gimli::Result<Vec<DeclaredParameter>> = places
            .map(|(Declared { name, of, .. }, at)| self.declared_in_go(name.clone(), *of, at))
            .collect();
        let (value, value_parts) = self.returned_by_go(&results)?;
        Ok(Some(Prototype { parameters: parameters?, value, value_parts }))
    }
    /// What a function returns, in the order of its declaration.
    pub(crate) fn results<'u>(&'u self, entry: &Entry<'u>) -> gimli::Result<Vec<(String, At<'u>)>> {
        let mut results = Vec::new();
        for child in self.source(entry)?.children()? {
            if is_result(&child)? {
                let Some(of) = self.type_of(&child)? else { return Err(gimli::Error::UnexpectedNull) };
                results.push((child.name()?.unwrap_or_default(), of));
            }
        }
        Ok(results)
    }
    fn declared_in_go(&self, name: String, of: At<'_>, at: Whereabouts) -> gimli::Result<DeclaredParameter> {
        let meaning = self.value_type(of)?;
        let place = match (&meaning, &at) {
            (ValueType::Other(_), _) => ParameterPlace::Elsewhere,
            (_, Whereabouts::Registers(pieces)) if pieces.len() == 1 => pieces[0].place,
            (_, Whereabouts::Stack(offset)) => ParameterPlace::Stack(*offset),
            _ => ParameterPlace::Elsewhere,
        };
        let layout = if matches!(meaning, ValueType::Other(_)) { self.layout(of)? } else { None };
        let parts = layout.map(|layout| Parts { layout, at });
        Ok(DeclaredParameter { name, of: meaning, place, parts })
    }
    /// One value as it is; several as the members of one.
    fn returned_by_go(&self, results: &[(String, At<'_>)]) -> gimli::Result<(ValueType, Option<Parts>)> {
        let mut taken = Taken::default();
        let (mut members, mut pieces, mut begin) = (Vec::new(), Vec::new(), 0);
        let mut left = MOST_LOOKED_AT;
        for (name, of) in results {
            let mut parts = Vec::new();
            let own = match self.parts_of((*of, begin), &mut parts, (0, &mut left))? {
                Fits::Yes => taken.take(&parts),
                Fits::No | Fits::Unknown => None,
            };
            let (Some(own), Some(layout)) = (own, self.layout_of_any(*of)?) else {
                return Ok((ValueType::Unknown, None));
            };
            pieces.extend(own);
            members.push(LaidOut { name: name.clone(), offset: begin, of: layout });
            // Each begins in a register of its own, and so a word of its own.
            begin = begin.saturating_add(self.size(*of)?).next_multiple_of(8);
            if begin > MOST_RETURNED {
                return Ok((ValueType::Unknown, None));
            }
        }
        Ok(match results {
            [] => (ValueType::Void, None),
            [(_, of)] => match (self.value_type(*of)?, members.pop()) {
                (ValueType::Other(name), Some(only)) => {
                    let parts = Parts { layout: only.of, at: Whereabouts::Registers(pieces) };
                    (ValueType::Other(name), Some(parts))
                }
                // A float is in xmm0, a number in rax.
                (value, _) => (value, None),
            },
            _ => {
                let parts = Parts { layout: Layout::Record(members), at: Whereabouts::Registers(pieces) };
                (ValueType::Other("several values".to_owned()), Some(parts))
            }
        })
    }
    /// Appends the parts of a value that begins at an offset.
    fn parts_of(
        &self,
        (of, offset): (At<'_>, u64),
        parts: &mut Vec<Part>,
        (depth, left): (u32, &mut u32),
    ) -> gimli::Result<Fits> {
        let children = u32::try_from(self.bare(of)?.children()?.len()).unwrap_or(u32::MAX);
        let rest = left.checked_sub(children.saturating_add(1)).filter(|_| depth <= MAX_CHAIN);
        let Some(rest) = rest else { return Ok(Fits::Unknown) };
        *left = rest;
        if parts.len() > MOST_PARTS {
            return Ok(Fits::No);
        }
        let (entry, bytes) = (self.bare(of)?, self.size(of)?);
        match (entry.tag(), self.value_type(of)?) {
            _ if entry.is_record() => {
                for member in self.members(&entry)? {
                    let at = offset.saturating_add(member.offset);
                    match self.parts_of((member.of, at), parts, (depth + 1, left))? {
                        Fits::Yes => {}
                        other => return Ok(other),
                    }
                }
                Ok(Fits::Yes)
            }
            (gimli::DW_TAG_array_type, _) => {
                match (self.dimensions(&entry)?[..].first(), self.type_of(&entry)?) {
                    (Some(0), _) => Ok(Fits::Yes),
                    (Some(1), Some(of)) => self.parts_of((of, offset), parts, (depth + 1, left)),
                    (Some(_), _) => Ok(Fits::No),
                    _ => Ok(Fits::Unknown),
                }
            }
            (_, ValueType::Float(_)) => {
                parts.push((offset, bytes, true));
                Ok(Fits::Yes)
            }
            (_, ValueType::Other(_) | ValueType::Void | ValueType::Unknown) => match is_complex(&entry)? {
                true => {
                    parts.extend([offset, offset.saturating_add(bytes / 2)].map(|at| (at, bytes / 2, true)));
                    Ok(Fits::Yes)
                }
                false => Ok(Fits::Unknown),
            },
            _ => {
                parts.push((offset, bytes, false));
                Ok(Fits::Yes)
            }
        }
    }
}

/// Where parameters are by the rules; `None` if a location contradicts them. `hidden`: how many parameters stand before
/// the dictionary of a generic function, where that is not declared.
fn assigned(
    shapes: &[(Fits, Vec<Part>)],
    noted: &[AtEntry],
    hidden: Option<usize>,
) -> Option<Vec<Whereabouts>> {
    let (mut taken, mut is_known) = (Taken::default(), true);
    let mut places = Vec::new();
    for (nth, ((fits, parts), noted)) in shapes.iter().zip(noted).enumerate() {
        if hidden == Some(nth) {
            taken.take(&[(0, 8, false)])?;
        }
        is_known &= *fits != Fits::Unknown;
        let pieces = if is_known && *fits == Fits::Yes { taken.take(parts) } else { None };
        if pieces.as_ref().is_some_and(|pieces| !noted.is_in(pieces)) {
            return None;
        }
        places.push(match (pieces, noted) {
            (Some(pieces), _) => Whereabouts::Registers(pieces),
            (None, AtEntry::In(ParameterPlace::Stack(offset))) if is_known => Whereabouts::Stack(*offset),
            _ => Whereabouts::Unknown,
        });
    }
    Some(places)
}

/// Whether a value can be in registers.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Fits {
    Yes,
    No,
    Unknown,
}

impl AtEntry {
    /// Whether this says nothing else than that a value is in these registers. Parts of which nothing is said may be
    /// unused.
    fn is_in(&self, pieces: &[Piece]) -> bool {
        match self {
            Self::In(place @ (ParameterPlace::General(_) | ParameterPlace::Vector(_))) => {
                matches!(pieces, [one] if one.place == *place)
            }
            Self::Pieces(noted) => {
                let parts: Vec<(u64, u64)> =
                    pieces.iter().map(|piece| (piece.offset.into(), piece.bytes.into())).collect();
                let said = matched(noted, &parts);
                said.is_some_and(|said| {
                    said.iter().zip(pieces).all(|(said, piece)| said.is_none_or(|said| said == piece.place))
                })
            }
            // On the stack there is room for it, which the function fills later; or it is passed there, as assembly does.
            Self::Behind(_) | Self::In(_) => false,
            Self::Apart | Self::Nowhere => true,
        }
    }
    /// Where it says itself that all parts of a value are.
    fn holding(&self, fits: Fits, parts: &[Part]) -> Whereabouts {
        let places = match (self, parts) {
            // What no registers can hold was put there by the caller.
            (Self::In(ParameterPlace::Stack(offset)), _) => {
                let is_passed =
                    fits == Fits::No || fits == Fits::Yes && Taken::default().take(parts).is_none();
                return if is_passed { Whereabouts::Stack(*offset) } else { Whereabouts::Unknown };
            }
            (Self::In(place), [_]) => vec![Some(*place)],
            (Self::Pieces(noted), _) => {
                let ranges: Vec<(u64, u64)> =
                    parts.iter().map(|(offset, bytes, _)| (*offset, *bytes)).collect();
                matched(noted, &ranges).unwrap_or_default()
            }
            _ => return Whereabouts::Unknown,
        };
        let piece = |(place, (offset, bytes, _)): (&Option<ParameterPlace>, &Part)| {
            Some(Piece { place: (*place)?, offset: u8::try_from(*offset).ok()?, bytes: *bytes as u8 })
        };
        let pieces: Option<Vec<Piece>> = places.iter().zip(parts).map(piece).collect();
        pieces.filter(|all| all.len() == parts.len()).map_or(Whereabouts::Unknown, Whereabouts::Registers)
    }
}

/// Where noted pieces say that the parts of a value are (offset and bytes of each); `None` if they do not fit the parts.
/// Optimized code has a piece for each part, and unoptimized code one for padding, too.
fn matched(noted: &[(ParameterPlace, u8)], parts: &[(u64, u64)]) -> Option<Vec<Option<ParameterPlace>>> {
    let said = |place: ParameterPlace| Some(place).filter(|place| *place != ParameterPlace::Elsewhere);
    let mut places = vec![None; parts.len()];
    let in_order = noted.len() <= parts.len()
        && noted
            .iter()
            .zip(parts)
            .all(|((place, bytes), part)| said(*place).is_none() || part.1 == u64::from(*bytes));
    if in_order {
        places.iter_mut().zip(noted).for_each(|(to, (place, _))| *to = said(*place));
        return Some(places);
    }
    let mut begin = 0;
    for (place, bytes) in noted {
        if let Some(place) = said(*place) {
            let nth = parts.iter().position(|part| *part == (begin, u64::from(*bytes)))?;
            places[nth] = Some(place);
        }
        begin += u64::from(*bytes);
    }
    Some(places)
}

/// `Go cmd/compile go1.26.8; regabi`: 26.
fn minor_version(producer: &str) -> Option<u32> {
    let digits = producer.split_once("go1.")?.1;
    digits[..digits.find(|letter: char| !letter.is_ascii_digit()).unwrap_or(digits.len())].parse().ok()
}

/// Whether a parameter of Go's is something that is returned.
pub(super) fn is_result(entry: &Entry<'_>) -> gimli::Result<bool> {
    let is_marked = match entry.value(gimli::DW_AT_variable_parameter)? {
        Some(gimli::AttributeValue::Flag(is_marked)) => is_marked,
        _ => false,
    };
    Ok(is_marked && entry.tag() == gimli::DW_TAG_formal_parameter)
}

fn is_complex(entry: &Entry<'_>) -> gimli::Result<bool> {
    let encoding = entry.value(gimli::DW_AT_encoding)?;
    Ok(matches!(encoding, Some(gimli::AttributeValue::Encoding(gimli::DW_ATE_complex_float))))
}

#[cfg(test)]
mod tests {
    use super::{AtEntry, Fits, ParameterPlace, Piece, Whereabouts, matched, minor_version};

    #[test]
    fn what_registers_can_hold_is_not_looked_for_on_the_stack() {
        let stack = AtEntry::In(ParameterPlace::Stack(8));
        assert_eq!(stack.holding(Fits::Yes, &[(0, 8, false)]), Whereabouts::Unknown);
        assert_eq!(stack.holding(Fits::Unknown, &[]), Whereabouts::Unknown);
        assert_eq!(stack.holding(Fits::No, &[]), Whereabouts::Stack(8));
        assert_eq!(stack.holding(Fits::Yes, &[(0, 8, false); 10]), Whereabouts::Stack(8));
        assert!(!stack.is_in(&[Piece { place: ParameterPlace::General(0), offset: 0, bytes: 8 }]));
    }

    #[test]
    fn pieces_belong_to_parts_with_padding_and_without() {
        let [rax, xmm0] = [ParameterPlace::General(0), ParameterPlace::Vector(0)];
        let (parts, gap) = ([(0, 4), (8, 8)], (ParameterPlace::Elsewhere, 4));
        let both = Some(vec![Some(rax), Some(xmm0)]);
        assert_eq!(matched(&[(rax, 4), (xmm0, 8)], &parts), both);
        assert_eq!(matched(&[(rax, 4), gap, (xmm0, 8)], &parts), both);
        assert_eq!(matched(&[(rax, 4), (ParameterPlace::Elsewhere, 8)], &parts), Some(vec![Some(rax), None]));
        assert_eq!(matched(&[(rax, 8), (xmm0, 8)], &parts), None);
    }

    #[test]
    fn versions_are_read() {
        assert_eq!(minor_version("Go cmd/compile go1.26.8; regabi"), Some(26));
        assert_eq!(minor_version("Go cmd/compile devel go1.27-0a1b; -N -l regabi"), Some(27));
        assert_eq!(minor_version("Go cmd/compile devel +0a1b; regabi"), None);
    }
}
