//! What functions of Rust's return in registers, as far as that is certain.
//!
//! In: of what a value consists. Out: whether it is returned as C would return it. Rust's own way changes from one compiler
//! to the next, and debug information does not say which functions are `extern "C"`. So a value has registers only where
//! both ways agree (PRO-1). Does not: know parameters, whose locations count.
//!
//! ```text
//!   the value                                       Rust's way                C's way
//!   one scalar                                      its register              the same
//!   two scalars, 8 bytes apart                      a register for each       the same
//!   two scalars within 8 bytes                      a register for each       one for both
//!   up to 8 bytes of anything else, with integers   one general register      the same
//!   more                                            depends on the version    by C's classes
//! ```
//!
//! Source: `fn_abi_adjust_for_abi` in rustc's ty_utils/src/abi.rs, `BackendRepr` in its abi crate.

use super::{Layout, ValueType};

/// A scalar: its offset, its bytes, whether it is a float.
type Scalar = (u64, u8, bool);

/// Whether a value of so many bytes is returned as C would return it, and in registers.
pub(super) fn is_returned_as_in_c(layout: &Layout, bytes: u64) -> bool {
    if let Layout::Wide { .. } = layout {
        return bytes == 16;
    }
    let mut scalars = Vec::new();
    let Some(only_scalars) = gather(layout, 0, &mut scalars) else { return false };
    match (only_scalars, &scalars[..]) {
        (true, [(0, size, _)]) => u64::from(*size) == bytes,
        (true, [(0, ..), (8, ..)]) => bytes <= 16,
        (true, [] | [_] | [_, _]) => false,
        (_, all) => bytes <= 8 && all.iter().any(|(.., is_float)| !is_float),
    }
}

/// Notes the scalars of a value; returns whether there is nothing but scalars, as an array is no scalar. `None` if not all of
/// it is known.
fn gather(layout: &Layout, at: u64, scalars: &mut Vec<Scalar>) -> Option<bool> {
    match layout {
        Layout::Value(of, bytes) => {
            if *bytes > 0 {
                scalars.push((at, *bytes, matches!(of, ValueType::Float(_))));
            }
            Some(true)
        }
        Layout::Record(members) => members.iter().try_fold(true, |all, member| {
            let inner = gather(&member.of, at.checked_add(member.offset)?, scalars)?;
            Some(all && inner)
        }),
        Layout::Array(of, ..) => gather(of, at, scalars).map(|_| false),
        Layout::Text(_) => {
            scalars.push((at, 1, false));
            Some(false)
        }
        Layout::Wide { .. } | Layout::Bits { .. } | Layout::OneOf { .. } | Layout::Unknown => None,
    }
}

#[cfg(test)]
mod tests {
    use super::super::LaidOut;
    use super::{Layout, ValueType, is_returned_as_in_c};

    fn record(members: impl IntoIterator<Item = (u64, Layout)>) -> Layout {
        let member = |(offset, of)| LaidOut { name: String::new(), offset, of };
        Layout::Record(members.into_iter().map(member).collect())
    }

    #[test]
    fn a_value_has_registers_where_both_ways_agree() {
        let int = |bytes| Layout::Value(ValueType::Integer { bytes, signed: false }, bytes);
        let float = |bytes| Layout::Value(ValueType::Float(bytes), bytes);
        let array = |of: &Layout, count| Layout::Array(Box::new(of.clone()), 1, count);
        let cases = [
            (record([(0, int(8)), (8, int(8))]), 16, true),
            (record([(0, float(8)), (8, int(1))]), 16, true),
            (record([(0, record([(0, float(4))]))]), 4, true),
            (record([(0, record([])), (0, int(8))]), 8, true),
            (record([(0, int(2)), (2, int(1)), (3, int(1))]), 4, true),
            (record([(0, array(&int(1), 3)), (3, int(1))]), 4, true),
            (Layout::Wide { signed: false }, 16, true),
            // Rust has each in a register of its own, C has both in one.
            (record([(0, int(1)), (4, int(4))]), 8, false),
            (record([(0, float(4)), (4, float(4))]), 8, false),
            // C has floats in a vector register, Rust does not.
            (array(&float(4), 2), 8, false),
            (record([(0, array(&int(8), 1)), (8, int(8))]), 16, false),
            (record([(0, int(4)), (4, int(4)), (8, int(8))]), 16, false),
            // It is aligned to 16 bytes.
            (record([(0, int(8))]), 16, false),
            (record([(0, int(4)), (4, Layout::Unknown)]), 8, false),
            (record([]), 0, false),
        ];
        for (layout, bytes, agrees) in cases {
            assert_eq!(is_returned_as_in_c(&layout, bytes), agrees, "{layout:?}");
        }
    }
}
