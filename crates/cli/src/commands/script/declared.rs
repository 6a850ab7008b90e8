//! What debug information says of probed functions, in the script's types.
//!
//! In: attach points, names of structures. Out: parameters and structures, looked up in the files that are named; each
//! file is read once for each function. Does not: attach.

use std::cell::RefCell;
use std::collections::HashMap;
use std::ffi::OsString;
use std::path::PathBuf;
use std::rc::Rc;

use trapline::beyond;
use trapline::prototypes::{ParameterPlace, ProbedFunction, RecordShape, Shape};
use trapline::{Session, Target};
use trapline_script::{Bits, Declared, Field, FileVariable, Parameter, Probe, Struct, Type};

/// Begins the names of structures without names.
const UNNAMED: &str = "(anonymous) ";
/// Arguments that scripts can name.
const ARGUMENTS: u8 = 12;

/// Debug information of the probed programs.
#[derive(Debug, Default)]
pub(super) struct DebugTypes {
    /// What each attach point means.
    known: RefCell<HashMap<String, Rc<Vec<ProbedFunction>>>>,
    /// Structures without names.
    unnamed: RefCell<Vec<RecordShape>>,
    /// Folders in which separate debug information is looked for first.
    folders: Vec<PathBuf>,
}

impl DebugTypes {
    /// Debug information of files, and of these folders.
    pub(super) fn in_folders(folders: &[PathBuf]) -> Self {
        Self { folders: folders.to_vec(), ..Self::default() }
    }
    fn functions(&self, probe: &Probe) -> Rc<Vec<ProbedFunction>> {
        let (file, function) = match probe {
            Probe::Uprobe(file, function) | Probe::Uretprobe(file, function) => (file, function),
            _ => return Rc::default(),
        };
        let spec = format!("uprobe:{file}:{function}");
        if let Some(known) = self.known.borrow().get(&spec) {
            return Rc::clone(known);
        }
        // The file alone decides, whichever process maps it.
        let target = Target::Launch(vec![OsString::from(file)]);
        let found = Session::builder()
            .target(target)
            .debug_folders(&self.folders)
            .probe(&spec)
            .ok()
            .map(|builder| builder.prototypes());
        let found = Rc::new(found.unwrap_or_default().into_iter().flatten().collect::<Vec<_>>());
        self.known.borrow_mut().insert(spec, Rc::clone(&found));
        found
    }
    /// The parameters of each function as C spells them, with the function's own probe.
    pub(super) fn spelled(&self, probe: &Probe) -> Vec<(String, Vec<String>)> {
        let one = |function: &ProbedFunction| {
            let names = function.prototype.iter().flat_map(|prototype| &prototype.parameters);
            let shapes = function.shapes().unwrap_or_default();
            let lines = shapes.iter().zip(names).map(|((_, spelled), one)| format!("{spelled} {}", one.name));
            (function.spec.text.clone(), lines.collect())
        };
        self.functions(probe).iter().map(one).collect()
    }
}

impl Declared for DebugTypes {
    fn parameters(&self, probe: &Probe) -> Result<Vec<Parameter>, String> {
        let functions = self.functions(probe);
        let mut all: Option<Vec<Parameter>> = None;
        for function in functions.iter() {
            let unknown = || format!("there is no debug information of {}", function.spec.text);
            let shapes = function.shapes().ok_or_else(unknown)?;
            let prototype = function.prototype.as_ref().ok_or_else(unknown)?;
            let parameters = prototype.parameters.iter().zip(shapes).map(|(one, (shape, _))| {
                let ty = self.as_type(&shape);
                let scalar = matches!(ty, Type::Int(_) | Type::Bool | Type::Pointer(_));
                Parameter { name: one.name.clone(), ty, argument: argument(one.place).filter(|_| scalar) }
            });
            let parameters: Vec<Parameter> = parameters.collect();
            match &all {
                Some(other) if *other != parameters => {
                    return Err("its functions have different ones".to_owned());
                }
                _ => all = Some(parameters),
            }
        }
        all.ok_or_else(|| "no function of this name has debug information".to_owned())
    }
    fn variable(&self, probe: &Probe, name: &str) -> Result<FileVariable, String> {
        let functions = self.functions(probe);
        let of = |function: &ProbedFunction| function.variable(name);
        let found = functions.first().and_then(of);
        let (at, size) = found.ok_or_else(|| {
            format!("the file of {probe} has no variable of that name, or another file may replace it")
        })?;
        match functions.iter().all(|one| of(one) == found) {
            true => Ok(FileVariable { name: name.into(), at: at.0, size }),
            false => Err(format!("the files of {probe} have different ones")),
        }
    }
    fn structure(&self, probe: &Probe, name: &str) -> Option<Struct> {
        if let Some(number) = name.strip_prefix(UNNAMED) {
            let record =
                number.parse().ok().and_then(|number: usize| self.unnamed.borrow().get(number).cloned());
            return record.map(|record| self.laid(&record));
        }
        let found = self.functions(probe).iter().find_map(|function| function.record(name));
        found.map(|record| self.laid(&record))
    }
}

/// Which argument of a script a parameter is.
fn argument(place: ParameterPlace) -> Option<u8> {
    let nth = match place {
        ParameterPlace::General(nth) => nth,
        ParameterPlace::Stack(offset) => (beyond::ARGUMENT_REGISTERS..ARGUMENTS)
            .find(|nth| beyond::stack_argument(nth - beyond::ARGUMENT_REGISTERS, 8).offsets == [offset])?,
        ParameterPlace::Vector(_) | ParameterPlace::Elsewhere => return None,
    };
    (nth < ARGUMENTS).then_some(nth)
}

fn size(bytes: u64) -> u32 {
    u32::try_from(bytes).unwrap_or(u32::MAX)
}

impl DebugTypes {
    /// A type as a script has it. What it has no type for is bytes.
    fn as_type(&self, shape: &Shape) -> Type {
        match shape {
            Shape::Void => Type::Void,
            Shape::Bool => Type::Bool,
            Shape::Char => Type::int(1),
            Shape::Integer { bytes, signed: true } => Type::int(*bytes),
            Shape::Integer { bytes, signed: false } => Type::uint(*bytes),
            Shape::Pointer(to) => Type::pointer(self.as_type(to)),
            Shape::Array(of, count) => match (&**of, size(*count)) {
                (Shape::Char, count) if count > 0 => Type::Text(count),
                (of, count) => Type::Array(Rc::new(self.as_type(of)), count),
            },
            Shape::Record(name, bytes) => Type::Struct(name.as_str().into(), size(*bytes)),
            Shape::Anonymous(record) => Type::Struct(self.unnamed(record).into(), size(record.size)),
            Shape::Other(count) => Type::Array(Rc::new(Type::uint(1)), size(*count)),
        }
    }
    /// The name of a structure that has none: its number. No script can spell it.
    fn unnamed(&self, record: &RecordShape) -> String {
        let mut known = self.unnamed.borrow_mut();
        let number = known.iter().position(|other| other == record).unwrap_or_else(|| {
            known.push(record.clone());
            known.len() - 1
        });
        format!("{UNNAMED}{number}")
    }
    /// A structure as a script has it.
    fn laid(&self, record: &RecordShape) -> Struct {
        let mut fields = Vec::new();
        for field in &record.fields {
            let bits = field.bits.map(|(from, count)| Bits { from, count });
            let Ok(offset) = u32::try_from(field.offset) else { continue };
            fields.push(Field { name: field.name.clone(), ty: self.as_type(&field.of), offset, bits });
        }
        Struct::new(fields, size(record.size))
    }
}
