//! What the values in a place's records are: those of a function, those of a USDT probe, or unknown.
//!
//! In: an image, a USDT probe's note, which of its arguments are needed. Out: for a USDT probe, the operands
//! that stand for the six argument registers, and what is read from memory ([`Marked`]). For a function with
//! arguments that are not where stubs look for them, that they are unknown. And calls with their values
//! corrected accordingly ([`Values::finish`]). Invariant: VAL-1: a value is what the program has there, or it
//! is unknown ([`Call::unseen`]). Does not: read notes (`trapline_image`), make code.
//!
//! A USDT probe's argument in a register, or a constant, is a value of the record, as a function's argument
//! is. An argument in memory is a field: its address stands in its place, and the kernel reads it for the
//! stub. So a wrong note faults nowhere, and what cannot be read is unknown. What a text argument points to
//! is a field, too.

use trapline_image::{Image, MarkArgument, MarkPlace};
use trapline_plan::filter::{Int, Known, MAX_FIELDS};
use trapline_plan::{Operand, Read};
use trapline_record::Svma;
use trapline_record::ring::TEXT_BYTES;

use crate::calls::{Call, Text};

/// Number of arguments for which records have room.
const MOST: usize = 6;

/// What the values of records are.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(crate) enum Values {
    /// Arguments as registers hold them, and the returned value.
    #[default]
    AsRecorded,
    /// Neither is where stubs look for it.
    Unknown,
    /// Those of a USDT probe.
    Marked(Box<Marked>),
}

/// Arguments of a USDT probe.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Marked {
    pub(crate) sources: [ArgumentSource; MOST],
    /// Texts: index of the argument, and index of its field.
    pub(crate) texts: Vec<(u8, u8)>,
}

/// One argument.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum ArgumentSource {
    /// The value in the record, of this width and sign.
    Value(Int),
    /// The field of this index, of this width and sign.
    Field(u8, Int),
    Unknown,
}

/// Which arguments of a place are needed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct NeededArguments {
    /// How many of the first ones.
    pub(crate) values: u8,
    /// Bit `n`: what argument `n` points to is needed.
    pub(crate) texts: u8,
    /// Bit `n`: a condition needs argument `n`.
    pub(crate) decides: u8,
}

impl Marked {
    /// Returns what is recorded at a USDT probe, the operands that stand for argument registers there, and
    /// what is read from memory.
    pub(crate) fn new(
        image: &Image,
        arguments: &[MarkArgument],
        asked: NeededArguments,
    ) -> (Self, Vec<Operand>, Vec<Read>) {
        let mut marked = Self { sources: [ArgumentSource::Unknown; MOST], texts: Vec::new() };
        let (mut operands, mut reads) = (vec![Operand::Unknown; MOST], Vec::new());
        let decides = asked.decides;
        for (nth, argument) in arguments.iter().enumerate().take(MOST) {
            let register = nth as u8;
            let int = Int { bits: argument.bytes * 8, signed: argument.signed };
            let bit = 1 << register;
            let is_asked = register < asked.values || (decides | asked.texts) & bit != 0;
            let Some((operand, offset)) = operand(image, &argument.place).filter(|_| is_asked) else {
                continue;
            };
            operands[nth] = operand;
            let mut read = |offsets: Vec<i32>, bytes: u8| {
                let field = (reads.len() < MAX_FIELDS).then_some(reads.len() as u8)?;
                reads.push(Read { register, offsets, bytes });
                Some(field)
            };
            let text = asked.texts & bit != 0;
            marked.sources[nth] = match offset {
                None => ArgumentSource::Value(int),
                Some(offset) => {
                    let field = read(vec![offset], argument.bytes);
                    field.map_or(ArgumentSource::Unknown, |field| ArgumentSource::Field(field, int))
                }
            };
            // Only a whole pointer leads anywhere.
            if text && argument.bytes == 8 {
                let offsets = offset.map_or(vec![0], |offset| vec![offset, 0]);
                marked.texts.extend(read(offsets, TEXT_BYTES as u8).map(|field| (register, field)));
            }
        }
        // A condition on an unknown value is decided by a field that cannot be read.
        if (0..MOST).any(|nth| decides >> nth & 1 == 1 && marked.sources[nth] == ArgumentSource::Unknown)
            && reads.len() < MAX_FIELDS
            && let Some(free) = (0..MOST).find(|&nth| operands[nth] == Operand::Unknown)
        {
            reads.push(Read { register: free as u8, offsets: vec![0], bytes: 8 });
        }
        (marked, operands, reads)
    }
    /// What a condition's argument is here. `nothing` is a field that cannot be read.
    pub(crate) fn known(&self, known: Known, nothing: u8) -> Known {
        let Known::Argument(nth, asked) = known else { return known };
        // Bits beyond the argument's own width are its sign, or zero.
        let narrow = |own: Int| if own.bits <= asked.bits { own } else { asked };
        match self.sources.get(usize::from(nth)) {
            Some(ArgumentSource::Value(own)) => Known::Argument(nth, narrow(*own)),
            Some(ArgumentSource::Field(field, own)) => Known::Field(*field, *own),
            _ => Known::Field(nothing, Int::U64),
        }
    }
    fn finish(&self, call: &mut Call) {
        let fields = std::mem::take(&mut call.fields);
        let word = |nth: u8| fields.get(usize::from(nth)).and_then(Text::word);
        for (nth, source) in self.sources.iter().enumerate() {
            let value = match *source {
                ArgumentSource::Value(int) => Some(int.value(call.arguments[nth])),
                ArgumentSource::Field(field, int) => word(field).map(|value| int.value(value)),
                ArgumentSource::Unknown => None,
            };
            call.arguments[nth] = value.unwrap_or(0);
            call.unseen |= u8::from(value.is_none()) << nth;
        }
        let text = |&(argument, field): &(u8, u8)| {
            let text = fields.get(usize::from(field))?.clone();
            Some(Text { argument, ..text })
        };
        call.texts = self.texts.iter().filter_map(text).collect();
    }
}

/// What stands for an argument: its value, or for one in memory its address, with the offset that must still
/// be added.
fn operand(image: &Image, place: &MarkPlace) -> Option<(Operand, Option<i32>)> {
    Some(match place {
        MarkPlace::Register(nth) => (Operand::Register(*nth), None),
        MarkPlace::Constant(value) => (Operand::Constant(*value), None),
        MarkPlace::Memory { base, index: None, offset } => (Operand::Register(*base), Some(*offset)),
        MarkPlace::Memory { base, index: Some((index, scale)), offset } => {
            (Operand::Sum { base: *base, index: *index, scale: *scale }, Some(*offset))
        }
        MarkPlace::Symbol { name, offset } => {
            let found = image.data_named(name);
            let [symbol] = &found[..] else { return None };
            let at = Svma(symbol.at.0.wrapping_add_signed(*offset));
            (!symbol.thread_local).then_some((Operand::Static(at), Some(0)))?
        }
        MarkPlace::Unknown => return None,
    })
}

impl Values {
    /// Turns what a record holds into what the program had.
    pub(crate) fn finish(&self, call: &mut Call) {
        match self {
            Self::AsRecorded => {}
            Self::Unknown => {
                call.unseen = u8::MAX;
                call.returned = None;
            }
            Self::Marked(marked) => marked.finish(call),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{ArgumentSource, Int, Known, Marked};

    const BYTE: Int = Int { bits: 8, signed: true };

    #[test]
    fn conditions_ask_for_what_is_there() {
        let sources = [
            ArgumentSource::Value(BYTE),
            ArgumentSource::Field(1, BYTE),
            ArgumentSource::Unknown,
            ArgumentSource::Value(Int::U64),
            ArgumentSource::Unknown,
            ArgumentSource::Unknown,
        ];
        let marked = Marked { sources, texts: Vec::new() };
        let wide = Int { bits: 32, signed: true };
        let known = |nth| marked.known(Known::Argument(nth, wide), 7);
        assert_eq!(known(0), Known::Argument(0, BYTE), "an int of eight bits has their sign");
        assert_eq!(known(1), Known::Field(1, BYTE));
        assert_eq!(known(2), Known::Field(7, Int::U64));
        assert_eq!(known(3), Known::Argument(3, wide));
        assert_eq!(marked.known(Known::Thread, 7), Known::Thread);
    }
}
