//! Keys of maps, as words.
//!
//! In: a key's parts. Out: what each part is, and its word. Invariant: NAT-1. Does not: add or assign.

use super::emit::{Emit, Known};
use super::lower::{Lower, is_word};
use super::maps::{Change, KeyWord, NativeMap, Not};
use super::uses::is_init;
use crate::attach::Probe;
use crate::calls::Meaning;
use crate::check::MOST_FRAMES;
use crate::diagnostic::At;
use crate::program::{Op, Typed};
use crate::types::Type;
use crate::value::StackMode;

impl<E: Emit> Lower<'_, E> {
    /// A key of a map whose entries belong to threads.
    pub(super) fn thread_key(
        &mut self,
        map: usize,
        key: Option<&Typed>,
        at: &At,
    ) -> Result<Vec<E::Value>, Not> {
        let (keys, words) = self.key(key)?;
        let ty = &self.of.program.maps[map].value;
        match () {
            () if !keys.contains(&KeyWord::Thread) => {
                Err(Not::yet("a map of plain values without tid in its key", at))
            }
            () if keys.iter().any(|part| matches!(part, KeyWord::Stack(..))) => {
                Err(Not::yet("a map of plain values with a stack in its key", at))
            }
            () if !is_word(ty) => Err(Not::yet("a map whose values are no numbers", at)),
            () => {
                self.native.uses(map, NativeMap { keys, values: 1, change: Change::Assign }, at)?;
                Ok(words)
            }
        }
    }
    pub(super) fn key(&mut self, key: Option<&Typed>) -> Result<(Vec<KeyWord>, Vec<E::Value>), Not> {
        let Some(key) = key else { return Ok((Vec::new(), Vec::new())) };
        let parts = match &*key.op {
            Op::Tuple(parts) => &parts[..],
            _ => std::slice::from_ref(key),
        };
        let mut all = (Vec::new(), Vec::new());
        for part in parts {
            let (is, word) = self.key_word(part)?;
            all.0.push(is);
            all.1.extend(word);
        }
        Ok(all)
    }
    /// What a part of a key is, and its word, if it has one.
    fn key_word(&mut self, part: &Typed) -> Result<(KeyWord, Option<E::Value>), Not> {
        let place = |lower: &mut Self, is: KeyWord| Ok((is, Some(lower.emit.known(Known::Probe))));
        match &*part.op {
            Op::Call { meaning: Meaning::Tid, args } if !is_init(args) => {
                Ok((KeyWord::Thread, Some(self.emit.known(Known::Thread))))
            }
            Op::Call { meaning: Meaning::Pid, args } if !is_init(args) => Ok((KeyWord::Pid, None)),
            Op::Call { meaning: Meaning::Func, .. } => place(self, KeyWord::Func),
            Op::Call { meaning: Meaning::Probe, .. } => place(self, KeyWord::Probe),
            Op::Call { meaning: Meaning::Probetype, .. } => place(self, KeyWord::Sort),
            Op::Call { meaning: Meaning::Ustack, args } => {
                let (frames, mode) = self.stack(args, &part.at)?;
                let at_return = |probe: &Probe| matches!(probe, Probe::Uretprobe(..));
                // At an entry the probed function is the first frame.
                let callers = frames - u8::from(!self.of.block.probes.iter().any(at_return));
                self.native.stack(callers.max(1));
                Ok((KeyWord::Stack(frames, mode), Some(self.emit.known(Known::Stack))))
            }
            Op::Text(text) if matches!(part.ty, Type::Text(_)) => {
                let nth = self.native.text(text);
                Ok((KeyWord::Text, Some(self.emit.number(nth))))
            }
            _ => Ok((KeyWord::Number, Some(self.value(part)?))),
        }
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
