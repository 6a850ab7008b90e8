//! Sites and their names: how a site is called in tables, and which probes named it.
//!
//! In: a site, and the probes that were typed. Out: a name; the probes that are meant. Does not: make names
//! safe for a terminal.

use std::borrow::Cow;

use trapline::{ProbeSpec, Site};

/// The label. A function's exits have the same one as its entry, so ` (return)` is added to it.
pub(crate) fn name(site: &Site) -> Cow<'_, str> {
    match site.probe.starts_with("uretprobe:") {
        true => format!("{} (return)", site.label).into(),
        false => site.label.as_str().into(),
    }
}

/// The specifications that found a site, with their numbers. Two files may have functions of one name. So
/// specifications that name the site's file win over those that name no file. Those win over the others:
/// their file may be another path to the site's.
pub(crate) fn asked_for<'a, 'b, T>(
    all: &'a [(ProbeSpec, T)],
    site: &'b Site,
) -> impl Iterator<Item = (usize, &'a (ProbeSpec, T))> + use<'a, 'b, T> {
    let best = all.iter().filter_map(|(spec, _)| nearness(spec, site)).max();
    all.iter().enumerate().filter(move |(_, (spec, _))| best.is_some() && nearness(spec, site) == best)
}

/// Whether a specification has a name of the site, and how certain it is that the site's file is meant: 2 if
/// it names that file, 1 if it names none, 0 otherwise.
pub(crate) fn nearness(spec: &ProbeSpec, site: &Site) -> Option<u8> {
    let mut names = [&site.probe, &site.label].into_iter().chain(&site.aliases);
    names.any(|name| spec.means(name)).then(|| {
        let Some(wanted) = spec.file.as_deref() else { return 1 };
        let own = site.probe.parse::<ProbeSpec>().ok().and_then(|probe| probe.file);
        let is_named = |path: &str| path == wanted || trapline::probes::is_short_name(path, wanted);
        2 * u8::from(own.iter().chain([&site.file]).any(|path| is_named(path)))
    })
}
