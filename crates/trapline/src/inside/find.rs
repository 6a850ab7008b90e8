//! A name among what this process has mapped, as (file, offset).
//!
//! In: a file as users type it, a function's name or pattern. Out: the file's path and the function's offset. Does not: register.

use std::path::PathBuf;

use trapline_image::Pattern;
use trapline_target::Process;

use super::Error;
use super::state::lock;
use crate::files::Files;
use crate::modules::mapped;

/// Where a function lies: `file` is a path, a library's short name (`libc`) or the program's own name; `function` a name, `name+off`, a glob
/// or a regular expression, of which the first match counts.
///
/// # Errors
/// No such file is mapped, or no such function is in it.
pub fn find(file: &str, function: &str) -> Result<(PathBuf, u64), Error> {
    lock().looking(|process, files| find_in(process, files, file, function))
}

/// The same, for one who has the lock.
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
    let found = module.file.image.select(&pattern, module.basename());
    let found = found.ok().and_then(|found| found.first().copied());
    let found = found.ok_or_else(|| fail(format!("it has no function {function}")))?;
    let at = module.file.image.function(found.function).start + found.offset;
    let offset =
        module.file.image.offset_of(at).ok_or_else(|| fail(format!("{function} lies in no segment")))?;
    Ok((module.file.path.clone().into(), offset.0))
}
