//! From the names that a user gives to addresses in a process.
//!
//! In: a process' modules, specifications. Out: [`Watched`]s, and a line for each specification that means
//! nothing here. A symbol comes before a variable with fields. The program is searched first, then its
//! libraries, as the loader would. If several static variables have the name, all are taken. A library's
//! variable is at the address that the loader gave the library. If the program has one of that name (a copy
//! relocation, or its own), the library's is unused.

use std::rc::Rc;

use trapline_image::{DebugInfo, Encoding, Exact, NoVariable, Pattern};
use trapline_order::Order as _;
use trapline_record::{RemoteAddr, Svma};
use trapline_tracee::Process;
use trapline_watch::spec::{WatchPlace, WatchSpec, check_range};
use trapline_watch::{Access, WatchError};

use super::accesses::Watched;
use super::locate::Locator;

use crate::error::{Error, nearest};
use crate::modules::{Module, is_short_name, mapped};
use crate::names::ProcessNames;

/// A place that was found.
struct Found {
    addr: RemoteAddr,
    /// Bytes of the whole variable; 0 if unknown.
    size: u64,
    encoding: Encoding,
}

/// What the specifications mean in a process, and which of them mean nothing there. `begins`: the process has not run yet,
/// so an address may be mapped later.
pub(super) fn find(
    process: &Process,
    locator: &mut Locator,
    specs: &[WatchSpec],
    begins: bool,
) -> Result<(Vec<Watched>, Vec<String>), Error> {
    locator.add(process);
    let name = ProcessNames::of(process)?.shown().to_owned();
    let (mut watched, mut misses) = (Vec::new(), Vec::new());
    for spec in specs {
        match one(process, locator, spec, begins)? {
            Ok(found) => {
                for found in found {
                    watched.push(finish(process, &name, spec, &found)?);
                }
            }
            Err(miss) => misses.push(miss),
        }
    }
    if watched.is_empty() {
        locator.forget_last();
    }
    Ok((watched, misses))
}

/// Places of one specification, or why there are none.
fn one(
    process: &Process,
    locator: &mut Locator,
    spec: &WatchSpec,
    begins: bool,
) -> Result<Result<Vec<Found>, String>, Error> {
    let (name, offset) = match &spec.place {
        WatchPlace::Address(addr) => {
            let addr = RemoteAddr(*addr);
            let mapped = locator.maps().iter().any(|one| one.contains(addr));
            let miss = || format!("{addr} is not mapped in process {}", process.pid());
            let found = Found { addr, size: 0, encoding: Encoding::Unsigned };
            return Ok(if mapped || begins { Ok(vec![found]) } else { Err(miss()) });
        }
        WatchPlace::Name { name, offset } => (name, *offset),
    };
    let modules = match chosen(process, locator, spec)? {
        Ok(modules) => modules,
        Err(miss) => return Ok(Err(miss)),
    };
    let mut near = Vec::new();
    let mut trouble = Trouble::default();
    for module in &modules {
        let found = if spec.access == Access::Execute {
            code(module, name)
        } else {
            data(process, locator, module, name, &mut near, &mut trouble)
        };
        if !found.is_empty() {
            let moved = |one: Found| Found {
                addr: RemoteAddr(one.addr.0.wrapping_add(offset)),
                size: one.size.saturating_sub(offset),
                encoding: if offset == 0 { one.encoding } else { Encoding::Unsigned },
            };
            return Ok(Ok(found.into_iter().map(moved).collect()));
        }
    }
    near.order();
    near.dedup();
    near.truncate(5);
    let what = if spec.access == Access::Execute { "function" } else { "variable" };
    let trouble = trouble.of_one.or(trouble.not_fixed);
    Ok(Err(trouble.unwrap_or_else(|| format!("no {what} {name}{}", nearest(&near)))))
}

/// Why variables of that name are not suitable, from the first module that has one. Local variables, which
/// have no address, often have the same name. So what is wrong with one that has an address takes precedence.
#[derive(Debug, Default)]
struct Trouble {
    of_one: Option<String>,
    not_fixed: Option<String>,
}

/// Modules in which a name is searched.
fn chosen(
    process: &Process,
    locator: &Locator,
    spec: &WatchSpec,
) -> Result<Result<Vec<Module>, String>, Error> {
    let Some(wanted) = &spec.module else { return Ok(Ok(locator.modules().to_vec())) };
    let maps = process.maps()?;
    let all = mapped(process, &maps);
    let named: Vec<_> = all.iter().filter(|one| one.is_named(process, wanted)).map(|one| one.id).collect();
    let is_short = |module: &&Module| is_short_name(&module.file.path, wanted);
    let fits = |module: &&Module| {
        if named.is_empty() { is_short(module) } else { named.contains(&module.file.id) }
    };
    let chosen: Vec<Module> = locator.modules().iter().filter(fits).cloned().collect();
    let miss = || format!("no file {wanted} is mapped in process {}", process.pid());
    Ok(if chosen.is_empty() { Err(miss()) } else { Ok(chosen) })
}

fn code(module: &Module, name: &str) -> Vec<Found> {
    let image = &module.file.image;
    let pattern = Pattern::Exact(Exact { name: name.to_owned(), ..Exact::default() });
    let selected = image.select(&pattern, module.basename()).unwrap_or_default();
    let start = |index| image.function(index).start;
    let found = |one: trapline_image::FunctionIndex| Found {
        addr: module.bias.live(start(one)),
        size: 1,
        encoding: Encoding::Unsigned,
    };
    selected.into_iter().map(|one| found(one.function)).collect()
}

/// Address that a library's own code uses for its variable. A word that the loader has not filled yet is
/// ignored.
fn used(process: &Process, locator: &Locator, module: &Module, at: Svma) -> RemoteAddr {
    let own = module.bias.live(at);
    if module.is_program {
        return own;
    }
    let filled = |word: Svma| process.read_u64(module.bias.live(word)).ok().map(RemoteAddr);
    let is_mapped = |addr: &RemoteAddr| locator.maps().iter().any(|one| one.contains(*addr));
    let words = module.file.image.data_words(at);
    words.into_iter().filter_map(filled).find(is_mapped).unwrap_or(own)
}

fn data(
    process: &Process,
    locator: &mut Locator,
    module: &Module,
    name: &str,
    near: &mut Vec<String>,
    trouble: &mut Trouble,
) -> Vec<Found> {
    let image = &module.file.image;
    let symbols = image.data_named(name);
    if let Some(own) = symbols.iter().find(|one| one.thread_local) {
        let why = || format!("each thread has its own {}; watch the address of one, 0xADDRESS:LEN", own.name);
        trouble.of_one.get_or_insert_with(why);
        return Vec::new();
    }
    // Debug information is read only for the program, and for a library that has the symbol or was named.
    let debug: Option<Rc<DebugInfo>> =
        (module.is_program || !symbols.is_empty() || name.contains(['.', '[']))
            .then(|| locator.debug(module))
            .flatten();
    let typed = debug.map(|debug| debug.variables(name));
    if !symbols.is_empty() {
        let variables = typed.and_then(Result::ok).unwrap_or_default();
        let found = symbols.into_iter().map(|symbol| {
            let variable = variables.iter().find(|one| one.at == symbol.at);
            Found {
                addr: used(process, locator, module, symbol.at),
                size: variable.map_or(symbol.size, |one| one.size),
                encoding: variable.map_or(Encoding::Unsigned, |one| one.encoding),
            }
        });
        return found.collect();
    }
    match typed {
        Some(Ok(variables)) => {
            let found = |one: &trapline_image::Variable| Found {
                addr: module.bias.live(one.at),
                size: one.size,
                encoding: one.encoding,
            };
            return variables.iter().map(found).collect();
        }
        Some(Err(NoVariable::Unknown { nearest, .. })) => near.extend(nearest),
        Some(Err(why @ NoVariable::NotFixed { .. })) => {
            trouble.not_fixed.get_or_insert_with(|| why.to_string());
        }
        Some(Err(other)) => {
            trouble.of_one.get_or_insert_with(|| other.to_string());
        }
        None if name.contains(['.', '[']) => {
            let base = name.split(['.', '[']).next().unwrap_or(name);
            if !image.data_named(base).is_empty() {
                let file = &module.file.path;
                let why =
                    || format!("{file} has no debug information, which fields need; watch {base}+OFFSET:LEN");
                trouble.of_one.get_or_insert_with(why);
            }
        }
        None => {}
    }
    near.extend(image.data_near(name));
    Vec::new()
}

/// Checks the range to be watched.
fn finish(process: &Process, name: &str, spec: &WatchSpec, found: &Found) -> Result<Watched, Error> {
    let addr = found.addr;
    let len = match (spec.access, spec.len) {
        (Access::Execute, _) => 1,
        (_, Some(len)) => len,
        // A part of a variable of an unknown type: as many bytes as fit.
        (_, None) if found.size == 0 || matches!(&spec.place, WatchPlace::Name { offset: 1.., .. }) => {
            let fits = |len: &u64| addr.0.is_multiple_of(*len) && (found.size == 0 || *len <= found.size);
            [8, 4, 2, 1].into_iter().find(fits).unwrap_or(1)
        }
        (_, None) => found.size,
    };
    if spec.access != Access::Execute {
        check_range(addr, len).map_err(|error| name_fields(error, spec, found))?;
    }
    let encoding = if len == found.size { found.encoding } else { Encoding::Unsigned };
    Ok(Watched {
        pid: process.pid(),
        process: name.to_owned(),
        label: spec.text.clone(),
        addr,
        len: len as u8,
        access: spec.access,
        encoding,
    })
}

/// Names the variable in the error about one that is too long.
fn name_fields(error: WatchError, spec: &WatchSpec, found: &Found) -> WatchError {
    match error {
        WatchError::Range { addr, len, why } if spec.len.is_none() && len > 8 => WatchError::Range {
            addr,
            len,
            why: format!(
                "{} is {} bytes long; name a field of it or a part, {}+OFFSET:LEN ({why})",
                spec.text, found.size, spec.text
            ),
        },
        other => other,
    }
}
