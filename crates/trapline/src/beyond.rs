//! Values of a call that no argument of its record holds: further argument registers, the stack, any register.
//!
//! In: numbers and names, by the ABI. Out: how the target reads them ([`FieldRead`]); or none. Does not: know types.

use trapline_plan::Read;

use crate::arch::{FIRST_ON_STACK, GENERAL_ARGUMENTS, GO_RETURNED, REGISTERS, RETURNED};
use crate::calls::FieldRead;

/// Number of integer arguments in registers that a record holds.
pub const RECORDED: u8 = 6;

/// Number of registers that hold integer arguments, in C: six on x86-64, eight on arm64. Records hold the first six.
pub const ARGUMENT_REGISTERS: u8 = GENERAL_ARGUMENTS;

/// Number of general registers in which a function returns, and which the record of its return can hold
/// ([`Results`](crate::calls::Results)).
#[must_use]
pub const fn returned_registers(is_go: bool) -> u8 {
    if is_go { GO_RETURNED } else { RETURNED }
}

/// The integer argument of this number, counted from 0, if it is in a register but not in the record.
#[must_use]
pub fn argument_register(nth: u8, bytes: u8) -> Option<FieldRead> {
    (6..GENERAL_ARGUMENTS).contains(&nth).then(|| Read {
        register: Read::GENERAL + nth,
        offsets: Vec::new(),
        bytes,
    })
}

/// A word on the stack at a function's entry: the first one is that of the first argument for which no register was
/// left.
#[must_use]
pub fn stack_argument(word: u8, bytes: u8) -> FieldRead {
    on_stack(FIRST_ON_STACK + 8 * i32::from(word), bytes)
}

/// What is at this distance from the stack pointer at a function's entry.
#[must_use]
pub fn on_stack(offset: i32, bytes: u8) -> FieldRead {
    Read { register: Read::STACK, offsets: vec![offset], bytes }
}

/// The integer argument of this number of a function of Go's, counted from 0, if it is in a register but not in the
/// record.
#[must_use]
pub fn go_argument(nth: u8, bytes: u8) -> Option<FieldRead> {
    /// Go's registers from the seventh on, on x86-64.
    const NAMES: [&str; 3] = ["r9", "r10", "r11"];
    let name = NAMES.get(usize::from(nth.checked_sub(6)?))?;
    Some(Read { bytes, ..register(name)? })
}

/// What is at this distance from the stack pointer at the entry of a function of Go's.
#[must_use]
pub fn on_go_stack(offset: i32, bytes: u8) -> Option<FieldRead> {
    Some(Read { offsets: vec![offset], bytes, ..register("rsp")? })
}

/// The general register of this name.
#[must_use]
pub fn register(name: &str) -> Option<FieldRead> {
    let nth = REGISTERS.iter().position(|one| *one == name)?;
    Some(Read { register: Read::GENERAL + nth as u8, offsets: Vec::new(), bytes: 8 })
}

/// The name of the general register that is read so; `None` if anything else is.
#[must_use]
pub fn register_name(read: &FieldRead) -> Option<&'static str> {
    let nth = read.register.checked_sub(Read::GENERAL).filter(|_| read.offsets.is_empty())?;
    REGISTERS.get(usize::from(nth)).copied()
}

/// The text to which such a value points.
#[must_use]
pub fn text_at(pointer: FieldRead, bytes: u8) -> FieldRead {
    let offsets = pointer.offsets.into_iter().chain([0]).collect();
    Read { offsets, bytes, ..pointer }
}

#[cfg(test)]
mod tests {
    use super::{ARGUMENT_REGISTERS, Read, argument_register, register, stack_argument, text_at};

    #[test]
    fn arguments_are_in_registers_and_then_on_the_stack() {
        assert!(argument_register(5, 8).is_none() && argument_register(ARGUMENT_REGISTERS, 8).is_none());
        let (first, second) = (stack_argument(0, 4), stack_argument(1, 8));
        assert_eq!((first.register, first.bytes, second.offsets[0] - first.offsets[0]), (Read::STACK, 4, 8));
        assert_eq!(text_at(second.clone(), 64).offsets, [second.offsets[0], 0]);
    }

    #[test]
    fn registers_have_names() {
        let name = if ARGUMENT_REGISTERS == 6 { "rbx" } else { "x3" };
        let read = register(name).expect("a register");
        assert_eq!((read.register, read.offsets.len()), (Read::GENERAL + 3, 0));
        assert_eq!(super::register_name(&read), Some(name));
        assert!(register("eax").is_none() && register("").is_none());
    }

    #[test]
    fn go_has_registers_of_its_own() {
        let named = |nth| super::go_argument(nth, 4).map(|read| (super::register_name(&read), read.bytes));
        let on_x86_64 = ARGUMENT_REGISTERS == 6;
        assert_eq!(named(6), on_x86_64.then_some((Some("r9"), 4)));
        assert_eq!((named(5), named(9)), (None, None));
        assert_eq!(super::on_go_stack(8, 4).map(|read| read.offsets), on_x86_64.then(|| vec![8]));
    }
}
