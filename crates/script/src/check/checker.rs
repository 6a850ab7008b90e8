//! What the checker knows while it goes through the script: scopes, variables, maps, messages.
//!
//! In: types that are assigned. Out: slots and types, grown round by round. Invariants: types only grow, so rounds end;
//! messages are kept in the last round only; what a script expands to is bounded. Does not: know expressions.

use std::collections::HashMap;
use std::rc::Rc;

use super::options::Options;
use crate::attach::Probe;
use crate::config::Config;
use crate::diagnostic::{At, Diagnostic, Severity};
use crate::layout::Layouts;
use crate::program::{MapInfo, Needs, SumArgs, Typed};
use crate::source::Span;
use crate::tree::{Expr, Tree};
use crate::types::Type;

/// Most rounds. Each lets a type grow; a chain of variables needs one for each.
pub(super) const MOST_ROUNDS: usize = 64;
/// How many expressions a script may expand to.
const MOST_EXPRESSIONS: usize = 200_000;
/// How deep macros may be inside each other, with their expressions.
const MOST_DEPTH: usize = 150;

/// What a name in a macro stands for.
#[derive(Debug, Clone)]
pub(super) enum Bound<'a> {
    /// A variable of the caller.
    Slot(usize),
    /// A map.
    Map(String),
    /// An expression, which is evaluated where it was written.
    Expr(&'a Expr, usize),
}

/// A variable in a scope.
#[derive(Debug, Clone)]
pub(super) struct Variable {
    pub(super) slot: usize,
    pub(super) declared: Span,
}

/// The scopes of a block, or of a macro.
#[derive(Debug, Default)]
pub(super) struct Frame<'a> {
    pub(super) scopes: Vec<HashMap<String, Variable>>,
    pub(super) params: HashMap<String, Bound<'a>>,
    /// The call of the macro.
    pub(super) call: Option<Rc<At>>,
    /// Macros that are being expanded, this one included.
    pub(super) names: Vec<&'a str>,
}

/// A map as far as it is known.
#[derive(Debug, Clone)]
pub(super) struct Map {
    pub(super) info: MapInfo,
    /// Whether it has keys; not known before it is used.
    pub(super) keyed: Option<bool>,
    pub(super) used: bool,
}

/// A parameter that the script asks for by name.
#[derive(Debug, Clone)]
pub(super) struct NamedParam {
    pub(super) name: String,
    pub(super) description: String,
}

/// The checker.
#[derive(Debug)]
pub(super) struct Checker<'a> {
    pub(super) tree: &'a Tree,
    pub(super) layouts: &'a Layouts,
    pub(super) config: &'a Config,
    pub(super) options: &'a Options,
    pub(super) maps: Vec<Map>,
    /// Types of the variables of each block.
    pub(super) locals: Vec<Vec<Type>>,
    /// Whether a variable's type was declared.
    pub(super) fixed: Vec<Vec<bool>>,
    pub(super) block: usize,
    /// The block's probes, and their sorts.
    pub(super) probes: Vec<Probe>,
    pub(super) sorts: Vec<&'static str>,
    next_slot: usize,
    pub(super) frames: Vec<Frame<'a>>,
    pub(super) frame: usize,
    pub(super) loops: usize,
    pub(super) needs: Needs,
    pub(super) named: Vec<NamedParam>,
    /// Whether messages count: the types are known.
    pub(super) last: bool,
    pub(super) changed: bool,
    pub(super) messages: Vec<Diagnostic>,
    expressions: usize,
    depth: usize,
}

impl<'a> Checker<'a> {
    pub(super) fn new(
        tree: &'a Tree,
        layouts: &'a Layouts,
        config: &'a Config,
        options: &'a Options,
    ) -> Self {
        let blocks = tree.probes.len();
        Self {
            tree,
            layouts,
            config,
            options,
            maps: Vec::new(),
            locals: vec![Vec::new(); blocks],
            fixed: vec![Vec::new(); blocks],
            block: 0,
            probes: Vec::new(),
            sorts: Vec::new(),
            next_slot: 0,
            frames: Vec::new(),
            frame: 0,
            loops: 0,
            needs: Needs::default(),
            named: Vec::new(),
            last: false,
            changed: false,
            messages: Vec::new(),
            expressions: 0,
            depth: 0,
        }
    }
    /// Begins a round.
    pub(super) fn begin_round(&mut self, last: bool) {
        self.last = last;
        self.changed = false;
        self.expressions = 0;
        self.named.clear();
        self.messages.clear();
    }
    /// The sort of the block's probes of programs, if it has any.
    pub(super) fn of_program(&self) -> Option<&'static str> {
        self.sorts.iter().copied().find(|sort| Probe::SORTS_OF_PROGRAMS.contains(sort))
    }
    /// Begins a block.
    pub(super) fn begin_block(&mut self, block: usize, probes: &[Probe]) {
        self.block = block;
        self.sorts = probes.iter().map(Probe::sort).collect();
        self.probes = probes.to_vec();
        self.next_slot = 0;
        self.frame = 0;
        self.loops = 0;
        self.needs = Needs::default();
        self.frames = vec![Frame { scopes: vec![HashMap::new()], ..Frame::default() }];
    }
    /// Runs a rule that may contain itself; `None` if the script expands to too much.
    pub(super) fn bounded<T>(&mut self, span: Span, rule: impl FnOnce(&mut Self) -> T) -> Option<T> {
        self.expressions += 1;
        if self.expressions > MOST_EXPRESSIONS || self.depth > MOST_DEPTH {
            if self.last && !self.messages.iter().any(|message| message.message.starts_with("the macros")) {
                self.error("the macros of the script expand to too much", span);
            }
            return None;
        }
        self.depth += 1;
        let done = rule(self);
        self.depth -= 1;
        Some(done)
    }
    /// Whether a type may still be found in a later round.
    pub(super) const fn is_open(&self, ty: &Type) -> bool {
        ty.is_none() && !self.last
    }
    /// A place, with the macros that are being expanded.
    pub(super) fn at(&self, span: Span) -> At {
        At { span, caller: self.frames.get(self.frame).and_then(|frame| frame.call.clone()) }
    }
    /// Keeps a message. An error about what contains an error is a consequence of that one, and is left out.
    pub(super) fn say(&mut self, message: Diagnostic) {
        let contains = |inner: &At| {
            let (inside, outer) = (inner.span, message.at.span);
            inside.begin >= outer.begin && inside.end <= outer.end && inner.caller == message.at.caller
        };
        let inside = |other: &Diagnostic| contains(&other.at) || other.at.callers().any(contains);
        let is_error = |message: &Diagnostic| message.severity == Severity::Error;
        let known = |other: &Diagnostic| {
            other.at == message.at && other.message == message.message
                || is_error(&message) && is_error(other) && inside(other)
        };
        if self.last && !self.messages.iter().any(known) {
            self.messages.push(message);
        }
    }
    pub(super) fn error(&mut self, message: impl Into<String>, span: Span) {
        let at = self.at(span);
        self.say(Diagnostic::error(message, at));
    }
    pub(super) fn warn(&mut self, message: impl Into<String>, span: Span) {
        let at = self.at(span);
        self.say(Diagnostic::new(Severity::Warning, message.into(), at));
    }
    /// An error in place of an expression.
    pub(super) fn fail(&mut self, message: impl Into<String>, span: Span) -> Typed {
        self.error(message, span);
        Typed::nothing(&self.at(span))
    }
    /// The frame of the block or macro that is gone through.
    pub(super) fn here(&mut self) -> &mut Frame<'a> {
        &mut self.frames[self.frame]
    }
    pub(super) fn scoped<T>(&mut self, rule: impl FnOnce(&mut Self) -> T) -> T {
        let frame = self.frame;
        self.frames[frame].scopes.push(HashMap::new());
        let done = rule(self);
        self.frames[frame].scopes.pop();
        done
    }
    /// A variable that can be seen here.
    pub(super) fn variable(&mut self, name: &str) -> Option<Variable> {
        let frame = self.here();
        if let Some(Bound::Slot(slot)) = frame.params.get(name) {
            return Some(Variable { slot: *slot, declared: Span::default() });
        }
        frame.scopes.iter().rev().find_map(|scope| scope.get(name).cloned())
    }
    /// A new variable in the innermost scope.
    pub(super) fn declare(&mut self, name: &str, declared: Span) -> usize {
        let slot = self.next_slot;
        self.next_slot += 1;
        let locals = &mut self.locals[self.block];
        if locals.len() <= slot {
            locals.push(Type::None);
            self.fixed[self.block].push(false);
        }
        if let Some(scope) = self.here().scopes.last_mut() {
            scope.insert(name.to_owned(), Variable { slot, declared });
        }
        slot
    }
    pub(super) fn local(&self, slot: usize) -> Type {
        self.locals[self.block][slot].clone()
    }
    /// Lets a variable hold values of a type too.
    pub(super) fn grow_local(&mut self, slot: usize, name: &str, ty: &Type, span: Span) {
        let old = self.local(slot);
        match old.promoted(ty) {
            Some(_) if self.fixed[self.block][slot] => {}
            Some(new) if new != old => {
                self.locals[self.block][slot] = new;
                self.changed = true;
            }
            Some(_) => {}
            None => self.error(
                format!(
                    "Type mismatch for ${name}: trying to assign value of type '{ty}' when variable already has a \
                     type '{old}'"
                ),
                span,
            ),
        }
    }
    /// The number of a map; it is made if it is new.
    pub(super) fn map_index(&mut self, name: &str) -> usize {
        if let Some(index) = self.maps.iter().position(|map| map.info.name == name) {
            return index;
        }
        let info = MapInfo {
            name: name.to_owned(),
            key: None,
            value: Type::None,
            room: self.config.max_map_keys,
            evicts: false,
            sums: SumArgs::None,
        };
        self.maps.push(Map { info, keyed: None, used: false });
        self.maps.len() - 1
    }
    /// Notes whether a map is used with a key.
    pub(super) fn note_keyed(&mut self, map: usize, keyed: bool, span: Span) {
        self.maps[map].used = true;
        match self.maps[map].keyed {
            None => {
                self.maps[map].keyed = Some(keyed);
                self.changed = true;
            }
            Some(old) if old != keyed => {
                let name = self.maps[map].info.name.clone();
                let (used, now) = if old { ("with", "without") } else { ("without", "with") };
                self.error(
                    format!(
                        "{name} used as a map {now} explicit keys (previously used {used} explicit keys)"
                    ),
                    span,
                );
            }
            Some(_) => {}
        }
    }
    /// Lets a map have keys of a type too.
    pub(super) fn grow_key(&mut self, map: usize, ty: &Type, span: Span) {
        let old = self.maps[map].info.key.clone().unwrap_or(Type::None);
        match old.promoted(ty) {
            Some(new) if new != old => {
                self.maps[map].info.key = Some(new);
                self.changed = true;
            }
            Some(_) => {}
            None => {
                let name = self.maps[map].info.name.clone();
                self.error(
                    format!(
                        "Argument mismatch for {name}: trying to access with arguments: '{ty}' when map expects \
                         arguments: '{old}'"
                    ),
                    span,
                );
            }
        }
    }
    /// Lets a map have values of a type too.
    pub(super) fn grow_value(&mut self, map: usize, ty: &Type, span: Span) {
        let old = self.maps[map].info.value.clone();
        let new = match (&old, ty) {
            (Type::None, Type::Sum(..)) => Some(ty.clone()),
            (Type::Sum(..), Type::Sum(..)) => old.promoted(ty),
            (Type::Sum(..), _) => None,
            _ => old.promoted(ty),
        };
        match new {
            Some(new) if new != old => {
                self.maps[map].info.value = new;
                self.changed = true;
            }
            Some(_) => {}
            None => {
                let name = self.maps[map].info.name.clone();
                self.error(
                    format!(
                        "Type mismatch for {name}: trying to assign value of type '{ty}' when map already has a \
                         type '{old}'"
                    ),
                    span,
                );
            }
        }
    }
}
