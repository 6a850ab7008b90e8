//! Variables and registers at a place inside a function, by the words that name them.
//!
//! In: debug information, an instruction, a word: `at->next->id`, `reg(rbx)`. Out: its type and place ([`Local`]), or why
//! there is none. Does not: read values.

use trapline_image::{
    CodePlace, DebugInfo, Local, MarkArgument, MarkClass, MarkPlace, Misplaced, NoField, NoPlace, ValueType,
};
use trapline_plan::Read;

use crate::beyond;

/// What a word stands for at an instruction.
///
/// # Errors
/// What is wrong with the word, and where.
pub(crate) fn local(debug: Option<&DebugInfo>, here: &CodePlace, word: &str) -> Result<Local, Misplaced> {
    let name = word.strip_prefix("reg(").and_then(|rest| rest.strip_suffix(')'));
    if let Some(register) = name.and_then(|name| beyond::register(name.trim())) {
        let place = MarkPlace::Register(register.register - Read::GENERAL);
        let argument = MarkArgument { bytes: 8, class: MarkClass::Unsigned, place };
        return Ok(Local { of: ValueType::Pointer, argument });
    }
    let nothing = Misplaced { at: 0..word.len(), why: NoField::NothingNoted };
    debug.ok_or(nothing)?.local(here, word)
}

/// The same as an argument of a hit; one that has no place is unknown, with the reason.
pub(crate) fn argument(debug: Option<&DebugInfo>, here: &CodePlace, word: &str) -> MarkArgument {
    let unknown = |wrong: Misplaced| {
        let why = if let NoField::NoPlace { why, .. } = wrong.why { why } else { NoPlace::NotNoted };
        MarkArgument { bytes: 8, class: MarkClass::Unsigned, place: MarkPlace::Unknown(why) }
    };
    local(debug, here, word).map_or_else(unknown, |local| local.argument)
}
