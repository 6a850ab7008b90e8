//! Keys and values of maps, as words.
//!
//! In: a key's or a value's parts. Out: what each part is, and its word. Invariant: NAT-1. Does not: add or assign.

use super::emit::{Emit, Known};
use super::lower::{Lower, is_word};
use super::maps::{Change, KeyWord, Length, NativeMap, Not, TextOf};
use super::uses::is_init;
use crate::attach::Probe;
use crate::calls::Meaning;
use crate::check::MOST_FRAMES;
use crate::diagnostic::At;
use crate::memory::READ_BYTES;
use crate::program::{Op, Typed};
use crate::types::Type;
use crate::value::StackMode;

impl<E: Emit> Lower<'_, E> {
    /// A key of a map whose values are assigned. `values`: what their words are, if this says so.
    pub(super) fn assigned_key(
        &mut self,
        map: usize,
        key: Option<&Typed>,
        values: Vec<KeyWord>,
        at: &At,
    ) -> Result<Vec<E::Value>, Not> {
        let (keys, words) = self.assigned_parts(key, at)?;
        self.native.uses(map, NativeMap { keys, values, change: Change::Assign }, at)?;
        Ok(words)
    }
    /// The parts of such a key, each of which has one word. Several words may mean one name, process, stack or text: the numbers of
    /// threads, stacks of which the key has the first frames, texts that two threads met at once.
    fn assigned_parts(&mut self, key: Option<&Typed>, at: &At) -> Result<(Vec<KeyWord>, Vec<E::Value>), Not> {
        let (keys, words) = self.parts(key)?;
        let what = keys.iter().find_map(|part| match part {
            KeyWord::Comm => Some("comm"),
            KeyWord::Pid => Some("pid"),
            KeyWord::Stack(..) => Some("a stack"),
            KeyWord::ReadText | KeyWord::ReadBytes => Some("a text of the program"),
            _ => None,
        });
        what.map_or(Ok((keys, words)), |what| {
            Err(Not::yet(format!("{what} in the key of a map of plain values"), at))
        })
    }
    /// The same, if one word is read.
    pub(super) fn read_key(
        &mut self,
        map: usize,
        key: Option<&Typed>,
        at: &At,
    ) -> Result<Vec<E::Value>, Not> {
        if !is_word(&self.of.program.maps[map].value) {
            return Err(Not::yet("reading a value that is no number", at));
        }
        self.assigned_key(map, key, vec![KeyWord::Number], at)
    }
    /// A part of a map's value.
    pub(super) fn part_of_value(&mut self, of: &Typed, nth: usize) -> Result<E::Value, Not> {
        let Op::Map { map, key } = &*of.op else {
            return Err(Not::yet("a part of what is no map's value", &of.at));
        };
        // Without that, a part may be a thread's number as the thread sees it.
        if !self.native.processes.same_tids {
            return Err(Not::yet("a part of a value, where threads may have other numbers", &of.at));
        }
        let key = self.assigned_key(*map, key.as_ref(), Vec::new(), &of.at)?;
        Ok(self.emit.read(*map, &key, nth).1)
    }
    /// Assigns.
    pub(super) fn assign(&mut self, map: usize, key: Option<&Typed>, value: &Typed) -> Result<(), Not> {
        // A key is computed before its value.
        if is_word(&self.of.program.maps[map].value) {
            let key = self.read_key(map, key, &value.at)?;
            let word = self.value(value)?;
            self.emit.assign(map, &key, &[word]);
            return Ok(());
        }
        let (keys, key) = self.assigned_parts(key, &value.at)?;
        let (values, words) = self.parts(Some(value))?;
        self.native.uses(map, NativeMap { keys, values, change: Change::Assign }, &value.at)?;
        self.emit.assign(map, &key, &words);
        Ok(())
    }
    pub(super) fn parts(&mut self, whole: Option<&Typed>) -> Result<(Vec<KeyWord>, Vec<E::Value>), Not> {
        let Some(whole) = whole else { return Ok((Vec::new(), Vec::new())) };
        let parts = match &*whole.op {
            Op::Tuple(parts) => &parts[..],
            _ => std::slice::from_ref(whole),
        };
        let mut all = (Vec::new(), Vec::new());
        for part in parts {
            let (is, word) = self.part(part)?;
            all.0.push(is);
            all.1.push(word);
        }
        Ok(all)
    }
    /// What a part is, and its word.
    pub(super) fn part(&mut self, part: &Typed) -> Result<(KeyWord, E::Value), Not> {
        let place = |lower: &mut Self, is: KeyWord, known| Ok((is, lower.emit.known(known)));
        match &*part.op {
            Op::Call { meaning: Meaning::Tid, args } if !is_init(args) => {
                Ok((KeyWord::Thread, self.emit.known(Known::Member)))
            }
            Op::Call { meaning: Meaning::Comm, .. } => Ok((KeyWord::Comm, self.emit.known(Known::Member))),
            Op::Call { meaning: Meaning::Pid, args } if !is_init(args) => {
                Ok((KeyWord::Pid, self.emit.known(Known::Member)))
            }
            Op::Call { meaning: Meaning::Func, .. } => place(self, KeyWord::Func, Known::Func),
            Op::Call { meaning: Meaning::Probe, .. } => place(self, KeyWord::Probe, Known::Probe),
            Op::Call { meaning: Meaning::Probetype, .. } => place(self, KeyWord::Sort, Known::Sort),
            Op::Call { meaning: Meaning::Ustack, args } => {
                let (frames, mode) = self.stack(args, &part.at)?;
                let at_return = |probe: &Probe| matches!(probe, Probe::Uretprobe(..));
                // At an entry the probed function is the first frame.
                let callers = frames - u8::from(!self.of.block.probes.iter().any(at_return));
                self.native.stack(callers.max(1));
                self.walks = true;
                Ok((KeyWord::Stack(frames, mode), self.emit.known(Known::Stack)))
            }
            Op::Text(text) if matches!(part.ty, Type::Text(_)) => {
                let nth = self.native.text(text);
                Ok((KeyWord::Text, self.emit.number(nth)))
            }
            Op::Call { meaning: meaning @ (Meaning::Str | Meaning::Buf), args } => {
                let text = self.read_text(*meaning == Meaning::Str, args, &part.at)?;
                let nth = self.native.read(text).ok_or_else(|| Not::yet("more than six texts", &part.at))?;
                let is = if text.is_text { KeyWord::ReadText } else { KeyWord::ReadBytes };
                Ok((is, self.emit.known(Known::Text(nth))))
            }
            _ => Ok((KeyWord::Number, self.value(part)?)),
        }
    }
    /// What `str` or `buf` reads, as `run::calls` has it.
    fn read_text(&self, is_text: bool, args: &[Typed], at: &At) -> Result<TextOf, Not> {
        const MOST: u32 = READ_BYTES;
        let probes = &self.of.block.probes;
        let at_return = probes.iter().any(|probe| matches!(probe, Probe::Uretprobe(..)));
        // Of a function, arguments are read that are in registers.
        let most = if probes.iter().all(|probe| matches!(probe, Probe::Usdt(..))) { 12 } else { 6 };
        let argument = args.first().and_then(|pointer| argument(pointer, true));
        let Some(argument) = argument.filter(|nth| *nth < most && !at_return) else {
            return Err(Not::yet("such a text", at));
        };
        let at_most = |bytes: i64| Length::AtMost(bytes.clamp(0, MOST.into()) as u8);
        let length = match (args.get(1), is_text) {
            (None, true) => at_most(self.of.program.config.max_strlen.into()),
            // The end of a text counts too.
            (Some(length), true) => {
                let length = length.constant().ok_or_else(|| Not::yet("such a length of a text", at))?;
                // A record holds more of what functions get.
                if length - 1 > i64::from(MOST) {
                    return Err(Not::yet("such a length of a text", at));
                }
                at_most((length - 1).min(self.of.program.config.max_strlen.into()))
            }
            (Some(length), false) => match (length.constant(), argument_of(length)) {
                (Some(length), _) if length <= i64::from(MOST) => {
                    at_most(length.min(self.of.program.config.max_strlen.into()))
                }
                (None, Some(nth)) if self.of.program.config.max_strlen >= MOST && nth < most => {
                    Length::Argument(nth)
                }
                _ => return Err(Not::yet("such a length of a buffer", at)),
            },
            (None, false) => return Err(Not::yet("such a text", at)),
        };
        Ok(TextOf { argument, is_text, length })
    }
    /// The frames of a stack, and how it is shown: as `run::calls` has it.
    fn stack(&self, args: &[Typed], at: &At) -> Result<(u8, StackMode), Not> {
        let mode = args.iter().find_map(Typed::literal).map(String::from_utf8_lossy);
        let mode = StackMode::of(mode.as_deref().unwrap_or(&self.of.program.config.stack_mode));
        match args.iter().find_map(Typed::constant).unwrap_or(MOST_FRAMES) {
            frames @ 1..=MOST_FRAMES => Ok((frames as u8, mode)),
            _ => Err(Not::yet("such a depth of a stack", at)),
        }
    }
}

/// Which argument an expression is, as all of its 64 bits. `pointer`: a pointer may be meant.
fn argument(expr: &Typed, pointer: bool) -> Option<u8> {
    match &*expr.op {
        Op::Call { meaning: Meaning::Argument(nth), .. } => Some(*nth),
        Op::Cast(of) if expr.ty.size() == 8 && (pointer || expr.ty.is_number()) => argument(of, pointer),
        _ => None,
    }
}

/// The same of a number.
fn argument_of(expr: &Typed) -> Option<u8> {
    argument(expr, false)
}
