//! The key of a text that was copied, as `record::tally::text_key` computes it; zeros are written behind its end.
//!
//! In: [`TEXT`], a pointer to the kernel's result and, behind it, the bytes. Out: the key. Outcome 1: no byte could be read.
//!
//! ```text
//!   [text + at]           number of bytes that were read, or an error below 0
//!   [text + at + 8] …     the bytes; behind the end of what was read is anything
//!   key = the hash of the bytes before the end or a 0      (`hash`)
//! ```
//!
//! | step | what |
//! |---|---|
//! | T1 | no byte was read: outcome 1 |
//! | T2 | fewer than TEXT_BYTES were read: the byte behind them = 0 |
//! | T3 | the walk over the bytes: a 0 ends it, any other byte goes into the key |
//! | T4 | the walk goes on from that 0: all bytes = 0 |
//!
//! The text is a copy on the hit's own stack, or in what its call's entry kept. No other thread and no signal handler knows
//! it. All steps come before the restartable sequence, so no abort repeats them; in a forked child they go on with the
//! child's copy. A return may repeat them for the same entry's text: T1 to T4 leave what they find the second time.

use trapline_code::{Builder, Compare, Memory, Place, Program, Target, Unsound, Value};
use trapline_record::tally::TEXT_BYTES;

use super::hash::hash;
use super::input::TEXT;

/// The program. `at`: how far behind [`TEXT`] the result is.
pub(crate) fn text_key(at: i32) -> Result<Program, Unsound> {
    let mut builder = Builder::new();
    let text = builder.pointer(TEXT, Memory::Own);
    let bytes = at + 8;
    let read = builder.load(Place::at(text, at));
    builder.branch(Compare::LessEqual, read, Value::Number(0), Target::Outcome(1));
    let full = builder.label();
    builder.branch(Compare::AboveEqual, read, Value::Number(TEXT_BYTES as u64), Target::Label(full));
    let index = builder.in_var(read);
    builder.store_byte(Place { base: text, index: Some((index, 0)), offset: bytes }, 0);
    builder.bind(full);
    let key = hash(&mut builder, Place::at(text, bytes), |builder, byte, ended| {
        builder.branch(Compare::Equal, byte, Value::Number(0), Target::Label(ended));
    });
    builder.finish(Some(Value::Var(key)))
}

#[cfg(test)]
mod tests {
    use trapline_code::{Bytes, End, interpret_in};
    use trapline_record::tally::{TEXT_BYTES, text_key};

    #[test]
    fn keys_are_those_of_the_reader_and_zeros_follow() {
        let program = super::text_key(16).expect("sound");
        for (text, read) in
            [("abc\0def", 64), ("abc\0", 4), ("abcdef", 3), ("", 1), ("x", 0), ("x", -14), ("q", 1)]
        {
            for fill in [0, b'~'] {
                let mut bytes = text.as_bytes().to_vec();
                bytes.resize(TEXT_BYTES, fill);
                let word = [[0; 16].as_slice(), &i64::from(read).to_le_bytes(), &bytes, &[7; 8]].concat();
                let mut memory = Bytes { at: 0x1000, bytes: word };
                let end = interpret_in(&program, &[0, 0, 0, 0x1000], &mut memory);
                if read <= 0 {
                    assert_eq!(end, End { outcome: 1, result: None });
                    continue;
                }
                bytes.truncate(read as usize);
                let key = text_key(&bytes);
                assert_eq!(end, End { outcome: 0, result: Some(key) }, "{text} {read}");
                let len = bytes.iter().position(|byte| *byte == 0).unwrap_or(bytes.len());
                bytes.truncate(len);
                bytes.resize(TEXT_BYTES, 0);
                assert_eq!(memory.bytes[24..], [&bytes[..], &[7; 8]].concat(), "{text} {read}");
            }
        }
    }
}
