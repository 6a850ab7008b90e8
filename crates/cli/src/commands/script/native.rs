//! Blocks as programs that hits run in the target.
//!
//! In: a script, the blocks of a place. Out: where its maps lie; a program for each place. Invariant: SCR-5, with
//! `trapline_script::native`. Does not: attach, or read maps (`target_maps`).

use trapline::maps::hit::{
    Builder, Compare, Compute, HitProgram, Label, Map, MapShape, NoCode, Target, Unary, Value, Var, Width,
    input, line,
};
use trapline::maps::{KeyWord, MapTable};
use trapline_script::Program;
use trapline_script::native::{self, Emit, Known, Native, Not};

/// A script whose hits run in the target.
#[derive(Debug)]
pub(super) struct NativeScript {
    pub(super) native: Native,
    /// The tables, and which of the script's maps each is.
    pub(super) tables: Vec<MapTable>,
    pub(super) maps: Vec<usize>,
    /// Bytes of a line of all tables.
    bytes: u32,
}

impl NativeScript {
    /// What the target must know.
    ///
    /// # Errors
    /// Why the tracer must run the blocks.
    pub(super) fn of(program: &Program) -> Result<Self, Not> {
        let native = native::native(program)?;
        let (mut tables, mut maps, mut at) = (Vec::new(), Vec::new(), 0);
        for (map, how) in native.maps.iter().enumerate() {
            let Some(how) = how else { continue };
            let shape = MapShape { at, keys: how.keys.len() as u8, values: how.values };
            at = shape.end();
            let word = |word: &native::KeyWord| match word {
                native::KeyWord::Thread => KeyWord::Thread,
                native::KeyWord::Func | native::KeyWord::Probe => KeyWord::Probe,
                native::KeyWord::Number | native::KeyWord::Text | native::KeyWord::Bucket => KeyWord::Number,
            };
            tables.push(MapTable {
                shape,
                keys: how.keys.iter().map(word).collect(),
                is_added: how.is_added,
            });
            maps.push(map);
        }
        Ok(Self { native, tables, maps, bytes: at })
    }
    /// The program of these blocks, one behind the other.
    ///
    /// # Errors
    /// Why there is none.
    pub(super) fn program(&self, program: &Program, blocks: &[usize]) -> Result<HitProgram, String> {
        let mut native = self.native.clone();
        let mut emitter = Emitter { script: self, builder: Builder::new() };
        for block in blocks {
            native::lower(&mut emitter, program, *block, &mut native).map_err(|not| not.what)?;
        }
        let made = emitter.builder.finish(None).map_err(NoCode::from);
        made.and_then(|made| HitProgram::new(made, self.bytes)).map_err(|why| why.to_string())
    }
}

/// Makes a hit's program.
struct Emitter<'a> {
    script: &'a NativeScript,
    builder: Builder,
}

impl Emitter<'_> {
    /// A map on the line where it is changed.
    fn map(&mut self, map: usize) -> Map {
        let nth = self.script.maps.iter().position(|known| *known == map).unwrap_or(0);
        let table = &self.script.tables[nth];
        let nth = if table.is_added { input::LINE } else { input::ASSIGNED };
        Map { line: line(&mut self.builder, nth), shape: table.shape }
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
            Known::Argument(nth) => input::ARGUMENT + u16::from(nth),
            Known::Returned => input::RETURNED,
            Known::Thread => input::THREAD,
            Known::Nanos => input::NANOS,
            Known::Probe => input::PROBE,
        };
        self.builder.input(nth)
    }
    fn unary(&mut self, op: native::Unary, of: Value) -> Value {
        let op = match op {
            native::Unary::Negate => Unary::Negate,
            native::Unary::Invert => Unary::Complement,
            native::Unary::Bits => Unary::Bits,
            native::Unary::Extend { bytes, signed } => Unary::Extend(Width { bits: bytes * 8, signed }),
        };
        self.builder.unary(op, of)
    }
    fn compute(&mut self, op: native::Compute, left: Value, right: Value) -> Value {
        let op = match op {
            native::Compute::Add => Compute::Add,
            native::Compute::Subtract => Compute::Subtract,
            native::Compute::Multiply => Compute::Multiply,
            native::Compute::And => Compute::And,
            native::Compute::Or => Compute::Or,
            native::Compute::Xor => Compute::Xor,
            native::Compute::ShiftLeft => Compute::ShiftLeft,
            native::Compute::ShiftRight => Compute::ShiftRight,
            native::Compute::Divide => Compute::Divide,
            native::Compute::DivideSigned => Compute::DivideSigned,
            native::Compute::Remainder => Compute::Remainder,
            native::Compute::RemainderSigned => Compute::RemainderSigned,
        };
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
    fn branch(&mut self, when: native::Compare, left: Value, right: Value, to: Label) {
        let when = match when {
            native::Compare::Equal => Compare::Equal,
            native::Compare::NotEqual => Compare::NotEqual,
            native::Compare::Less => Compare::Less,
            native::Compare::LessEqual => Compare::LessEqual,
            native::Compare::Greater => Compare::Greater,
            native::Compare::GreaterEqual => Compare::GreaterEqual,
            native::Compare::Below => Compare::Below,
            native::Compare::BelowEqual => Compare::BelowEqual,
            native::Compare::Above => Compare::Above,
            native::Compare::AboveEqual => Compare::AboveEqual,
        };
        self.builder.branch(when, left, right, Target::Label(to));
    }
    fn add(&mut self, map: usize, key: &[Value], values: &[Value]) {
        self.map(map).add(&mut self.builder, key, values);
    }
    fn assign(&mut self, map: usize, key: &[Value], value: Value) {
        let (map, own) = (self.map(map), self.own());
        map.assign(&mut self.builder, own, key, value);
    }
    fn delete(&mut self, map: usize, key: &[Value]) {
        let (map, own) = (self.map(map), self.own());
        map.delete(&mut self.builder, own, key);
    }
    fn read(&mut self, map: usize, key: &[Value]) -> (Value, Value) {
        self.map(map).get(&mut self.builder, key)
    }
}

#[cfg(test)]
mod tests;
