//! Which maps a program's hits change in the target.
//!
//! In: a program. Out: for each such map, its key's words and how many its value has; or why the target cannot run the program.
//! Does not: make operations (`lower`).

use std::rc::Rc;

use super::emit::Nothing;
use super::lower::{Block, Lower};
use crate::attach::Probe;
use crate::calls::Meaning;
use crate::diagnostic::At;
use crate::program::{Op, Place, Program, Step, Typed};

/// Words of a key at most.
const MOST_KEYS: usize = 6;

/// Why the target cannot run a program: what cannot be run, and where it stands.
#[derive(Debug, Clone)]
pub struct Not {
    /// What.
    pub what: String,
    /// Where.
    pub at: Option<At>,
}

impl Not {
    pub(super) fn yet(what: impl Into<String>, at: &At) -> Self {
        Self { what: what.into(), at: Some(at.clone()) }
    }
}

/// What a word of a key is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum KeyWord {
    /// A number.
    Number,
    /// A thread.
    Thread,
    /// The function that was hit.
    Func,
    /// The probe.
    Probe,
    /// A text of the script, by its number in [`Native::texts`].
    Text,
    /// A histogram's bucket, behind all others.
    Bucket,
}

/// A map that hits change in the target.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NativeMap {
    /// Its key's words.
    pub keys: Vec<KeyWord>,
    /// How many words its value has.
    pub values: u8,
    /// Its values are added up; else they are assigned.
    pub is_added: bool,
}

/// A program that the target can run.
#[derive(Debug, Clone, Default)]
pub struct Native {
    /// By number: those maps that hits change there.
    pub maps: Vec<Option<NativeMap>>,
    /// Texts that stand in keys.
    pub texts: Vec<Rc<[u8]>>,
}

impl Native {
    /// Notes how a map is used; all uses must agree.
    pub(super) fn uses(&mut self, map: usize, how: NativeMap, at: &At) -> Result<(), Not> {
        let known = &mut self.maps[map];
        match known {
            Some(known) if *known != how => Err(Not::yet("a map that is used in two ways", at)),
            _ if how.keys.len() > MOST_KEYS => {
                Err(Not::yet(format!("a key of more than {MOST_KEYS} words"), at))
            }
            _ => {
                *known = Some(how);
                Ok(())
            }
        }
    }
    /// The number of a text.
    pub(super) fn text(&mut self, text: &Rc<[u8]>) -> u64 {
        let found = self.texts.iter().position(|known| known == text);
        found.unwrap_or_else(|| {
            self.texts.push(Rc::clone(text));
            self.texts.len() - 1
        }) as u64
    }
}

/// What the target must know to run a program.
///
/// # Errors
/// Why it cannot.
pub fn native(program: &Program) -> Result<Native, Not> {
    let mut native = Native { maps: vec![None; program.maps.len()], texts: Vec::new() };
    let of_program = |probe: &Probe| probe.is_of_program();
    for block in program.blocks.iter().filter(|block| block.probes.iter().any(of_program)) {
        if let Some(probe) =
            block.probes.iter().find(|probe| !matches!(probe, Probe::Uprobe(..) | Probe::Uretprobe(..)))
        {
            return Err(Not {
                what: format!("{probe}: blocks at such probes are run by the tracer"),
                at: None,
            });
        }
        Lower::new(&mut Nothing, Block { program, block }, &mut native).block()?;
    }
    if native.maps.iter().all(Option::is_none) {
        return Err(Not { what: "no map is changed at hits".to_owned(), at: None });
    }
    let others = program.blocks.iter().filter(|block| !block.probes.iter().any(of_program));
    for block in others.filter(|block| !block.probes.iter().all(|probe| *probe == Probe::End)) {
        own_steps(&block.body, &native)?;
    }
    let evicts = |(map, of): (usize, &Option<NativeMap>)| of.is_some() && program.maps[map].evicts;
    match native.maps.iter().enumerate().any(evicts) {
        true => Err(Not { what: "a map that gives up keys".to_owned(), at: None }),
        false => Ok(native),
    }
}

/// Blocks of the tracer leave a thread's maps as they are.
fn own_steps(steps: &[Step], native: &Native) -> Result<(), Not> {
    steps.iter().try_for_each(|step| match step {
        Step::SetMap { map, key, value } => {
            is_left(*map, native, &value.at)?;
            key.iter().chain([value]).try_for_each(|part| own(part, native))
        }
        Step::Set(_, value) | Step::Do(value) => own(value, native),
        Step::While { condition, body, .. } => {
            own(condition, native)?;
            own_steps(body, native)
        }
        Step::Times { body, .. } | Step::ForMap { body, .. } => own_steps(body, native),
        Step::ForRange { from, to, body, .. } => {
            [from, to].into_iter().try_for_each(|part| own(part, native))?;
            own_steps(body, native)
        }
        Step::Break | Step::Continue | Step::Return => Ok(()),
    })
}

fn is_left(map: usize, native: &Native, at: &At) -> Result<(), Not> {
    match &native.maps[map] {
        Some(NativeMap { is_added: false, .. }) => {
            Err(Not::yet("a thread's map that a block of the tracer changes before the end", at))
        }
        _ => Ok(()),
    }
}

fn own(expr: &Typed, native: &Native) -> Result<(), Not> {
    let changed = match &*expr.op {
        Op::OnMap { meaning: Meaning::Clear | Meaning::Zero | Meaning::Delete, map, .. } => Some(*map),
        Op::Step { place: Place::Map { map, .. }, .. } => Some(*map),
        _ => None,
    };
    if let Some(map) = changed {
        is_left(map, native, &expr.at)?;
    }
    if let Op::Block { steps, .. } = &*expr.op {
        own_steps(steps, native)?;
    }
    expr.inner().into_iter().try_for_each(|inner| own(inner, native))
}
