//! Prototypes of probed functions as their compiler noted them, read before a session begins.
//!
//! In: targets and probes. Out: for each probe the functions that it means, with their prototypes if debug
//! information has them. Does not: attach, or fail. What cannot be looked at has no prototypes, and a session
//! says why.

use std::collections::HashMap;
use std::sync::Arc;

use trapline_image::{
    CodePlace, Convention, CountedField, DebugInfo, Field, FieldBase, MarkArgument, MarkClass, MarkPlace,
    ProbeKind, ProbeSpec,
};
use trapline_record::Svma;
use trapline_tracee::Process;

pub use trapline_image::{
    DeclaredParameter, Elements, FieldContent, FieldShape, Form, LaidOut, Layout, MOST_BYTES,
    Misplaced as FieldError, NoField, ParameterPlace, Parts, Piece, Prototype, RecordShape, Shape, ValueType,
    Whereabouts,
};

use crate::beyond;
use crate::calls::FieldRead;
use crate::choose::{Chosen, choose};
use crate::declaration::NotesByFile;
use crate::files::{Files, ModuleFile};
use crate::listing::{file_modules, find_program};
use crate::locals::local;
use crate::modules::{Module, mapped};
use crate::session_request::SessionRequest;
use crate::sites::{NamedSite, NamedSites};
use crate::target::{Target, resolve};
use crate::to_load::ToLoad;

/// Number of processes beyond which none is looked at.
const MANY: usize = 64;
/// Number of functions beyond which a glob gets no prototypes.
const MOST: usize = 1000;

/// A function that a probe means.
#[derive(Clone, Debug)]
pub struct ProbedFunction {
    /// A probe that means this function alone.
    pub spec: ProbeSpec,
    /// Its name as reports show it: `Cart::add(int)`.
    pub label: String,
    /// What it takes and returns, if that is noted, and noted alike wherever the function is found.
    pub prototype: Option<Prototype>,
    /// Whether texts can be read in the process ([`Builder::texts`](crate::Builder::texts)), as far as is
    /// known beforehand.
    pub reads_texts: bool,
    /// Whether its arguments are in Go's registers.
    pub is_go: bool,
    at: Svma,
    debug: Option<Arc<DebugInfo>>,
    /// Of a function.
    file: Option<Arc<ModuleFile>>,
    /// At a place inside a function, where variables are named.
    inside: Option<CodePlace>,
}

/// How the target reads the elements of a string, slice or vector.
#[derive(Clone, Debug)]
pub struct CountedRead {
    /// The first of the elements: [`MOST_BYTES`] bytes.
    pub elements: FieldRead,
    /// Their number; or the address of the first one, and that behind the last one.
    pub number: FieldRead,
    /// What they are.
    pub of: Elements,
}

impl ProbedFunction {
    /// Whether it is the same function of the same file.
    fn is_like(&self, other: &Self) -> bool {
        let same_file = match (&self.debug, &other.debug) {
            (Some(one), Some(other)) => Arc::ptr_eq(one, other),
            _ => false,
        };
        same_file && self.at == other.at && self.prototype == other.prototype
    }
    /// Whether its parameters are variables at a place inside a function.
    #[must_use]
    pub const fn is_inside(&self) -> bool {
        self.inside.is_some()
    }
    /// Gives its probe the kind that was requested.
    fn probed_as(&mut self, asked: &ProbeSpec) {
        if self.spec.kind != asked.kind {
            self.spec.kind = asked.kind;
            if self.spec.text != asked.text {
                self.spec.text = format!("{}:{}", asked.kind, self.spec.text);
            }
        }
    }
    /// The types of its parameters, in their order, and how C spells them.
    #[must_use]
    pub fn shapes(&self) -> Option<Vec<(Shape, String)>> {
        self.debug.as_ref().filter(|_| self.prototype.is_some())?.parameter_shapes(self.at)
    }
    /// The structure or union of this name in its file.
    #[must_use]
    pub fn record(&self, name: &str) -> Option<RecordShape> {
        self.debug.as_ref()?.record_shape(name, self.at)
    }
    /// The elements of a string, slice or vector (C++, Rust, Go) to which a path leads; `None` if it leads to nothing of that
    /// kind.
    #[must_use]
    pub fn counted_field(&self, path: &str) -> Option<CountedRead> {
        let debug = self.debug.as_ref().filter(|_| self.prototype.is_some() && self.inside.is_none())?;
        let of_file = || {
            let file = self.file.as_ref()?;
            let is_other = debug
                .field(self.at, path)
                .is_err_and(|wrong| matches!(wrong.why, NoField::NoArgument { .. }));
            is_other.then(|| debug.counted_file_field(&file.image.code_place(self.at), path))?
        };
        let CountedField { base, address, number, of } =
            debug.counted_field(self.at, path).or_else(of_file)?;
        let register = self.read_from(base)?;
        let number = match &of {
            Elements::Values { by_end: true, .. } => {
                FieldRead { register, offsets: address.clone(), bytes: 16 }
            }
            _ => FieldRead { register, offsets: number, bytes: 8 },
        };
        let offsets = address.into_iter().chain([0]).collect();
        let elements = FieldRead { register, offsets, bytes: MOST_BYTES as u8 };
        Some(CountedRead { elements, number, of })
    }
    /// How the target reads a field of what an argument points to (`req->next->len`), or of a variable of the function's file
    /// (`server.clients`), and what it is. What is longer than [`MOST_BYTES`] is read in several pieces, in their order. An
    /// argument hides a variable.
    ///
    /// # Errors
    /// What is wrong with the path, and where.
    pub fn field(&self, path: &str) -> Result<(Vec<FieldRead>, FieldContent), FieldError> {
        let whole = || FieldError { at: 0..path.len(), why: NoField::NothingNoted };
        let debug = self.debug.as_ref().filter(|_| self.prototype.is_some()).ok_or_else(whole)?;
        if let Some(here) = &self.inside {
            let wrong = debug.local(here, path).err();
            let not_named = || FieldError { at: 0..path.len(), why: NoField::NotNamed(path.to_owned()) };
            return Err(wrong.unwrap_or_else(not_named));
        }
        let no_argument = |wrong: FieldError| match (&wrong.why, &self.file) {
            (NoField::NoArgument { .. }, Some(file)) => {
                let of_file = debug.file_field(&file.image.code_place(self.at), path);
                of_file
                    .map_err(|FieldError { at, why }| FieldError { at, why: why.beside_argument(wrong.why) })
            }
            _ => Err(wrong),
        };
        let Field { base, offsets, bytes, of } = debug.field(self.at, path).or_else(no_argument)?;
        let elsewhere = || FieldError { at: 0..path.len(), why: NoField::Elsewhere(path.to_owned()) };
        let register = self.read_from(base).ok_or_else(elsewhere)?;
        let far = || FieldError { at: 0..path.len(), why: NoField::Far };
        Ok((pieces(FieldRead { register, offsets, bytes: 0 }, bytes).ok_or_else(far)?, of))
    }
    /// The address and size of a variable of its file, by its symbol. `None` if there is none, or if another file may have the
    /// one that counts.
    #[must_use]
    pub fn variable(&self, name: &str) -> Option<(Svma, u64)> {
        let image = &self.file.as_ref()?.image;
        let found = image.data_symbol(name)?;
        (!image.code_place(self.at).may_be_replaced(found.at)).then_some((found.at, found.size))
    }
    /// What the target reads a field from.
    fn read_from(&self, base: FieldBase) -> Option<u8> {
        const BYTES: u8 = 8;
        match base {
            FieldBase::File => Some(FieldRead::FILE),
            FieldBase::Argument(nth @ 0..beyond::RECORDED) => Some(nth),
            FieldBase::Argument(nth) if self.is_go => Some(beyond::go_argument(nth, BYTES)?.register),
            FieldBase::Argument(nth) => Some(beyond::argument_register(nth, BYTES)?.register),
        }
    }
}

/// So many bytes from a place on, in pieces that records can hold; `None` if one is too far away.
fn pieces(first: FieldRead, bytes: u16) -> Option<Vec<FieldRead>> {
    let one = |from: u16| {
        let mut read = first.clone();
        if let Some(last) = read.offsets.last_mut() {
            *last = last.checked_add(i32::from(from))?;
        }
        read.bytes = (bytes - from).min(MOST_BYTES as u16) as u8;
        Some(read)
    };
    (0..bytes).step_by(MOST_BYTES as usize).map(one).collect()
}

/// For each probe, the functions and USDT probes that it means in the target.
pub(crate) fn find(target: &Target, requested: &SessionRequest) -> Vec<Vec<ProbedFunction>> {
    let (mut files, mut known) =
        (Files::with(&requested.debug_folders, &requested.progress), NotesByFile::with(&requested.progress));
    let launched = match target {
        Target::Launch(words) => words.first().and_then(|name| find_program(name)).map(ToLoad::new),
        _ => None,
    };
    let mut processes = match target {
        Target::Launch(_) => Vec::new(),
        target => resolve(target, &requested.specs, &mut Vec::new()).unwrap_or_default(),
    };
    if processes.len() > MANY {
        processes.clear();
    }
    let pids: Vec<u32> = processes.iter().map(Process::pid).collect();
    drop(processes);
    let reads_texts = pids.iter().all(|&pid| may_read(pid));
    let one = |spec: &ProbeSpec| {
        // A function's prototype is looked up by its entry, whatever part of it is probed.
        let kind = if spec.kind == ProbeKind::Usdt { ProbeKind::Usdt } else { ProbeKind::Entry };
        let noted = ProbeSpec { kind, ..spec.clone() };
        let requested = SessionRequest { specs: vec![noted], most: Some(MOST), ..requested.clone() };
        let looked = match target {
            Target::Launch(_) => {
                launched.as_ref().and_then(|program| in_file(program, &requested, &mut files, &mut known))
            }
            _ => {
                let noted = |&pid| in_process(pid, &requested, &mut files, &mut known, reads_texts);
                alike(pids.iter().filter_map(noted))
            }
        };
        // In another process, a glob may mean other functions.
        let alone = pids.len() < 2 || spec.file.is_some();
        let mut found = looked.filter(|all| alone || all.len() == 1).unwrap_or_default();
        found.iter_mut().for_each(|one| one.probed_as(spec));
        found
    };
    requested.specs.iter().map(one).collect()
}

/// What all processes have alike; a prototype that differs is dropped.
fn alike(mut all: impl Iterator<Item = Vec<ProbedFunction>>) -> Option<Vec<ProbedFunction>> {
    let mut first = all.next()?;
    for other in all {
        for one in &mut first {
            if !other.iter().any(|theirs| theirs.spec.text == one.spec.text && theirs.is_like(one)) {
                one.prototype = None;
            }
        }
    }
    Some(first)
}

fn in_process(
    pid: u32,
    requested: &SessionRequest,
    files: &mut Files,
    known: &mut NotesByFile,
    reads_texts: bool,
) -> Option<Vec<ProbedFunction>> {
    let process = Process::open(pid).ok()?;
    let maps = process.maps().ok()?;
    let fresh = mapped(&process, &maps);
    let of = (&maps[..], &fresh[..]);
    let Chosen { modules, places, .. } = choose(&process, "", files, requested, of, &mut HashMap::new());
    noted(requested, &modules, &places, reads_texts, known)
}

/// Whether texts can be read: that takes a system call, which no filter may punish.
fn may_read(pid: u32) -> bool {
    Process::open(pid).and_then(|process| process.restricted()).is_ok_and(|restricted| restricted.is_none())
}

/// Prototypes for a command that is yet to be started.
fn in_file(
    program: &ToLoad,
    requested: &SessionRequest,
    files: &mut Files,
    known: &mut NotesByFile,
) -> Option<Vec<ProbedFunction>> {
    let (modules, places) = file_modules(files, requested, Some(program), &mut Vec::new()).ok()?;
    noted(requested, &modules, &places, true, known)
}

fn noted(
    requested: &SessionRequest,
    modules: &[Module],
    places: &NamedSites,
    reads_texts: bool,
    known: &mut NotesByFile,
) -> Option<Vec<ProbedFunction>> {
    let found = &places.found;
    if found.is_empty() || found.len() > MOST {
        return None;
    }
    let mut all: Vec<ProbedFunction> = Vec::new();
    for place in found {
        let file = &modules[place.module].file;
        let names_variables = !requested.specs[0].locals.is_empty();
        if let Some(arguments) = place.arguments.as_ref().filter(|_| !names_variables) {
            let one = of_mark(requested, place, arguments, (found.len() == 1, reads_texts))?;
            match all.iter_mut().find(|other| other.spec.text == one.spec.text) {
                Some(other) => other.prototype = other.prototype.take().zip(one.prototype).map(of_both),
                None => all.push(one),
            }
            continue;
        }
        let notes = known.of(file);
        if place.arguments.is_some() {
            let noted = (notes.debug.clone(), file.image.code_place(place.at));
            all.push(of_locals(requested, place, noted, (found.len() == 1, reads_texts))?);
            continue;
        }
        let prototype = notes.prototype(&file.image, place);
        let debug = notes.debug.clone();
        let spec = if found.len() == 1 { requested.specs[0].clone() } else { place.probe.parse().ok()? };
        match all.iter_mut().find(|other| other.spec.text == spec.text) {
            Some(other) if other.prototype != prototype => other.prototype = None,
            Some(_) => {}
            None => {
                let is_go = place.convention(&file.image) == Convention::Go;
                let at = place.at;
                let file = Some(Arc::clone(file));
                all.push(ProbedFunction {
                    spec,
                    label: place.label.clone(),
                    prototype,
                    reads_texts,
                    is_go,
                    at,
                    debug,
                    file,
                    inside: None,
                });
            }
        }
    }
    Some(all)
}

/// Prototype from a USDT probe's note, at one of its places.
fn of_mark(
    requested: &SessionRequest,
    place: &NamedSite,
    arguments: &[MarkArgument],
    (is_alone, reads): (bool, bool),
) -> Option<ProbedFunction> {
    let spec: ProbeSpec = if is_alone { requested.specs[0].clone() } else { place.probe.parse().ok()? };
    let parameter = |(nth, argument): (u8, &MarkArgument)| {
        let of = match *argument {
            MarkArgument { bytes: 8, class: MarkClass::Unsigned, .. } => ValueType::Pointer,
            MarkArgument { bytes, class: MarkClass::Float, .. } => ValueType::Float(bytes),
            MarkArgument { bytes, class, .. } => {
                ValueType::Integer { bytes, signed: class == MarkClass::Signed }
            }
        };
        // A value in memory is read by a system call.
        let is_known = match argument.place {
            MarkPlace::Unknown(_) => false,
            MarkPlace::Memory { .. } | MarkPlace::Symbol { .. } => reads,
            _ => nth < 6 || reads,
        };
        let place = if is_known { ParameterPlace::General(nth) } else { ParameterPlace::Elsewhere };
        DeclaredParameter { name: String::new(), of, place, parts: None }
    };
    let parameters = (0..).zip(arguments).map(parameter).collect();
    let prototype = Some(Prototype { parameters, value: ValueType::Void, value_parts: None });
    let (at, debug, file, inside, label) = (place.at, None, None, None, place.label.clone());
    Some(ProbedFunction { spec, label, prototype, reads_texts: false, is_go: false, at, debug, file, inside })
}

/// The variables that were asked for at a place inside a function, as if they were parameters. Those that are not known there
/// are left out, so that [`ProbedFunction::field`] says why.
fn of_locals(
    requested: &SessionRequest,
    place: &NamedSite,
    (debug, here): (Option<Arc<DebugInfo>>, CodePlace),
    (is_alone, reads_texts): (bool, bool),
) -> Option<ProbedFunction> {
    let asked = &requested.specs[0];
    let spec: ProbeSpec = if is_alone { asked.clone() } else { place.probe.parse().ok()? };
    let parameter = |(nth, name): (u8, &String)| {
        let local = local(debug.as_deref(), &here, name).ok()?;
        let place = match local.argument.place {
            MarkPlace::Loads { .. } | MarkPlace::StaticLoads { .. } if !reads_texts => {
                ParameterPlace::Elsewhere
            }
            _ => ParameterPlace::General(nth),
        };
        Some(DeclaredParameter { name: name.clone(), of: local.of, place, parts: None })
    };
    let parameters = (0..).zip(&asked.locals).filter_map(parameter).collect();
    let prototype = Some(Prototype { parameters, value: ValueType::Void, value_parts: None });
    let spec = ProbeSpec { locals: asked.locals.clone(), ..spec };
    let (at, file, inside) = (place.at, None, Some(here));
    let label = place.label.clone();
    Some(ProbedFunction { spec, label, prototype, reads_texts, is_go: false, at, debug, file, inside })
}

/// What two places of a USDT probe have: types in which the values of both are what they are.
fn of_both((mut one, other): (Prototype, Prototype)) -> Prototype {
    let more = other.parameters.get(one.parameters.len()..).unwrap_or_default().to_vec();
    for (one, other) in one.parameters.iter_mut().zip(other.parameters) {
        let (is_known, other_is) =
            (one.place != ParameterPlace::Elsewhere, other.place != ParameterPlace::Elsewhere);
        one.of = match (is_known, other_is) {
            (true, true) => type_of_both(one.of.clone(), other.of),
            (false, true) => other.of,
            _ => one.of.clone(),
        };
        one.place = if is_known { one.place } else { other.place };
    }
    one.parameters.extend(more);
    one
}

/// The type that has the values of both. A float and an integer have none: values of the other place are unknown.
fn type_of_both(one: ValueType, other: ValueType) -> ValueType {
    match (&one, &other) {
        (ValueType::Float(_), _) | (_, ValueType::Float(_)) => one,
        (ValueType::Integer { bytes, signed }, ValueType::Integer { bytes: others, signed: other_is })
            if signed == other_is =>
        {
            ValueType::Integer { bytes: *bytes.max(others), signed: *signed }
        }
        (ValueType::Pointer, _) | (_, ValueType::Pointer) => ValueType::Pointer,
        _ => ValueType::Integer { bytes: 8, signed: true },
    }
}
