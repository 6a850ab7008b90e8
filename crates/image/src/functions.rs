//! Symbols and unwind entries, merged into one list of functions.
//!
//! In: code symbols of all tables, unwind entries. Out: functions sorted by start, no two overlapping
//! (IMG-2), aliases merged, cold pieces attached. A symbol without size ends where its unwind entry, the next
//! function or its section ends. Unwind entries that no symbol covers become nameless functions, unless they
//! describe a piece of a function.
//! Does not: look at instructions.

use crate::elf::Elf;
use crate::symbols::{NameRef, Pool, Symbol, SymbolKind};
use crate::unwind::Fde;
use crate::{Function, FunctionKind, Names, Source};
use object::elf as constants;
use std::cmp::Reverse;
use std::collections::HashMap;
use trapline_record::Svma;

/// Result of [`build`].
#[derive(Debug, Default)]
pub(crate) struct Functions {
    pub(crate) list: Vec<Function>,
    /// The names that [`Names`] refer to.
    pub(crate) names: Vec<NameRef>,
    /// Pieces of functions that no symbol names.
    pub(crate) fragments: Vec<(Svma, u64)>,
    /// (start, length in bytes, function) of attached pieces, sorted.
    pub(crate) cold: Vec<(Svma, u64, u32)>,
    /// Untyped symbols in code: branch targets of assembly.
    pub(crate) labels: Vec<u64>,
}

/// Ranges (start, length in bytes) of code, sorted: executable sections, or executable loads if there are no
/// sections.
pub(crate) fn text_ranges(elf: &Elf) -> Vec<(Svma, u64)> {
    let code = u64::from(constants::SHF_ALLOC | constants::SHF_EXECINSTR);
    let sections = elf.sections.iter().filter(|s| s.flags & code == code && elf.data(s).is_some());
    let mut ranges: Vec<_> = sections.map(|s| (Svma(s.svma), s.size)).collect();
    ranges.retain(|(svma, size)| elf.executable(svma.0) && elf.at(svma.0, *size).is_some());
    if ranges.is_empty() {
        let loads = elf.loads.iter().filter(|s| s.executable() && s.filesz > 0);
        ranges.extend(loads.map(|s| (s.svma, s.filesz)));
    }
    ranges.sort_unstable();
    ranges
}

/// Sections with code that the linker makes or joins from pieces: their unwind entries do not describe
/// functions.
fn linker_made(elf: &Elf) -> Vec<(u64, u64)> {
    let made = |name: &str| name == ".plt" || name.starts_with(".plt.") || name == ".iplt";
    let spliced = |name: &str| name == ".init" || name == ".fini";
    elf.sections.iter().filter(|s| made(&s.name) || spliced(&s.name)).map(|s| (s.svma, s.size)).collect()
}

/// `foo` for `foo.cold`, `foo.cold.3`; and whether it is numbered.
fn cold_of(name: &str) -> Option<(&str, bool)> {
    if let Some(parent) = name.strip_suffix(".cold") {
        return Some((parent, false));
    }
    let unnumbered = name.trim_end_matches(|c: char| c.is_ascii_digit());
    Some((unnumbered.strip_suffix(".cold.")?, true))
}

fn fde_at(fdes: &[Fde], at: u64) -> Option<&Fde> {
    let index = fdes.partition_point(|fde| fde.start <= at).checked_sub(1)?;
    fdes.get(index).filter(|fde| at < fde.end())
}

fn fde_from(fdes: &[Fde], start: u64) -> Option<&Fde> {
    fde_at(fdes, start).filter(|fde| fde.start == start)
}

/// Merges symbols and unwind entries as described at the top of this file.
pub(crate) fn build(elf: &Elf, pool: &Pool, symbols: Vec<Symbol>, fdes: &[Fde]) -> Functions {
    let ranges = text_ranges(elf);
    let made = linker_made(elf);
    let in_made = |at: u64| made.iter().any(|&(start, len)| at >= start && at - start < len);
    let mut out = Functions::default();
    let (mut bodies, mut parts) = sort_out(pool, symbols, fdes, &mut out.labels);
    bodies.retain(|s| s.kind != SymbolKind::Label || !in_made(s.start));
    // The list is sorted except for a few runs, which this sort takes advantage of.
    bodies.sort_by_key(|s| (s.start, s.source, s.local, Reverse(s.size)));
    for group in bodies.chunk_by(|a, b| a.start == b.start) {
        out.list.push(merge(pool, group, fdes, &mut out.names));
    }
    let mut covered = 0;
    let mut named = out.list.iter().map(|f| (f.start.0, f.end().0)).peekable();
    let mut nameless = Vec::new();
    parts.sort_unstable_by_key(|s| s.start);
    for fde in fdes.iter().filter(|fde| !in_made(fde.start)) {
        while let Some((_, end)) = named.next_if(|&(start, _)| start <= fde.start) {
            covered = covered.max(end);
        }
        let is_part = parts.binary_search_by_key(&fde.start, |s| s.start).is_ok();
        if fde.start < covered || is_part {
            continue;
        }
        if fde.fragment {
            out.fragments.push((Svma(fde.start), fde.len));
        } else {
            nameless.push(function(fde.start, fde.len, Source::Fde));
        }
    }
    out.list.append(&mut nameless);
    out.list.sort_by_key(|f| f.start);
    clip(&mut out.list, &ranges);
    attach(pool, &bodies, &parts, fdes, &mut out);
    out.labels.sort_unstable();
    out.labels.dedup();
    out
}

fn function(start: u64, len: u64, source: Source) -> Function {
    Function {
        start: Svma(start),
        len,
        names: Names::default(),
        source,
        kind: FunctionKind::Plain,
        cold: Vec::new(),
    }
}

/// Separates function symbols from cold pieces. Untyped symbols are kept only if an unwind entry begins
/// there.
fn sort_out(
    pool: &Pool,
    symbols: Vec<Symbol>,
    fdes: &[Fde],
    labels: &mut Vec<u64>,
) -> (Vec<Symbol>, Vec<Symbol>) {
    let mut bodies = Vec::with_capacity(symbols.len());
    let mut parts = Vec::new();
    for symbol in symbols {
        let unwind = || fde_from(fdes, symbol.start);
        if symbol.kind == SymbolKind::Label {
            labels.push(symbol.start);
            if unwind().is_none_or(|fde| fde.fragment) || pool.get(symbol.name).raw.starts_with('$') {
                continue;
            }
        }
        match cold_of(pool.get(symbol.name).raw) {
            // LLVM numbers functions that it split off and calls; GCC numbered pieces that it jumps to. Only
            // the latter begin with their owner's frame.
            Some((_, numbered)) if !numbered || unwind().is_some_and(|fde| fde.fragment) => {
                parts.push(symbol)
            }
            _ => bodies.push(symbol),
        }
    }
    (bodies, parts)
}

/// One function from all symbols that share a start; the best source comes first.
fn merge(pool: &Pool, group: &[Symbol], fdes: &[Fde], names: &mut Vec<NameRef>) -> Function {
    let start = group[0].start;
    let stated = group.iter().map(|s| s.size).find(|&size| size != 0);
    let unwound = || fde_at(fdes, start).map(|fde| fde.end() - start);
    let mut merged = function(start, stated.or_else(unwound).unwrap_or(0), group[0].source);
    if group.iter().any(|s| s.kind == SymbolKind::Ifunc) {
        merged.kind = FunctionKind::Ifunc;
    }
    let first = names.len();
    if let [only] = group {
        names.push(only.name);
    } else {
        let mut aliases: Vec<_> = group.iter().map(|s| (s.local, pool.get(s.name), s.name)).collect();
        // The name that callers use comes first: global, fewest leading underscores, shortest. If the text is
        // the same, a name with a version comes before one without, which is then dropped.
        aliases.sort_by_cached_key(|(local, name, _)| {
            let underscores = name.raw.len() - name.raw.trim_start_matches('_').len();
            (*local, underscores, name.raw.len(), name.raw, Reverse(name.version))
        });
        aliases.dedup_by(|b, a| a.1.raw == b.1.raw && (b.1.version.is_none() || a.1.version == b.1.version));
        // Drop a local symbol if a global one has the same name; they come from two tables.
        let mut kept: Vec<NameRef> = Vec::with_capacity(aliases.len());
        for (local, name, reference) in aliases {
            if !local || !kept.iter().any(|&k| pool.get(k).raw == name.raw) {
                kept.push(reference);
            }
        }
        names.append(&mut kept);
    }
    merged.names = Names { first: first as u32, count: (names.len() - first) as u32 };
    merged
}

/// Ends every function before the next one, and inside its section; sets the length of those without one.
fn clip(list: &mut Vec<Function>, ranges: &[(Svma, u64)]) {
    let mut next = u64::MAX;
    for function in list.iter_mut().rev() {
        let start = function.start.0;
        let range = ranges.partition_point(|(svma, _)| svma.0 <= start).checked_sub(1).map(|i| ranges[i]);
        let end = range.map_or(start, |(svma, size)| svma.0.saturating_add(size)).min(next);
        let room = end.saturating_sub(start);
        function.len = if function.len == 0 { room } else { function.len.min(room) };
        next = start;
    }
    list.retain(|f| f.len != 0);
}

/// Attaches each cold piece to the function after which it is named. Among several functions of that name, it
/// is the one of the same source file.
fn attach(pool: &Pool, bodies: &[Symbol], parts: &[Symbol], fdes: &[Fde], out: &mut Functions) {
    let parent = |s: &Symbol| cold_of(pool.get(s.name).raw).map_or("", |(parent, _)| parent);
    let mut owners: HashMap<&str, Vec<&Symbol>> = parts.iter().map(|s| (parent(s), Vec::new())).collect();
    if !owners.is_empty() {
        for body in bodies {
            if let Some(list) = owners.get_mut(pool.get(body.name).raw) {
                list.push(body);
            }
        }
    }
    for same in parts.chunk_by(|a, b| a.start == b.start) {
        let part = &same[0];
        let unwound = fde_from(fdes, part.start).map(|fde| fde.len);
        let Some(len) = Some(part.size).filter(|&size| size != 0).or(unwound) else { continue };
        let range = (Svma(part.start), len);
        let owner = owners.get(parent(part)).and_then(|list| pick(list, part));
        match owner.and_then(|start| out.list.binary_search_by_key(&Svma(start), |f| f.start).ok()) {
            Some(index) => {
                out.list[index].cold.push(range);
                out.cold.push((range.0, range.1, index as u32));
            }
            None => out.fragments.push(range),
        }
    }
    out.cold.sort_unstable();
    out.fragments.sort_unstable();
}

fn pick(namesakes: &[&Symbol], part: &Symbol) -> Option<u64> {
    let same_unit = |s: &&&Symbol| s.local && s.unit == part.unit && s.source == part.source;
    let near = namesakes.iter().find(same_unit).map(|s| s.start);
    let mut starts = namesakes.iter().map(|s| s.start);
    let first = starts.next()?;
    near.or_else(|| starts.all(|start| start == first).then_some(first))
}
