//! Variables and registers at a place inside a function, by the words that name them.
//!
//! In: debug information, an instruction, a word: `at->next->id`, `reg(rbx)`. Out: its type and place ([`Local`]), or why
//! there is none. Does not: read values.

use trapline_image::{
    Cfa, DebugInfo, Local, MarkArgument, MarkClass, MarkPlace, Misplaced, NoField, ValueType,
};
use trapline_plan::Read;
use trapline_record::Svma;

use crate::beyond;

/// What a word stands for at an instruction.
///
/// # Errors
/// What is wrong with the word, and where.
pub(crate) fn local(
    debug: Option<&DebugInfo>,
    (at, cfa): (Svma, Option<Cfa>),
    word: &str,
) -> Result<Local, Misplaced> {
    let name = word.strip_prefix("reg(").and_then(|rest| rest.strip_suffix(')'));
    if let Some(register) = name.and_then(|name| beyond::register(name.trim())) {
        let place = MarkPlace::Register(register.register - Read::GENERAL);
        let argument = MarkArgument { bytes: 8, class: MarkClass::Unsigned, place };
        return Ok(Local { of: ValueType::Pointer, argument });
    }
    let nothing = Misplaced { at: 0..word.len(), why: NoField::NothingNoted };
    debug.ok_or(nothing)?.local(at, word, cfa)
}
