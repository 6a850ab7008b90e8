//! What a function or USDT probe offers: types, names and places of its arguments, its value, its line.
//!
//! In: a file, a place in it. Out: a [`Declaration`], or `None` if the file notes nothing of it. Does not: look at a
//! process; decide what a verb can read.

use std::collections::HashMap;
use std::sync::Arc;

pub use trapline_image::Line;
use trapline_image::{Btf, Convention, DebugInfo, Image, MarkArgument, MarkClass, Prototype};
use trapline_tracee::FileId;

use crate::files::ModuleFile;
use crate::progress::{OnProgress, Step};
use crate::sites::NamedSite;

/// What a function takes and returns as its source spells it, or what a USDT probe's note says.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Declaration {
    /// Type of the value; `None` of a USDT probe, which has none.
    pub value: Option<String>,
    /// The arguments, in their order.
    pub arguments: Vec<Offered>,
    /// Where the function begins in its source.
    pub line: Option<Line>,
}

/// An argument.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Offered {
    /// Its name; empty if it has none.
    pub name: String,
    /// Its type as the source spells it; of USDT probes its width and kind.
    pub of: String,
    /// Where it is when the probe is hit: `rdi`, `[rsp+8]`; `None` if that is unknown.
    pub place: Option<String>,
}

/// What a file notes of its functions: debug information, or types without addresses if that is missing.
#[derive(Debug, Default)]
pub(crate) struct FileNotes {
    pub(crate) debug: Option<Arc<DebugInfo>>,
    btf: Option<Btf>,
}

/// Notes of each file, read once.
#[derive(Debug, Default)]
pub(crate) struct NotesByFile {
    known: HashMap<FileId, FileNotes>,
    progress: OnProgress,
}

impl NotesByFile {
    /// None yet; their reading is said.
    pub(crate) fn with(progress: &OnProgress) -> Self {
        Self { progress: progress.clone(), ..Self::default() }
    }
    /// Notes of a file.
    pub(crate) fn of(&mut self, file: &ModuleFile) -> &FileNotes {
        let progress = &self.progress;
        self.known.entry(file.id).or_insert_with(|| {
            let step = Step::DebugInformation { file: &file.path };
            let debug = progress.during(step, || file.image.debug_info()).map(Arc::new);
            let btf = if debug.is_none() { file.image.btf() } else { None };
            FileNotes { debug, btf }
        })
    }
    /// What a place offers.
    pub(crate) fn declaration(&mut self, file: &ModuleFile, place: &NamedSite) -> Option<Declaration> {
        let machine = file.image.machine();
        if let Some(arguments) = &place.arguments {
            let offered = |one: &MarkArgument| Offered {
                name: String::new(),
                of: width(one),
                place: one.place.spelled(machine),
            };
            return Some(Declaration {
                arguments: arguments.iter().map(offered).collect(),
                ..Declaration::default()
            });
        }
        let convention = place.convention(&file.image);
        let notes = self.of(file);
        let prototype = notes.prototype(&file.image, place)?;
        let spelled =
            notes.debug.as_ref().and_then(|debug| debug.parameter_shapes(place.at)).unwrap_or_default();
        let mut spelled = spelled.into_iter().map(|(_, spelled)| spelled);
        let offered = prototype.parameters.into_iter().map(|one| {
            let whole = one.place.spelled(machine, convention);
            let place = whole.or_else(|| one.parts.as_ref()?.at.spelled(machine, convention));
            Offered { name: one.name, of: spelled.next().unwrap_or_else(|| "?".to_owned()), place }
        });
        Some(Declaration {
            arguments: offered.collect(),
            value: notes.debug.as_ref().and_then(|debug| debug.value_spelled(place.at)),
            line: notes.debug.as_ref().and_then(|debug| debug.declared_at(place.at)),
        })
    }
}

/// Width and kind of a USDT probe's argument, as a type of C.
fn width(argument: &MarkArgument) -> String {
    let bits = u32::from(argument.bytes) * 8;
    match argument.class {
        MarkClass::Float if argument.bytes == 4 => "float".to_owned(),
        MarkClass::Float => "double".to_owned(),
        MarkClass::Signed => format!("int{bits}_t"),
        MarkClass::Unsigned => format!("uint{bits}_t"),
    }
}

impl FileNotes {
    /// What a function takes and returns, and where.
    pub(crate) fn prototype(&self, image: &Image, place: &NamedSite) -> Option<Prototype> {
        // What Go's assembler made takes its arguments from the stack, whatever its declaration in Go says.
        if image.is_go() && place.convention(image) == Convention::Unknown {
            return None;
        }
        match form(place) {
            Form::Whole => self.of_whole(place),
            Form::Copy => self.debug.as_ref()?.prototype_of_copy(place.at),
            Form::Part => None,
        }
    }
    fn of_whole(&self, place: &NamedSite) -> Option<Prototype> {
        let by_name = |btf: &Btf| {
            let names = place.aliases.iter().chain([&place.probe]);
            names.filter_map(|name| btf.prototype(name.rsplit(':').next()?)).next()
        };
        let noted = self.debug.as_ref().and_then(|debug| debug.prototype(place.at));
        noted.or_else(|| self.btf.as_ref().and_then(by_name))
    }
}

/// What a symbol of a function means.
enum Form {
    Whole,
    /// A copy that the compiler made for some callers. It does not take what was noted for the source.
    Copy,
    /// An instruction, or a part to which the function jumps.
    Part,
}

fn form(place: &NamedSite) -> Form {
    let names = || place.aliases.iter().chain([&place.probe]);
    let is_any = |marks: &[&str]| names().any(|name| marks.iter().any(|mark| name.contains(mark)));
    match () {
        () if place.function.is_none() || is_any(&[".cold"]) => Form::Part,
        () if is_any(&[".isra.", ".constprop.", ".part."]) => Form::Copy,
        () => Form::Whole,
    }
}
