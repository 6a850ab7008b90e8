//! Finds a name among what this process has mapped, as (file, offset).
//!
//! In: a file as users type it, a function's name or pattern. Out: the file's path and the function's offset.
//! Does not: register, or take the engine's lock.

use std::path::PathBuf;

use trapline_image::{FunctionIndex, Image, Pattern};
use trapline_tracee::Process;

use super::Error;
use crate::files::Files;
use crate::modules::mapped;

/// As [`find`](super::find()).
pub(super) fn find_in(
    process: &Process,
    files: &mut Files,
    file: &str,
    function: &str,
) -> Result<(PathBuf, u64), Error> {
    let fail = |why: String| Error::File { path: file.into(), why };
    let pattern: Pattern = function.parse().map_err(|error| fail(format!("{function}: {error}")))?;
    let maps = process.maps().map_err(|error| fail(error.to_string()))?;
    let loads = mapped(process, &maps);
    let load = loads.iter().find(|load| load.is_named(process, file));
    let load = load.ok_or_else(|| fail("this process has mapped no such file".into()))?;
    let module = load.open(process, files).map_err(fail)?;
    let image = &module.file.image;
    let found = image.select(&pattern, module.basename()).unwrap_or_default();
    let first = *found.first().ok_or_else(|| fail(format!("it has no function {function}")))?;
    if let (Pattern::Exact(exact), [_, _, ..]) = (&pattern, found.as_slice()) {
        let of = found.iter().map(|one| full_name(image, one.function, &exact.name)).collect();
        return Err(Error::Ambiguous {
            path: module.file.path.clone().into(),
            name: function.to_owned(),
            of,
        });
    }
    let at = image.function(first.function).start + first.offset;
    let offset = image.offset_of(at).ok_or_else(|| fail(format!("{function} lies in no segment")))?;
    Ok((module.file.path.clone().into(), offset.0))
}

/// Name of a function, with the version that belongs to this name, and its address.
fn full_name(image: &Image, function: FunctionIndex, name: &str) -> String {
    let of = image.function(function);
    let version =
        image.names(of).find(|one| one.raw == name).and_then(|one| Some((one.version?, one.default)));
    match version {
        Some((version, true)) => format!("{name}@@{version} at {:#x}", of.start),
        Some((version, false)) => format!("{name}@{version} at {:#x}", of.start),
        None => format!("{name} at {:#x}", of.start),
    }
}
