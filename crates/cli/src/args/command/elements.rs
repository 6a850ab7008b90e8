//! Slices and vectors: how many elements there are, and the first of them.
//!
//! In: a call, and the fields that hold the elements and their number. Out: text (`[3]{1, 2, 3}`), and a value for machines
//! (`{"len": 3, "first": [1, 2, 3]}`). Does not: show more elements than were read.

use trapline::Call;
use trapline::calls::ReadOutcome;

use super::types::{ElementsOf, Value};
use super::whole;

impl ElementsOf {
    /// As text.
    pub(crate) fn show(&self, call: &Call, (elements, number): (u8, u8)) -> String {
        let Some(words) = words(call, number) else { return "<fault>".to_owned() };
        // Its end is before its beginning: nothing that is in use.
        let Some(count) = self.count(words) else { return "?".to_owned() };
        let bytes = bytes(call, elements);
        let known = self.known(bytes, count);
        let mut all: Vec<String> =
            (0..known).map(|nth| whole::show(&self.of, self.nth(bytes, nth))).collect();
        if count > known {
            all.push(if known == 0 { "<fault>" } else { "..." }.to_owned());
        }
        format!("[{count}]{{{}}}", all.join(", "))
    }
    /// For machines.
    pub(crate) fn value(&self, call: &Call, (elements, number): (u8, u8)) -> Value {
        let Some(count) = words(call, number).and_then(|words| self.count(words)) else {
            return Value::Nothing;
        };
        let bytes = bytes(call, elements);
        let first =
            (0..self.known(bytes, count)).map(|nth| whole::value(&self.of, self.nth(bytes, nth))).collect();
        Value::Record(vec![
            ("len".to_owned(), Value::Number(count.into())),
            ("first".to_owned(), Value::List(first)),
        ])
    }
    /// How many there are.
    fn count(&self, words: &[u8]) -> Option<u64> {
        let word = |nth: usize| words.get(nth * 8..)?.first_chunk().copied().map(u64::from_le_bytes);
        match self.by_end {
            // Without elements, both may be 0.
            true => word(1)?.checked_sub(word(0)?)?.checked_div(self.stride),
            false => word(0),
        }
    }
    /// How many of them were read.
    fn known(&self, bytes: &[u8], count: u64) -> u64 {
        (bytes.len() as u64).checked_div(self.stride).unwrap_or(0).min(count)
    }
    fn nth<'b>(&self, bytes: &'b [u8], nth: u64) -> &'b [u8] {
        bytes.get((nth * self.stride) as usize..).unwrap_or(&[])
    }
}

/// The words that tell how many there are, if they were read.
fn words(call: &Call, number: u8) -> Option<&[u8]> {
    let read = call.fields.get(usize::from(number)).filter(|one| one.reading == ReadOutcome::Whole)?;
    Some(&read.bytes)
}

/// The bytes of the elements, as far as they could be read.
fn bytes(call: &Call, elements: u8) -> &[u8] {
    call.fields.get(usize::from(elements)).map_or(&[], |one| &one.bytes)
}
