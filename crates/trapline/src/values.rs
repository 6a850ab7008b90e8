//! What the values in a place's records are: those of a function, those of a USDT probe, or unknown.
//!
//! In: an image, a USDT probe's note, which of its arguments are needed. Out: for a USDT probe, the operands
//! that stand for the six argument registers, and what is read from memory ([`Marked`]); why an argument is not
//! known. For a function with arguments that are not where stubs look for them, that they are unknown. And calls with
//! their values corrected accordingly ([`Values::finish`]). Invariant: VAL-1: a value is what the program has there,
//! or it is unknown ([`Call::unseen`]). Does not: read notes (`trapline_image`), make code.
//!
//! A USDT probe's argument in a register, or a constant, is a value of the record, as a function's argument
//! is. An argument in memory is a field: its address stands in its place, and the kernel reads it for the
//! stub. So a wrong note faults nowhere, and what cannot be read is unknown. What a text argument points to
//! is a field, too. Records have six values, so arguments from the seventh on are words of the stub's stack, which are
//! fields as well.

use trapline_image::{Image, MARK_ARGUMENTS, MarkArgument, MarkClass, MarkPlace, NoPlace};
use trapline_plan::filter::{Float, FloatArguments, Int, Known, MAX_FIELDS, OPERANDS, Taken};
use trapline_plan::hit::{HitProgram, TEXTS_OF_KEYS, TextOfKey, Width};
use trapline_plan::{Operand, Read};
use trapline_record::Svma;
use trapline_record::ring::TEXT_BYTES;

use crate::arch::ARGUMENTS;
use crate::calls::{Call, Text};

/// Number of arguments that are values of a record.
const VALUES: usize = 6;
/// A field that no record has.
const NOTHING: u8 = MAX_FIELDS as u8;

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
    pub(crate) sources: [ArgumentSource; MARK_ARGUMENTS],
    /// Texts: index of the argument, and index of its field.
    pub(crate) texts: Vec<(u8, u8)>,
}

/// One argument.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum ArgumentSource {
    /// The value in the record.
    Value(Number),
    /// The field of this index.
    Field(u8, Number),
    Unknown,
}

/// What the bits of an argument mean.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Number {
    Int(Int),
    Float(Float),
}

impl Number {
    fn of(argument: &MarkArgument) -> Self {
        let int = |signed| Self::Int(Int { bits: argument.bytes * 8, signed });
        match argument.class {
            MarkClass::Unsigned => int(false),
            MarkClass::Signed => int(true),
            MarkClass::Float if argument.bytes == 4 => Self::Float(Float::Single),
            MarkClass::Float => Self::Float(Float::Double),
        }
    }
    /// Which bits of a word are the value.
    const fn width(self) -> Width {
        match self {
            Self::Int(int) => Width { bits: int.bits, signed: int.signed },
            Self::Float(Float::Single) => Width { bits: 32, signed: false },
            Self::Float(Float::Double) => Width { bits: 64, signed: false },
        }
    }
    /// The value in the low bits of a word. Bits beyond its own width are its sign, or zero.
    const fn value(self, word: u64) -> u64 {
        match self {
            Self::Int(int) => int.value(word),
            Self::Float(Float::Single) => word & u32::MAX as u64,
            Self::Float(Float::Double) => word,
        }
    }
}

/// Which arguments of a place are needed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct NeededArguments {
    /// How many of the first ones.
    pub(crate) values: u8,
    /// Bit `n`: what argument `n` points to is needed.
    pub(crate) texts: u16,
    /// Bit `n`: a condition, or a program, needs argument `n`.
    pub(crate) decides: u16,
    /// A program needs the numbers of these texts.
    pub(crate) numbers_texts: bool,
}

/// Why an argument is not known.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub(crate) enum NotKnown {
    #[error("{0}")]
    Place(NoPlace),
    #[error("its operand names a symbol that the file does not have, or has several times")]
    Symbol,
    #[error("more is read from memory for this probe than a record holds")]
    Fields,
    #[error("only a pointer of eight bytes leads to a text")]
    NoPointer,
}

/// What a USDT probe's stub does.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(crate) struct MarkCode {
    /// What stands for argument registers, and then for words of the stack.
    pub(crate) operands: Vec<Operand>,
    /// What is read from memory.
    pub(crate) reads: Vec<Read>,
}

impl MarkCode {
    /// Adds a field, if there is room for one more.
    fn read(&mut self, nth: usize, offsets: &[i32], bytes: u8) -> Result<u8, NotKnown> {
        let field = self.reads.len();
        if field == MAX_FIELDS {
            return Err(NotKnown::Fields);
        }
        let (register, offsets) = match u8::try_from(nth) {
            Ok(register) if nth < VALUES => (register, offsets.to_vec()),
            // The argument is a word of the stack.
            _ => (Read::STACK, [&[8 * (nth - VALUES) as i32], offsets].concat()),
        };
        self.reads.push(Read { register, offsets, bytes });
        Ok(field as u8)
    }
    /// Sets what stands for an argument.
    fn put(&mut self, nth: usize, operand: Operand) {
        let len = self.operands.len().max(nth + 1);
        self.operands.resize(len, Operand::Unknown);
        self.operands[nth] = operand;
    }
}

/// What a program has in the places of its texts at a function's entry, where arguments are in registers: as at a USDT probe
/// whose note says so.
pub(crate) fn texts_at_entry(program: &HitProgram) -> (MarkCode, Vec<Taken>) {
    let registers = ARGUMENTS.iter().map(|nth| Operand::Register(*nth));
    let mut code = MarkCode { operands: registers.collect(), reads: Vec::new() };
    code.operands.resize(OPERANDS + TEXTS_OF_KEYS, Operand::Unknown);
    let mut taken = Vec::new();
    for (nth, text) in (0..).zip(&program.texts) {
        let field = code.read(text.argument.into(), &[0], TEXT_BYTES as u8);
        taken.push(field.map_or(Taken::Unknown, |field| Taken::Text { nth, field }));
    }
    (code, taken)
}

impl Marked {
    /// Returns what is recorded at a USDT probe, what its stub does, and which needed arguments are not known.
    pub(crate) fn new(
        image: &Image,
        arguments: &[MarkArgument],
        asked: NeededArguments,
    ) -> (Self, MarkCode, Vec<(usize, NotKnown)>) {
        let mut marked = Self { sources: [ArgumentSource::Unknown; MARK_ARGUMENTS], texts: Vec::new() };
        let mut code = MarkCode { operands: vec![Operand::Unknown; VALUES], reads: Vec::new() };
        let mut unknown = Vec::new();
        if asked.numbers_texts {
            // The places of the texts' numbers.
            code.operands.resize(OPERANDS + TEXTS_OF_KEYS, Operand::Unknown);
        }
        for (nth, argument) in arguments.iter().enumerate().take(MARK_ARGUMENTS) {
            let is_text = asked.texts >> nth & 1 == 1;
            if nth < usize::from(asked.values) || is_text || asked.decides >> nth & 1 == 1 {
                let added = marked.add(image, (nth, argument), is_text, &mut code);
                unknown.extend(added.err().map(|why| (nth, why)));
            }
        }
        (marked, code, unknown)
    }
    fn add(
        &mut self,
        image: &Image,
        (nth, argument): (usize, &MarkArgument),
        is_text: bool,
        code: &mut MarkCode,
    ) -> Result<(), NotKnown> {
        let (operand, offsets) = operand(image, &argument.place)?;
        code.put(nth, operand);
        let number = Number::of(argument);
        self.sources[nth] = match &offsets[..] {
            [] if nth < VALUES => ArgumentSource::Value(number),
            offsets => ArgumentSource::Field(code.read(nth, offsets, argument.bytes)?, number),
        };
        if !is_text {
            return Ok(());
        }
        // Only a whole pointer leads anywhere.
        if argument.bytes != 8 || argument.class == MarkClass::Float {
            return Err(NotKnown::NoPointer);
        }
        let offsets: Vec<i32> = offsets.into_iter().chain([0]).collect();
        self.texts.push((nth as u8, code.read(nth, &offsets, TEXT_BYTES as u8)?));
        Ok(())
    }
    /// What a program has in the places of its arguments, and of its texts behind them. Numbers come first: a text may be as
    /// long as one of them says.
    pub(crate) fn taken(&self, program: &HitProgram) -> Vec<Taken> {
        let asked = program.arguments();
        let numbers = (0..MARK_ARGUMENTS).filter(|nth| asked >> nth & 1 == 1);
        let number = |nth: usize| match self.sources[nth] {
            ArgumentSource::Value(number) => {
                Taken::Number { nth: nth as u8, field: None, width: number.width() }
            }
            ArgumentSource::Field(field, number) => {
                Taken::Number { nth: nth as u8, field: Some(field), width: number.width() }
            }
            ArgumentSource::Unknown => Taken::Unknown,
        };
        let text = |(nth, text): (u8, &TextOfKey)| {
            let found = self.texts.iter().find(|(argument, _)| *argument == text.argument);
            found.map_or(Taken::Unknown, |(_, field)| Taken::Text { nth, field: *field })
        };
        numbers.map(number).chain((0..).zip(&program.texts).map(text)).collect()
    }
    /// What a condition's argument is here. A value that is not known, or is of another kind, becomes a field that
    /// no record has.
    pub(crate) fn known(&self, known: Known) -> Known {
        let source = |nth: u8| self.sources.get(usize::from(nth)).copied().unwrap_or(ArgumentSource::Unknown);
        match known {
            Known::Argument(nth, asked) => match source(nth) {
                ArgumentSource::Value(Number::Int(own)) => match as_asked(own, asked) {
                    Some(int) => Known::Argument(nth, int),
                    None => Known::Field(NOTHING, Int::U64),
                },
                ArgumentSource::Field(field, Number::Int(own)) => Known::Field(field, own),
                _ => Known::Field(NOTHING, Int::U64),
            },
            Known::FloatArgument(nth, asked) => match source(nth) {
                ArgumentSource::Value(Number::Float(own)) if own == asked => known,
                ArgumentSource::Field(field, Number::Float(own)) if own == asked => {
                    Known::FloatField(field, own)
                }
                _ => Known::Field(NOTHING, Int::U64),
            },
            other => other,
        }
    }
    fn finish(&self, call: &mut Call) {
        let fields = std::mem::take(&mut call.fields);
        let word = |nth: u8| fields.get(usize::from(nth)).and_then(Text::word);
        for (nth, source) in self.sources.iter().enumerate() {
            let (value, number) = match *source {
                ArgumentSource::Value(number) => (Some(call.arguments[nth]), Some(number)),
                ArgumentSource::Field(field, number) => (word(field), Some(number)),
                ArgumentSource::Unknown => (None, None),
            };
            let value = value.zip(number).map(|(word, number)| number.value(word));
            call.arguments[nth] = value.unwrap_or(0);
            call.unseen |= u16::from(value.is_none()) << nth;
            let FloatArguments { single, double } = &mut call.float_arguments;
            *single |= u16::from(number == Some(Number::Float(Float::Single))) << nth;
            *double |= u16::from(number == Some(Number::Float(Float::Double))) << nth;
        }
        let text = |&(argument, field): &(u8, u8)| {
            let text = fields.get(usize::from(field))?.clone();
            Some(Text { argument, ..text })
        };
        call.texts = self.texts.iter().filter_map(text).collect();
    }
}

/// The type by which code reads a register that holds `own`, so that the number is the one that `asked` makes of it.
/// `None` if no type is that: then the reader decides. Bits beyond the argument's own width are its sign, or zero.
fn as_asked(own: Int, asked: Int) -> Option<Int> {
    match own.bits < asked.bits {
        false => Some(asked),
        // Unsigned numbers of 64 bits are compared and computed with as such.
        true if asked == Int::U64 => None,
        true => (asked.signed || !own.signed).then_some(own),
    }
}

/// What stands for an argument: its value, or for one in memory an address, with the distances that must still be added,
/// each before a load.
fn operand(image: &Image, place: &MarkPlace) -> Result<(Operand, Vec<i32>), NotKnown> {
    Ok(match place {
        MarkPlace::Register(nth) => (Operand::Register(*nth), vec![]),
        MarkPlace::Vector(nth) => (Operand::Vector(*nth), vec![]),
        MarkPlace::Constant(value) => (Operand::Constant(*value), vec![]),
        MarkPlace::Loads { base, offsets } => (Operand::Register(*base), offsets.clone()),
        MarkPlace::StaticLoads { at, offsets } => (Operand::Static(*at), offsets.clone()),
        MarkPlace::Memory { base, index: None, offset } => (Operand::Register(*base), vec![*offset]),
        MarkPlace::Memory { base, index: Some(index), offset } => {
            let (base, index, scale, extend) = (*base, index.register, index.scale, index.extend);
            (Operand::Sum { base, index, scale, extend }, vec![*offset])
        }
        MarkPlace::Symbol { name, offset } => (Operand::Static(at(image, name, *offset)?), vec![0]),
        MarkPlace::Address { name, offset } => (Operand::Static(at(image, name, *offset)?), vec![]),
        MarkPlace::Unknown(why) => return Err(NotKnown::Place(*why)),
    })
}

/// The address at this distance from a variable.
fn at(image: &Image, name: &str, offset: i64) -> Result<Svma, NotKnown> {
    match &image.data_named(name)[..] {
        [symbol] if symbol.thread_local => Err(NotKnown::Place(NoPlace::ThreadLocal)),
        [symbol] => Ok(Svma(symbol.at.0.wrapping_add_signed(offset))),
        _ => Err(NotKnown::Symbol),
    }
}

impl Values {
    /// Turns what a record holds into what the program had.
    pub(crate) fn finish(&self, call: &mut Call) {
        match self {
            Self::AsRecorded => {}
            Self::Unknown => {
                call.unseen = u16::MAX;
                call.returned = None;
            }
            Self::Marked(marked) => marked.finish(call),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{ArgumentSource, Float, Int, Known, MARK_ARGUMENTS, Marked, NOTHING, Number};

    const BYTE: Int = Int { bits: 8, signed: true };

    fn marked(sources: &[ArgumentSource]) -> Marked {
        let mut all = [ArgumentSource::Unknown; MARK_ARGUMENTS];
        all[..sources.len()].copy_from_slice(sources);
        Marked { sources: all, texts: Vec::new() }
    }

    #[test]
    fn conditions_ask_for_what_is_there() {
        let marked = marked(&[
            ArgumentSource::Value(Number::Int(BYTE)),
            ArgumentSource::Field(1, Number::Int(BYTE)),
            ArgumentSource::Unknown,
            ArgumentSource::Value(Number::Int(Int::U64)),
        ]);
        let wide = Int { bits: 32, signed: true };
        let known = |nth| marked.known(Known::Argument(nth, wide));
        assert_eq!(known(0), Known::Argument(0, BYTE), "an int of eight bits has their sign");
        assert_eq!(known(1), Known::Field(1, BYTE));
        assert_eq!(known(2), Known::Field(NOTHING, Int::U64));
        assert_eq!(known(3), Known::Argument(3, wide));
        assert_eq!(known(255), Known::Field(NOTHING, Int::U64));
        let unsigned = marked.known(Known::Argument(0, Int::U64));
        assert_eq!(unsigned, Known::Field(NOTHING, Int::U64), "-1 as an unsigned number has 64 bits");
        assert_eq!(marked.known(Known::Thread), Known::Thread);
    }

    #[test]
    fn a_register_is_read_as_the_condition_means_it() {
        let all =
            || [8, 16, 32, 64].into_iter().flat_map(|bits| [true, false].map(|signed| Int { bits, signed }));
        for (own, asked) in all().flat_map(|own| all().map(move |asked| (own, asked))) {
            let Some(int) = super::as_asked(own, asked) else { continue };
            for word in
                [0, 1, 0x7f, 0x80, 0xff, 0x8000, 0xffff_ffff, 1 << 63, u64::MAX, 0x1234_5678_9abc_def0]
            {
                assert_eq!(int.value(word), asked.value(own.value(word)), "{own:?} {asked:?} {word:#x}");
            }
            assert_eq!(int == Int::U64, asked == Int::U64);
        }
    }

    #[test]
    fn a_float_is_no_integer_and_no_other_float() {
        let single = Number::Float(Float::Single);
        let marked = marked(&[ArgumentSource::Value(single), ArgumentSource::Field(3, single)]);
        let float = |nth, float| marked.known(Known::FloatArgument(nth, float));
        let nothing = Known::Field(NOTHING, Int::U64);
        assert_eq!(float(0, Float::Single), Known::FloatArgument(0, Float::Single));
        assert_eq!(float(1, Float::Single), Known::FloatField(3, Float::Single));
        assert_eq!(float(0, Float::Double), nothing);
        assert_eq!(float(1, Float::Double), nothing);
        assert_eq!(marked.known(Known::Argument(0, Int::U64)), nothing);
    }
}
