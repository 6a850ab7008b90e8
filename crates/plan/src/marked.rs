//! What a hit's program has as its arguments at a USDT probe: numbers as the note describes them, and numbers of texts.
//!
//! In: what takes the arguments' places (`arguments`), what is read from memory, which texts keys name; a processor's
//! instructions for that ([`Places`]). Out: code that reads, and puts each value into its argument's place; the jumps of hits
//! that run no program. It runs before the hit's program, and the places belong to the hit: they are given back behind it.
//!
//! ```text
//!   fetch     the stack pointer is lower by depth; each field: the kernel's result, then its bytes (`text`)
//!   number    the field's result must be its whole length.  value = its bits, or the operand's;  place = value
//!   text      value = its number, of `programs::texts`;  place = value
//!   drop      the stack pointer as before
//! ```
//!
//! All of it comes before the program, in the hit's own frame. A signal handler in between has a frame of its own.
//!
//! Does not: know registers and frames (each processor's `stub::marked`).

use trapline_code::{Allocated, NoCode, Program, Width};

use crate::filter::{OPERANDS, Taken};
use crate::hit::TextOfKey;
use crate::programs::{Kept, texts};
use crate::request::Read;

/// Jumps of hits that run no program.
#[derive(Clone, Debug)]
pub(crate) struct Left<F> {
    /// With the copies still there: a value is not known, so the hit is counted.
    pub(crate) unknown: Vec<F>,
    /// With the copies still there: there was no room for a text.
    pub(crate) no_room: Vec<F>,
    /// A goroutine's stack has no room for the copies.
    pub(crate) cramped: Vec<F>,
}

impl<F> Default for Left<F> {
    fn default() -> Self {
        Self { unknown: Vec::new(), no_room: Vec::new(), cramped: Vec::new() }
    }
}

/// What a processor has for it. There is one register for a value on its way.
pub(crate) trait Places {
    /// A jump whose target is not known yet.
    type Fix;
    /// Begins: the copies. Returns the jump of a goroutine without room for them.
    fn fetch(&mut self) -> Option<Self::Fix>;
    /// value = the word at this offset behind the copies' first field.
    fn load(&mut self, at: i32);
    /// A jump that is taken if the value is not this number.
    fn unless(&mut self, number: i32) -> Self::Fix;
    /// A jump.
    fn leave(&mut self) -> Self::Fix;
    /// value = an argument's place.
    fn get(&mut self, nth: usize);
    /// value = these bits of it.
    fn extend(&mut self, width: Width);
    /// value = the number of a text, whose result is at this offset. Returns the jumps of the program's outcomes.
    fn number(&mut self, text: TextOfKey, at: i32) -> Vec<(u8, Self::Fix)>;
    /// An argument's place = value.
    fn put(&mut self, nth: usize);
    /// Ends.
    fn drop(&mut self);
}

/// Appends it.
pub(crate) fn take<P: Places>(
    places: &mut P,
    taken: &[Taken],
    fields: &[Read],
    keys: &[TextOfKey],
) -> Left<P::Fix> {
    let mut left = Left { cramped: places.fetch().into_iter().collect(), ..Left::default() };
    for taken in taken {
        match *taken {
            Taken::Number { nth, field, width } => {
                match field {
                    Some(field) => {
                        let (at, bytes) = of_field(fields, field);
                        places.load(at);
                        left.unknown.push(places.unless(bytes));
                        places.load(at + 8);
                    }
                    None if width.bits >= 64 => continue,
                    None => places.get(nth.into()),
                }
                if width.bits < 64 {
                    places.extend(width);
                }
                places.put(nth.into());
            }
            Taken::Text { nth, field } => {
                let Some(text) = keys.get(usize::from(nth)) else { continue };
                for (outcome, fix) in places.number(*text, of_field(fields, field).0) {
                    let to = if outcome == texts::NO_ROOM { &mut left.no_room } else { &mut left.unknown };
                    to.push(fix);
                }
                places.put(OPERANDS + usize::from(nth));
            }
            Taken::Unknown => left.unknown.push(places.leave()),
        }
    }
    places.drop();
    left
}

/// Offset of a field's result behind the first one's, and the field's length in bytes.
fn of_field(fields: &[Read], nth: u8) -> (i32, i32) {
    let before = fields.iter().take(nth.into()).map(|read| read.words() as i32 * 8).sum();
    (before, fields.get(usize::from(nth)).map_or(0, |read| read.bytes.into()))
}

/// Programs of texts' numbers with locations, by what they depend on: the text, and where its result is.
#[derive(Debug)]
pub(crate) struct Made(Kept<((TextOfKey, i32), Allocated)>);

impl Made {
    pub(crate) const fn new() -> Self {
        Self(Kept::new())
    }
    /// A text's program. `allocate` chooses its locations.
    ///
    /// # Errors
    /// Why there is none.
    pub(crate) fn program(
        &mut self,
        of: (TextOfKey, i32),
        allocate: impl FnOnce(Program) -> Result<Allocated, NoCode>,
    ) -> Result<Allocated, NoCode> {
        let make = || Ok((of, allocate(texts::number(of.0, of.1)?)?));
        self.0.answer(|(asked, _)| *asked == of, make).map(|(_, allocated)| allocated.clone())
    }
}
