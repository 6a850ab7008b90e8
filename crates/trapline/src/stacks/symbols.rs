//! Names of frames: symbols, inlined functions, source lines (blazesym). For stripped files, function tables
//! that are left (Go's pclntab, `.gnu_debugdata`). For generated code, what a JIT compiler wrote down.
//!
//! In: [`Frame`]s. Out: [`Function`]s, innermost first: an inlined function comes before the one that it was
//! inlined into. Each place is looked up once. Does not: fail; a place without a name gets its file and
//! offset, or its address.

use std::collections::HashMap;
use std::os::fd::AsRawFd as _;
use std::sync::Arc;

use blazesym::symbolize::source::{Elf, Source};
use blazesym::symbolize::{CodeInfo, Input, Sym, Symbolizer};

use trapline_image::{Image, NoDebugFiles};
use trapline_record::FileOffset;

use super::frame::{Frame, StackFile};
use super::jit::JitMap;

/// A function that a frame is in.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Function {
    /// Name for people; without a known one, the file and the offset there, or the address.
    pub name: String,
    /// File that it was mapped from.
    pub module: Option<String>,
    /// Source file and line, if debug information has them.
    pub line: Option<(String, u32)>,
    /// It was inlined into the next one.
    pub inlined: bool,
    /// Whether the name is known.
    pub named: bool,
    /// Bytes from its first one to the place that was looked up: for a return address, the call's last byte.
    pub offset: u64,
}

/// A file's address in memory, and an offset.
type CodePosition = (usize, u64);
/// Functions at a place. The file is held, so its address is not reused.
type Named = (Arc<StackFile>, Arc<[Function]>);

/// Looks names up.
#[derive(Debug)]
pub struct Symbols {
    blazesym: Symbolizer,
    known: HashMap<CodePosition, Named>,
    /// Files in which blazesym found no name, or whose build id was asked for, by address; `None` if they are no programs.
    images: HashMap<usize, (Arc<StackFile>, Option<Image>)>,
    /// Generated code, by process.
    jit: HashMap<u32, JitMap>,
}

impl Default for Symbols {
    fn default() -> Self {
        Self {
            blazesym: Symbolizer::new(),
            known: HashMap::new(),
            images: HashMap::new(),
            jit: HashMap::new(),
        }
    }
}

impl Symbols {
    /// Functions of a frame in a process, innermost first.
    pub fn of(&mut self, pid: u32, frame: &Frame) -> Arc<[Function]> {
        // The call is before the address to which it returns. A thread's first function may return to 0.
        let before = |address: u64| address.saturating_sub(u64::from(frame.is_return));
        let Some((file, offset)) = &frame.place else {
            return Arc::new([self.made(pid, frame.address, before(frame.address))]);
        };
        let key = (Arc::as_ptr(file).addr(), before(*offset));
        if let Some((_, known)) = self.known.get(&key) {
            return Arc::clone(known);
        }
        let found = self.in_file(file, before(*offset));
        if found.is_empty() {
            return Arc::new([self.in_made_file(pid, frame, file, *offset)]);
        }
        let functions: Arc<[Function]> = found.into();
        self.known.insert(key, (Arc::clone(file), Arc::clone(&functions)));
        functions
    }
    /// Function in code that the program generated itself.
    fn made(&mut self, pid: u32, address: u64, at: u64) -> Function {
        let name = self.jit(pid, at);
        let named = name.is_some();
        let name = name.unwrap_or_else(|| format!("[{address:#x}]"));
        Function { name, module: None, line: None, inlined: false, named, offset: 0 }
    }
    /// Function in code that is mapped from a file and has no name there: perhaps a program generated it into
    /// a memfd.
    fn in_made_file(&mut self, pid: u32, frame: &Frame, file: &StackFile, offset: u64) -> Function {
        let name = self.jit(pid, frame.address - u64::from(frame.is_return));
        let named = name.is_some();
        let base = file.path.rsplit('/').next().unwrap_or(&file.path);
        let name = name.unwrap_or_else(|| format!("{base}+{offset:#x}"));
        Function { name, module: Some(file.path.clone()), line: None, inlined: false, named, offset: 0 }
    }
    fn jit(&mut self, pid: u32, at: u64) -> Option<String> {
        self.jit.entry(pid).or_insert_with(|| JitMap::of(pid)).name(at).map(str::to_owned)
    }
    /// Functions at an offset of a file; empty if it has no name.
    fn in_file(&mut self, file: &Arc<StackFile>, at: u64) -> Vec<Function> {
        let Some(opened) = &file.file else { return Vec::new() };
        // By the descriptor: this is the file that was mapped, even if the path leads elsewhere by now.
        let source = Source::Elf(Elf::new(format!("/proc/self/fd/{}", opened.as_raw_fd())));
        let found = self.blazesym.symbolize_single(&source, Input::FileOffset(at)).ok();
        let mut found = match found.and_then(|found| found.into_sym().map(functions)) {
            Some(found) => found,
            None => self.in_table(file, at).into_iter().collect(),
        };
        found.iter_mut().for_each(|function| function.module = Some(file.path.clone()));
        found
    }
    /// The build id of the file in which a frame's code is, and the offset there; `None` if it has none.
    pub fn build_id(&mut self, frame: &Frame) -> Option<(&[u8], u64)> {
        let (file, offset) = frame.place.as_ref()?;
        let id = self.image(file)?.build_id();
        (!id.is_empty()).then_some((id, *offset))
    }
    fn image(&mut self, file: &Arc<StackFile>) -> Option<&Image> {
        let parse = |opened| Image::parse(crate::files::map(opened).ok()?, &mut NoDebugFiles).ok();
        let read = || (Arc::clone(file), file.file.as_ref().and_then(parse));
        let (_, image) = self.images.entry(Arc::as_ptr(file).addr()).or_insert_with(read);
        image.as_ref()
    }
    /// Name from the tables that are left in a file without symbols.
    fn in_table(&mut self, file: &Arc<StackFile>, at: u64) -> Option<Function> {
        let image = self.image(file)?;
        let place = image.svma_of(FileOffset(at))?;
        let function = image.function(image.function_at(place)?);
        image.names(function).next()?;
        let (name, offset) = (image.display_name(function, ""), place.0.saturating_sub(function.start.0));
        Some(Function { name, module: None, line: None, inlined: false, named: true, offset })
    }
}

/// A symbol's name for people. blazesym's own demangler would take a function `f` of C for the type `float`.
fn readable(raw: &str) -> String {
    trapline_image::demangled(raw).unwrap_or_else(|| raw.to_owned())
}

/// Converts a symbol; innermost function first.
fn functions(sym: Sym<'_>) -> Vec<Function> {
    let one = |name: &str, line: Option<&CodeInfo<'_>>, inlined| Function {
        name: readable(name),
        module: None,
        line: line.and_then(|code| Some((code.to_path().display().to_string(), code.line?))),
        inlined,
        named: true,
        offset: sym.offset as u64,
    };
    let inlined = sym.inlined.iter().rev().map(|call| one(&call.name, call.code_info.as_ref(), true));
    inlined.chain([one(&sym.name, sym.code_info.as_deref(), false)]).collect()
}

#[cfg(test)]
mod tests {
    use super::readable;

    #[test]
    fn names_of_one_letter_are_no_types() {
        for (raw, name) in [("f", "f"), ("d", "d"), ("_ZN4Cart3addEi", "Cart::add(int)")] {
            assert_eq!(readable(raw), name);
        }
    }
}
