//! Blocks as programs that hits run in the target.
//!
//! In: what the target must know of a script; the blocks of a place. Out: where its maps lie; a program for each place.
//! Invariant: SCR-5, with `trapline_script::native`. Does not: attach, or read maps (`target_maps`).

use trapline::maps::hit::{
    BITS, Builder, Compare, Compute, HitProgram, Label, MAX_BITS, Map, MapBytes, MapShape, Owner, StackTable,
    Target, TextLength, TextOfKey, Unary, Value, Var, fits, input, line,
};
use trapline::maps::{KeyWord, MapKind, MapTable};
use trapline::stacks::Unwinding;
use trapline_script::Program;
use trapline_script::native::{self, Change, Emit, Known, Length, Native, TextOf};

/// Blocks that hits run in the target, and their maps.
#[derive(Debug)]
pub(super) struct NativeScript {
    pub(super) native: Native,
    /// The tables, and which of the script's maps each is. One of a thread may be followed by the one beyond it.
    pub(super) tables: Vec<MapTable>,
    pub(super) maps: Vec<usize>,
    /// Bytes of all tables.
    pub(super) bytes: MapBytes,
    /// The stacks that keys and values name.
    stacks: StackTable,
}

impl NativeScript {
    /// Lays out the maps. `beyond`: whether maps of threads have others for keys that find no room.
    pub(super) fn new(native: Native, program: &Program, beyond: bool) -> Self {
        let (mut tables, mut maps, mut bytes) = (Vec::new(), Vec::new(), MapBytes::NONE);
        for (map, how) in native.maps.iter().enumerate() {
            let Some(how) = how.as_ref().filter(|_| !is_too_long(bytes)) else { continue };
            let [keys, values]: [Vec<KeyWord>; 2] =
                [&how.keys, &how.values].map(|parts| parts.iter().map(|part| word(*part)).collect());
            let shape = MapShape {
                at: 0,
                keys: keys.len() as u8,
                // A value that no hit assigns has one word.
                values: values.len().max(1) as u8,
                bits: program.maps.get(map).map_or(BITS, |map| bits(map.room)),
                owner: owner(how),
            };
            let owners = [Some(shape.owner), (beyond && shape.owner == Owner::Thread).then_some(Owner::Any)];
            for owner in owners.into_iter().flatten() {
                let shape = bytes.put(MapShape { owner, ..shape });
                let (keys, values) = (keys.clone(), values.clone());
                tables.push(MapTable { shape, keys, values, kind: kind(how.change) });
                maps.push(map);
            }
        }
        let stacks = StackTable { frames: native.addresses.min(Unwinding::DEEPEST) };
        Self { native, tables, maps, bytes, stacks }
    }
    /// The program of these blocks, one behind the other.
    ///
    /// # Errors
    /// Why there is none.
    pub(super) fn program(&self, program: &Program, blocks: &[usize]) -> Result<HitProgram, String> {
        if is_too_long(self.bytes) {
            return Err("its maps would take too much of the target's address space".to_owned());
        }
        let mut native = self.native.clone();
        native.read.clear();
        let mut emitter = Emitter { script: self, builder: Builder::new() };
        for block in blocks {
            native::lower(&mut emitter, program, *block, &mut native).map_err(|not| not.what)?;
        }
        let made = emitter.builder.finish(None).map_err(|why| why.to_string())?;
        let mut made = HitProgram::new(made, self.bytes);
        made.stacks = self.stacks;
        made.texts = native.read.iter().map(text).collect();
        // Behind pushed arguments, the return address is not where a walk from an entry looks for it.
        if made.reads(input::STACK) && !made.texts.is_empty() {
            return Err("a place has both a stack and a text of the program in keys".to_owned());
        }
        fits(&made).map_err(|why| why.to_string())?;
        Ok(made)
    }
}

/// Makes a hit's program.
struct Emitter<'a> {
    script: &'a NativeScript,
    builder: Builder,
}

impl Emitter<'_> {
    /// A map on the line where it is changed.
    fn map(&self, map: usize) -> Map {
        let nth = self.script.maps.iter().position(|known| *known == map).unwrap_or(0);
        let table = &self.script.tables[nth];
        let line = if table.shape.owner == Owner::Cpu { input::LINE } else { input::ASSIGNED };
        let next = self.script.maps.get(nth + 1).filter(|next| **next == map);
        let beyond = next.map(|_| self.script.tables[nth + 1].shape);
        Map { line, shape: table.shape, beyond }
    }
    fn own(&mut self) -> Var {
        line(&mut self.builder, input::OWN)
    }
}

impl Emit for Emitter<'_> {
    type Value = Value;
    type Label = Label;
    type Variable = Var;

    fn number(&mut self, number: u64) -> Value {
        Value::Number(number)
    }
    fn known(&mut self, known: Known) -> Value {
        let nth = match known {
            Known::Argument(nth @ 0..6) => input::ARGUMENT + u16::from(nth),
            Known::Argument(nth) => input::MORE + u16::from(nth - 6),
            Known::Text(nth) => input::TEXT + u16::from(nth),
            Known::Returned => input::RETURNED,
            Known::Member => input::MEMBER,
            Known::Thread => input::THREAD,
            Known::Nanos => input::NANOS,
            Known::Func => input::NAME,
            Known::Probe => input::NAME + 1,
            Known::Sort => input::NAME + 2,
            Known::Stack => input::STACK,
        };
        Value::Input(nth)
    }
    fn unary(&mut self, op: Unary, of: Value) -> Value {
        self.builder.unary(op, of)
    }
    fn compute(&mut self, op: Compute, left: Value, right: Value) -> Value {
        self.builder.compute(op, left, right)
    }
    fn variable(&mut self) -> Var {
        self.builder.var()
    }
    fn set(&mut self, to: Var, value: Value) {
        self.builder.set(to, value);
    }
    fn get(&mut self, of: Var) -> Value {
        Value::Var(of)
    }
    fn label(&mut self) -> Label {
        self.builder.label()
    }
    fn bind(&mut self, label: Label) {
        self.builder.bind(label);
    }
    fn jump(&mut self, to: Label) {
        self.builder.jump(Target::Label(to));
    }
    fn branch(&mut self, when: Compare, left: Value, right: Value, to: Label) {
        self.builder.branch(when, left, right, Target::Label(to));
    }
    fn add(&mut self, map: usize, key: &[Value], values: &[Value], extreme: Option<Compare>) {
        self.map(map).add(&mut self.builder, key, values, extreme);
    }
    fn assign(&mut self, map: usize, key: &[Value], values: &[Value]) {
        let (map, own) = (self.map(map), self.own());
        map.assign(&mut self.builder, own, key, values);
    }
    fn say(&mut self, map: usize, key: &[Value], values: &[Value]) {
        self.map(map).say(&mut self.builder, key, values);
    }
    fn delete(&mut self, map: usize, key: &[Value]) {
        let (map, own) = (self.map(map), self.own());
        map.delete(&mut self.builder, own, key);
    }
    fn read(&mut self, map: usize, key: &[Value], word: usize) -> (Value, Value) {
        self.map(map).get(&mut self.builder, key, word)
    }
}

/// What the word of a part of a key or a value is.
const fn word(part: native::KeyWord) -> KeyWord {
    match part {
        native::KeyWord::Thread => KeyWord::Thread,
        native::KeyWord::Comm => KeyWord::ThreadName,
        native::KeyWord::Func | native::KeyWord::Probe | native::KeyWord::Sort => KeyWord::Number,
        native::KeyWord::Number | native::KeyWord::Text | native::KeyWord::Bucket => KeyWord::Number,
        native::KeyWord::Stack(..) => KeyWord::Stack,
        native::KeyWord::ReadText | native::KeyWord::ReadBytes => KeyWord::Text,
        native::KeyWord::Pid => KeyWord::Process,
    }
}

/// A text that keys name.
fn text(of: &TextOf) -> TextOfKey {
    let length = match of.length {
        Length::AtMost(bytes) => TextLength::AtMost(bytes),
        Length::Argument(nth) => TextLength::Argument(nth),
    };
    TextOfKey { argument: of.argument, ends: of.is_text, length }
}

/// Whether offsets in maps may be too large for instructions.
const fn is_too_long(bytes: MapBytes) -> bool {
    bytes.once > 1 << 30 || bytes.line > 1 << 30
}

/// Half of the entries have room for so many keys.
fn bits(keys: usize) -> u8 {
    let entries = keys.saturating_mul(2).next_power_of_two();
    (entries.trailing_zeros() as u8).clamp(BITS, MAX_BITS)
}

fn owner(how: &native::NativeMap) -> Owner {
    match how.change {
        Change::Add | Change::Raise(_) => Owner::Cpu,
        Change::Say => Owner::Any,
        Change::Assign if how.is_shared() => Owner::Any,
        Change::Assign => Owner::Thread,
    }
}

const fn kind(change: Change) -> MapKind {
    match change {
        Change::Add => MapKind::Added,
        Change::Assign => MapKind::Assigned,
        Change::Say => MapKind::Said,
        Change::Raise(when) => MapKind::Extreme {
            least: matches!(when, Compare::Less | Compare::Below),
            signed: matches!(when, Compare::Less | Compare::Greater),
        },
    }
}

#[cfg(test)]
mod tests;
