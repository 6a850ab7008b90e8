//! Where the arguments of a signature lie.
//!
//! In: parameters as typed; whether a function or a USDT probe has them. Out: each with its place: a register, a word on
//! the stack, or the number that a note gives it. Does not: read types ([`words`](super::words)).

use trapline::beyond;
use trapline::calls::OPERANDS;
use trapline::filter::Float;

use super::super::fields::{PATHS, stacked};
use super::error::SignatureError;
use super::words::{is_float, name_of, parameter, register};
use crate::args::command::types::{ArgumentPlace, FieldOf, Parameter, Type};

/// A USDT probe's arguments, in the order of its note.
pub(super) fn numbered(words: &[&str]) -> Result<Vec<Parameter>, SignatureError> {
    if words.len() > OPERANDS {
        return Err(SignatureError::Many(words.len(), OPERANDS));
    }
    let names: Vec<(&str, u8)> = (0..).zip(words).map(|(nth, word)| (name_of(word).1, nth)).collect();
    let one = |(nth, word): (u8, &&str)| {
        if register(word).is_some() {
            return Err(SignatureError::Type((*word).to_owned()));
        }
        let (name, shown) = parameter(word, &names)?;
        Ok(Parameter { name, shown, place: ArgumentPlace::General(nth) })
    };
    (0..).zip(words).map(one).collect()
}

/// Each argument with its place. Floats and all others are numbered separately; what finds no register is on the
/// stack, in the order of the arguments (System V ABI, 3.2.3; AAPCS64, 6.8.2).
pub(super) fn parameters(words: &[&str]) -> Result<(Vec<Parameter>, Vec<FieldOf>), SignatureError> {
    const VECTORS: u8 = 8;
    let (mut general, mut vectors, mut stacked_words) = (0, 0, 0);
    let mut places = Vec::new();
    for word in words {
        if register(word).is_some() {
            places.push(At::Named);
            continue;
        }
        let (next, most) = match is_float(word) {
            true => (&mut vectors, VECTORS),
            false => (&mut general, beyond::ARGUMENT_REGISTERS),
        };
        let at = if *next < most { At::Register(*next) } else { At::Stack(stacked_words) };
        *(if *next < most { next } else { &mut stacked_words }) += 1_u8;
        places.push(at);
    }
    let in_record =
        |at: &At| if let At::Register(nth) = at { Some(*nth).filter(|nth| *nth < 6) } else { None };
    let named = words.iter().zip(&places).filter(|(word, _)| !is_float(word));
    let names = named.filter_map(|(word, at)| Some((name_of(word).1, in_record(at)?)));
    let names: Vec<(&str, u8)> = names.collect();
    let mut fields = Vec::new();
    let mut one = |(nth, (word, at)): (usize, (&&str, &At))| {
        if let Some((register, name)) = register(word) {
            let read =
                beyond::register(register).ok_or_else(|| SignatureError::Register(register.to_owned()))?;
            let name = if name.is_empty() { register } else { name };
            if fields.len() == PATHS {
                return Err(SignatureError::Many(words.len(), nth));
            }
            return Ok(stacked(name.to_owned(), Type::Hex, read, &mut fields));
        }
        let (name, shown) = parameter(word, &names)?;
        let bytes = shown.int().map_or(8, |int| int.bits / 8);
        let bytes = if shown == Type::Float(Float::Single) { 4 } else { bytes };
        let read = match *at {
            At::Register(n) if is_float(word) => {
                return Ok(Parameter { name, shown, place: ArgumentPlace::Vector(n) });
            }
            At::Register(n) => match beyond::argument_register(n, bytes) {
                Some(read) => read,
                None => return Ok(Parameter { name, shown, place: ArgumentPlace::General(n) }),
            },
            At::Stack(word) => beyond::stack_argument(word, bytes),
            At::Named => return Err(SignatureError::Type((*word).to_owned())),
        };
        if fields.len() == PATHS {
            return Err(SignatureError::Many(words.len(), nth));
        }
        Ok(stacked(name, shown, read, &mut fields))
    };
    let parameters = words.iter().zip(&places).enumerate().map(&mut one).collect::<Result<_, _>>()?;
    Ok((parameters, fields))
}

/// Where an argument lies when a function is called.
#[derive(Clone, Copy)]
enum At {
    /// In this one of the registers for its kind.
    Register(u8),
    /// In this word on the stack.
    Stack(u8),
    /// It is no argument, but a register of that name.
    Named,
}
