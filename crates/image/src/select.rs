//! From a pattern to the functions that it selects, or to the reasons why there is none.
//!
//! In: an image and a pattern. Out: functions in order of address, each once; duplicate static names are all
//! selected. Raw names are compared first, for all functions. A name is demangled only if the raw name does
//! not match and could contain the wanted one.
//! Does not: choose between files.

use crate::nearest::nearest_of;
use crate::pattern::spaceless;
use crate::{Exact, FunctionIndex, Image, Name, NoMatch, Pattern, Selected, SourceLine, demangle};
use std::collections::HashSet;
use trapline_record::Svma;

/// Words that occur in demangled names although mangled names abbreviate them.
const ABBREVIATED: &str = "std allocator basic_string string basic_istream istream basic_ostream ostream \
    basic_iostream iostream char char_traits char8_t char16_t char32_t operator new delete void wchar_t bool signed \
    unsigned short int long __int128 float double __float128 decltype auto nullptr_t const volatile restrict \
    anonymous namespace clone vtable typeinfo VTT guard variable for thunk non virtual to covariant return construction \
    covariance default arg initializer lambda unnamed type complex imaginary sizeof alignof noexcept throw true false \
    i8 u8 i16 u16 i32 u32 i64 u64 i128 u128 isize usize str f32 f64 as dyn mut fn extern unsafe shim closure impl parm typeid \
    dynamic_cast static_cast const_cast reinterpret_cast";

/// An image and the file's name, for looking up functions.
struct Query<'a> {
    image: &'a Image,
    basename: &'a str,
}

impl Image {
    /// The functions that a pattern selects; `basename` is the file's own name, for `BASENAME+0x…`.
    ///
    /// # Errors
    /// [`NoMatch`] when there is none, with hints.
    pub fn select(&self, pattern: &Pattern, basename: &str) -> Result<Vec<Selected>, NoMatch> {
        let query = Query { image: self, basename };
        let found = match pattern {
            Pattern::Exact(exact) => query.exact(exact)?,
            Pattern::Glob(glob) => {
                let literal = Exact { name: glob.0.clone(), ..Exact::default() };
                // `f(char*)` and `main.(*T).Run` are names before they are globs.
                let named = if glob.0.contains('(') { query.exact(&literal)? } else { Vec::new() };
                if named.is_empty() { query.wild(pattern, &glob.0, needle(&glob.0)) } else { named }
            }
            Pattern::Regex(regex) => query.wild(pattern, regex.as_str(), None),
            Pattern::Address(at) => query.address(*at),
            Pattern::Line(line) => query.line(line)?,
        };
        if found.is_empty() { Err(query.no_match(pattern)) } else { Ok(found) }
    }
}

impl Query<'_> {
    fn exact(&self, exact: &Exact) -> Result<Vec<Selected>, NoMatch> {
        let version_fits =
            |name: &Name<'_>| exact.version.as_ref().is_none_or(|v| v.matches(name.version, name.default));
        let wanted = spaceless(&exact.name);
        let needle = needle(&exact.name);
        let mut found = self.functions_with(|name| name.raw == exact.name && version_fits(name));
        if found.is_empty() {
            found = self.functions_with(|name| {
                is_mangled(name.raw)
                    && needle.is_none_or(|needle| name.raw.contains(needle))
                    && version_fits(name)
                    && (demangle::short(name.raw).is_some_and(|text| spaceless(&text) == wanted)
                        || demangle::full(name.raw).is_some_and(|text| spaceless(&text) == wanted))
            });
        }
        if found.is_empty() && exact.name == self.basename && exact.version.is_none() {
            return Ok(self.address(Svma(exact.offset)));
        }
        let functions = self.image.functions();
        let longest = found.iter().map(|&FunctionIndex(i)| functions[i as usize].len).max();
        found.retain(|&FunctionIndex(i)| exact.offset < functions[i as usize].len);
        match longest {
            Some(longest) if found.is_empty() => Err(NoMatch { beyond: Some(longest), ..NoMatch::default() }),
            _ => Ok(found.into_iter().map(|function| Selected { function, offset: exact.offset }).collect()),
        }
    }

    fn functions_with(&self, mut fits: impl FnMut(&Name<'_>) -> bool) -> Vec<FunctionIndex> {
        let with_index = (0..).map(FunctionIndex).zip(self.image.functions());
        let fitting = with_index.filter(|(_, function)| self.image.names(function).any(|name| fits(&name)));
        fitting.map(|(index, _)| index).collect()
    }

    fn wild(&self, pattern: &Pattern, text: &str, needle: Option<&str>) -> Vec<Selected> {
        let versioned = text.contains('@');
        // A pattern with `+0x` is for nameless functions; `redis*` does not select all functions of
        // redis-server.
        let placed = text.contains("+0x");
        let fits = |name: &Name<'_>| {
            pattern.matches(name.raw)
                || versioned && pattern.matches(&with_version(name))
                || is_mangled(name.raw)
                    && needle.is_none_or(|needle| name.raw.contains(needle))
                    && (demangle::full(name.raw).is_some_and(|text| pattern.matches(&text))
                        || demangle::short(name.raw).is_some_and(|text| pattern.matches(&text)))
        };
        let with_index = (0..).map(FunctionIndex).zip(self.image.functions());
        let fitting = with_index.filter(|(_, function)| {
            if function.names.is_empty() {
                pattern.matches(&format!("{:#x}", function.start))
                    || placed && pattern.matches(&format!("{}+{:#x}", self.basename, function.start))
            } else {
                self.image.names(function).any(|name| fits(&name))
            }
        });
        fitting.map(|(function, _)| Selected { function, offset: 0 }).collect()
    }

    fn address(&self, at: Svma) -> Vec<Selected> {
        let function = self.image.function_at(at);
        let offset = |index| at.0.wrapping_sub(self.image.function(index).start.0);
        function.map(|index| Selected { function: index, offset: offset(index) }).into_iter().collect()
    }

    /// For each function that has code of a line, the first of it.
    fn line(&self, line: &SourceLine) -> Result<Vec<Selected>, NoMatch> {
        let Some(debug) = self.image.debug_info() else {
            return Err(NoMatch { no_lines: true, ..NoMatch::default() });
        };
        let code = debug.code_of(line);
        let mut found: Vec<Selected> = code.at.iter().flat_map(|at| self.address(*at)).collect();
        let mut seen = HashSet::new();
        found.retain(|one| seen.insert(one.function));
        let near = code.near.iter().map(|near| SourceLine { line: *near, column: None, ..line.clone() });
        match found.is_empty() {
            true => Err(NoMatch { nearest: near.map(|one| one.to_string()).collect(), ..NoMatch::default() }),
            false => Ok(found),
        }
    }

    fn no_match(&self, pattern: &Pattern) -> NoMatch {
        let mut why = NoMatch { no_functions: self.image.functions().is_empty(), ..NoMatch::default() };
        match pattern {
            Pattern::Exact(exact) => {
                let wanted = spaceless(&exact.name);
                why.imported = self.image.imported().any(|name| {
                    name.raw == exact.name
                        || is_mangled(name.raw)
                            && (demangle::short(name.raw).is_some_and(|text| spaceless(&text) == wanted)
                                || demangle::full(name.raw).is_some_and(|text| spaceless(&text) == wanted))
                });
                why.inlined = self.image.inlined_copies(&exact.name);
                why.nearest = self.nearest(&exact.name);
            }
            Pattern::Glob(_) | Pattern::Regex(_) => {
                why.imported = self.image.imported().any(|name| pattern.matches(name.raw));
            }
            Pattern::Address(_) | Pattern::Line(_) => {}
        }
        why
    }

    fn nearest(&self, wanted: &str) -> Vec<String> {
        let names = self.image.functions().iter().flat_map(|function| self.image.names(function));
        nearest_of(wanted, names.map(|name| demangle::short(name.raw).unwrap_or_else(|| name.raw.to_owned())))
    }
}

pub(crate) fn is_mangled(raw: &str) -> bool {
    raw.starts_with("_Z") || raw.starts_with("_R")
}

fn with_version(name: &Name<'_>) -> String {
    match name.version {
        Some(version) => format!("{}{}{version}", name.raw, if name.default { "@@" } else { "@" }),
        None => name.raw.to_owned(),
    }
}

/// The longest run of a name's or glob's letters that every matching mangled name must contain; `None` when
/// mangling may abbreviate it. Numbers are left out, since mangling counts from another end.
pub(crate) fn needle(text: &str) -> Option<&str> {
    let runs = text.split(|c: char| !(c.is_ascii_alphanumeric() || c == '_'));
    let words = runs.filter(|run| run.starts_with(|c: char| !c.is_ascii_digit()));
    words.max_by_key(|run| run.len()).filter(|run| !ABBREVIATED.contains(run))
}
