//! Where the code of a source line begins.
//!
//! In: the line programs of debug information, the name of a source file, a line. Out: addresses. Invariant: only
//! addresses at which a statement of exactly that line begins. Does not: choose one of them for a function.

use std::fmt;

use gimli::{AttributeValue, LineProgramHeader, Unit};
use trapline_record::Svma;

use crate::debuginfo::{DebugInfo, Line};
use crate::sections::Slice;

/// A line of a source file: `FILE.c:12`, or with its column, `FILE.c:12:5`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SourceLine {
    /// The file's name, or the end of its path.
    pub file: String,
    /// The line, counted from 1.
    pub line: u64,
    /// The column, counted from 1; `None` for the whole line.
    pub column: Option<u64>,
}

impl SourceLine {
    /// Reads `LINE` or `LINE:COLUMN` of a file; `None` if there is anything else.
    pub(crate) fn parse(file: &str, place: &str) -> Option<Self> {
        let number = |text: &str| text.parse::<u64>().ok().filter(|number| *number > 0);
        let (line, column) = match place.split_once(':') {
            Some((line, column)) => (line, Some(number(column)?)),
            None => (place, None),
        };
        Some(Self { file: file.to_owned(), line: number(line)?, column })
    }
    /// Whether a path is that of the file: the same, or one that ends with it.
    fn is_of(&self, path: &str) -> bool {
        let wanted = self.file.trim_start_matches("./");
        path.strip_suffix(wanted).is_some_and(|rest| rest.is_empty() || rest.ends_with('/'))
    }
}

impl fmt::Display for SourceLine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.file, self.line)?;
        self.column.map_or(Ok(()), |column| write!(f, ":{column}"))
    }
}

/// What is known of a line.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(crate) struct LineCode {
    /// Addresses at which one of its statements begins; sorted.
    pub(crate) at: Vec<Svma>,
    /// Lines of the file that have code: the nearest one before, and behind.
    pub(crate) near: Vec<u64>,
}

impl DebugInfo {
    /// The code of a source line.
    pub(crate) fn code_of(&self, wanted: &SourceLine) -> LineCode {
        let mut found = LineCode::default();
        let mut near = (0, u64::MAX);
        let mut units = self.dwarf.units();
        // A malformed unit ends the walk.
        while let Ok(Some(header)) = units.next() {
            let Ok(unit) = self.dwarf.unit(header) else { continue };
            self.look(&unit, wanted, &mut found, &mut near);
        }
        found.at.sort_unstable();
        found.at.dedup();
        let (before, behind) = near;
        found.near = [before, behind].into_iter().filter(|line| ![0, u64::MAX].contains(line)).collect();
        found
    }
    /// Where the source declares a function. Its first instruction may be of another function, which was inlined.
    #[must_use]
    pub fn declared_at(&self, function: Svma) -> Option<Line> {
        let entry = self.function(function).ok()??;
        let declared = self.inherited(&entry, |entry| {
            let (file, line) = (entry.value(gimli::DW_AT_decl_file)?, entry.number(gimli::DW_AT_decl_line)?);
            let (Some(AttributeValue::FileIndex(file)), Some(line)) = (file, line) else { return Ok(None) };
            let unit = entry.at().unit.unit;
            let path =
                unit.line_program.as_ref().and_then(|program| self.path_of(unit, program.header(), file));
            Ok(path.zip(u32::try_from(line).ok()).map(|(file, line)| Line { file, line }))
        });
        declared.ok()?
    }
    /// Looks through the line program of one unit.
    fn look(&self, unit: &Unit<Slice>, wanted: &SourceLine, found: &mut LineCode, near: &mut (u64, u64)) {
        let Some(program) = unit.line_program.clone() else { return };
        let mut rows = program.rows();
        // The last file that a row named, and whether it is the wanted one.
        let mut last = (u64::MAX, false);
        while let Ok(Some((header, row))) = rows.next_row() {
            if row.end_sequence() || !row.is_stmt() {
                continue;
            }
            if row.file_index() != last.0 {
                let path = self.path_of(unit, header, row.file_index());
                last = (row.file_index(), path.is_some_and(|path| wanted.is_of(&path)));
            }
            let Some(line) = row.line().filter(|_| last.1) else { continue };
            let line = line.get();
            let column = match row.column() {
                gimli::ColumnType::LeftEdge => 0,
                gimli::ColumnType::Column(column) => column.get(),
            };
            if line != wanted.line {
                *near =
                    if line < wanted.line { (near.0.max(line), near.1) } else { (near.0, near.1.min(line)) };
            } else if wanted.column.is_none_or(|wanted| wanted == column) {
                found.at.push(Svma(row.address()));
            }
        }
    }
    /// The path of a file that a line program names, as far as debug information has it.
    fn path_of(&self, unit: &Unit<Slice>, header: &LineProgramHeader<Slice>, index: u64) -> Option<String> {
        let file = header.file(index)?;
        let text = |value: AttributeValue<Slice>| {
            let text = self.dwarf.attr_string(unit, value).ok()?;
            Some(String::from_utf8_lossy(text.bytes()).into_owned())
        };
        let name = text(file.path_name())?;
        // Directory 0 of old line programs is the unit's own, which is not listed.
        let folder = file.directory(header).filter(|_| !name.starts_with('/')).and_then(text);
        Some(folder.map_or_else(|| name.clone(), |folder| format!("{folder}/{name}")))
    }
}

#[cfg(test)]
mod tests {
    use super::SourceLine;

    #[test]
    fn a_line_is_read_with_its_column() {
        let read = |place| SourceLine::parse("a.c", place).map(|line| (line.line, line.column));
        assert_eq!(read("12"), Some((12, None)));
        assert_eq!(read("12:5"), Some((12, Some(5))));
        for wrong in ["", "0", "x", "1:", "1:2:3", "-1"] {
            assert_eq!(read(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn a_files_name_is_the_end_of_its_path() {
        let is = |file: &str, path| SourceLine::parse(file, "1").expect("a line").is_of(path);
        assert!(is("a.c", "/src/a.c") && is("src/a.c", "/x/src/a.c") && is("/x/a.c", "/x/a.c"));
        assert!(is("./a.c", "a.c"));
        assert!(!is("a.c", "/src/ba.c") && !is("b/a.c", "/a.c") && !is("/a.c", "/x/a.c"));
    }
}
