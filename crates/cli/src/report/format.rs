//! The format of a file, chosen by its suffix.
//!
//! In: `--json`, the name behind `-o`, the formats that a verb can write. Out: one format, or why there is
//! none. Any other suffix means text, as no suffix does. Does not: write, open, or look at a file.

use std::path::Path;

/// The formats of reports.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) enum Format {
    /// Text for people.
    #[default]
    Text,
    /// One JSON object a line, docs/guide/json.md.
    Json,
    /// Comma-separated values with a header, RFC 4180.
    Csv,
    /// One HTML page that loads nothing else.
    Html,
    /// Folded stacks: a line for each stack.
    Folded,
    /// A picture.
    Svg,
    /// A profile for pprof.
    Pprof,
    /// A timeline for ui.perfetto.dev.
    Perfetto,
    /// Records as they were taken, docs/guide/recordings.md.
    Saved,
}

/// Suffixes of each format, without the dot. Messages name the first one.
const SUFFIXES: &[(Format, &[&str])] = &[
    (Format::Json, &["json", "jsonl", "ndjson"]),
    (Format::Csv, &["csv"]),
    (Format::Html, &["html", "htm"]),
    (Format::Folded, &["folded"]),
    (Format::Svg, &["svg"]),
    (Format::Pprof, &["pb.gz", "pprof"]),
    (Format::Perfetto, &["perfetto-trace", "pftrace"]),
    (Format::Saved, &["trapline"]),
];

/// Why a file cannot be written.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum FormatError {
    /// The format belongs to another verb.
    #[error(
        "-o {file}: .{suffix} is nothing that this command writes; take {offered}, or any other name for text"
    )]
    NotOffered {
        /// The file.
        file: String,
        /// Its suffix.
        suffix: &'static str,
        /// The suffixes that this verb accepts.
        offered: String,
    },
    /// Two formats were requested.
    #[error("--json and -o {file} ask for different formats; leave one of them out")]
    Twice {
        /// The file.
        file: String,
    },
}

/// The format of `file`, which must be text or one of `offered`.
pub(crate) fn choose(json: bool, file: Option<&Path>, offered: &[Format]) -> Result<Format, FormatError> {
    let Some((file, (format, suffix))) = file.and_then(|file| Some((file, by_suffix(file)?))) else {
        return Ok(if json { Format::Json } else { Format::Text });
    };
    let file = file.display().to_string();
    match format {
        _ if !offered.contains(&format) => {
            let offered = SUFFIXES.iter().filter(|(format, _)| offered.contains(format));
            let offered: Vec<String> = offered.map(|(_, names)| format!(".{}", names[0])).collect();
            Err(FormatError::NotOffered { file, suffix, offered: offered.join(", ") })
        }
        Format::Json => Ok(format),
        _ if json => Err(FormatError::Twice { file }),
        _ => Ok(format),
    }
}

fn by_suffix(file: &Path) -> Option<(Format, &'static str)> {
    let name = file.file_name()?.to_str()?.to_ascii_lowercase();
    let ends = |suffix: &&&str| name.strip_suffix(**suffix).is_some_and(|rest| rest.ends_with('.'));
    SUFFIXES.iter().find_map(|(format, names)| names.iter().find(ends).map(|one| (*format, *one)))
}

#[cfg(test)]
mod tests {
    use super::{Format, FormatError, choose};
    use std::path::Path;

    fn of(json: bool, file: &str) -> Result<Format, FormatError> {
        choose(json, Some(Path::new(file)), &[Format::Json, Format::Csv])
    }

    #[test]
    fn a_suffix_chooses() {
        assert_eq!(choose(false, None, &[]), Ok(Format::Text));
        assert_eq!(choose(true, None, &[Format::Json]), Ok(Format::Json));
        for (file, format) in [
            ("a.json", Format::Json),
            ("a.NDJSON", Format::Json),
            ("dir.csv/a.csv", Format::Csv),
            ("a.txt", Format::Text),
            ("dir.csv/a", Format::Text),
            ("json", Format::Text),
            ("a.gz", Format::Text),
            ("/dev/full", Format::Text),
        ] {
            assert_eq!(of(false, file), Ok(format), "{file}");
        }
        assert_eq!((of(true, "a.json"), of(true, "a.log")), (Ok(Format::Json), Ok(Format::Json)));
    }

    #[test]
    fn what_cannot_be_is_an_error() {
        let error = of(false, "a.htm").expect_err("not offered").to_string();
        assert_eq!(
            error,
            "-o a.htm: .htm is nothing that this command writes; take .json, .csv, or any other name for text"
        );
        assert_eq!(of(true, "a.csv"), Err(FormatError::Twice { file: "a.csv".to_owned() }));
    }
}
