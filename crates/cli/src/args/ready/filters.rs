//! The calls that `trace` shows: `--if`, `--tid`, `--comm`, `--sample`. Each probe's filter can use the names
//! of its own signature.
//!
//! In: what was typed. Out: one [`Filter`] for each probe, or what is wrong. Does not: decide where a filter
//! runs.

use trapline::ProbeSpec;
use trapline::calls::OPERANDS;
use trapline::filter::{Filter, Int, Known, Symbol, constants, parse_with};
use trapline::probes::ProbeKind;

use super::error::UsageError;
use super::fields::Fields;
use crate::args::command::FilterOptions;
use crate::args::command::types::{ArgumentPlace, Parameter, Signature, Type};
use crate::args::typed::TypedFilter;

/// Converts what was typed. Names of threads are an option of their own.
pub(super) fn options(typed: TypedFilter, comms: Vec<String>) -> Result<FilterOptions, UsageError> {
    let TypedFilter { condition, tids, sample: share } = typed;
    Ok(FilterOptions { condition, tids, comms, sample: share.as_deref().map(sample).transpose()? })
}

/// Parses `1/100` and returns the 100.
fn sample(text: &str) -> Result<u32, UsageError> {
    let number = text.trim().strip_prefix("1/").and_then(|number| number.parse().ok());
    let in_reach = number.filter(|&number| (1..=1 << 30).contains(&number));
    in_reach.ok_or_else(|| UsageError::Sample(text.to_owned()))
}

/// One filter for each probe; empty if nothing is filtered.
pub(crate) fn filters(
    probes: &[(ProbeSpec, Option<Signature>)],
    returns: bool,
    filter_options: &FilterOptions,
    fields: &[Fields<'_>],
) -> Result<Vec<Filter>, UsageError> {
    let reads = fields.iter().any(|fields| !fields.reads().is_empty());
    let kept = |signature: Option<&Signature>| signature.map_or_else(Vec::new, |one| one.kept.clone());
    let keeps = probes.iter().any(|(_, signature)| !kept(signature.as_ref()).is_empty());
    if filter_options.is_nothing() && !reads && !keeps {
        return Ok(Vec::new());
    }
    let FilterOptions { condition, tids, comms, sample } = filter_options;
    let threads: Vec<String> = tids.iter().map(|tid| format!("tid == {tid}")).collect();
    let one = |((probe, signature), fields): (&(ProbeSpec, Option<Signature>), &Fields<'_>)| {
        let symbols = symbols(probe, signature.as_ref(), returns);
        let wrong = |why| UsageError::Filter { probe: probe.text.clone(), why };
        let mut filter = Filter::default().named(comms.clone());
        if !threads.is_empty() {
            filter = filter.condition(&threads.join(" || "), &symbols).map_err(wrong)?;
        }
        if let Some(condition) = condition {
            let path = |path: &str| fields.symbol(path);
            filter = filter.tree(parse_with(condition, &symbols, &path).map_err(wrong)?);
        }
        let filter = filter.sample(sample.unwrap_or(1)).reads(fields.reads());
        Ok(filter.keeps(kept(signature.as_ref())))
    };
    probes.iter().zip(fields).map(one).collect()
}

/// The names that a condition on this probe may use; those of its signature come first.
pub(super) fn symbols(
    probe: &ProbeSpec,
    signature: Option<&Signature>,
    returns: bool,
) -> Vec<(String, Symbol)> {
    let noted = signature.and_then(|signature| signature.noted.as_ref());
    // Registers do not hold the function's arguments there. A line may begin where a function does.
    let inside = probe.is_inside() && noted.is_none_or(|noted| noted.is_inside());
    let (mut symbols, mut constants) = (Vec::new(), constants());
    let mut add = |name: &str, known| symbols.push((name.to_owned(), Symbol::Known(known)));
    let is_mark = probe.kind == ProbeKind::Usdt;
    if !inside || noted.is_some() {
        let parameters = signature.map_or(&[][..], |signature| &signature.parameters);
        // Those in memory are fields, by their names.
        let is_field = |one: &&Parameter| matches!(one.place, ArgumentPlace::Field(_));
        let named = parameters.iter().filter(|one| !one.name.is_empty() && (inside || !is_field(one)));
        named.filter_map(|one| Some((one, one.known()?))).for_each(|(one, known)| add(&one.name, known));
        let enumerations = parameters.iter().map(|parameter| &parameter.shown);
        for shown in enumerations.chain(signature.and_then(|signature| signature.value.as_ref())) {
            if let Type::Enum(of) = shown {
                constants.extend(of.names.iter().filter_map(|(name, value)| {
                    Some((name.clone(), Symbol::Constant(i64::try_from(*value).ok()?)))
                }));
            }
        }
        if inside {
            add("tid", Known::Thread);
            symbols.extend(constants);
            return symbols;
        }
        // An argument of a USDT probe is what its note or the signature says.
        let unnamed = |index: u8| match parameters.get(usize::from(index)).filter(|_| is_mark) {
            Some(Parameter { shown: Type::Float(float), .. }) => Known::FloatArgument(index, *float),
            one => Known::Argument(index, one.and_then(|one| one.shown.int()).unwrap_or(Int::U64)),
        };
        let numbered = if is_mark { OPERANDS as u8 } else { 6 };
        (0..numbered).for_each(|index| add(&format!("arg{index}"), unnamed(index)));
        let value = signature.and_then(|signature| signature.value.as_ref());
        if returns && !is_mark {
            if let Some(Type::Float(float)) = value {
                add("ret", Known::FloatReturned(*float));
            } else if let Some(int) = value.map_or(Some(Int::U64), Type::int) {
                add("ret", Known::Returned(int));
            }
            add("dur", Known::Took);
        }
    }
    add("tid", Known::Thread);
    symbols.extend(constants);
    symbols
}

#[cfg(test)]
mod tests {
    use super::super::signature::split;
    use super::{Fields, FilterOptions, filters, sample};

    fn read(probe: &str, returns: bool, condition: &str) -> Result<(), String> {
        let (text, signature) = split(probe).expect("a signature");
        let probes = [(text.parse().expect("a probe"), signature)];
        let filter_options =
            FilterOptions { condition: Some(condition.to_owned()), ..FilterOptions::default() };
        let fields: Vec<Fields<'_>> = probes.iter().map(|(_, one)| Fields::of(one.as_ref())).collect();
        filters(&probes, returns, &filter_options, &fields).map(drop).map_err(|error| error.to_string())
    }

    #[test]
    fn a_probe_has_the_names_of_its_signature() {
        let open = "libc:openat(int fd, ptr path, int flags) -> int";
        assert_eq!(read(open, true, "flags & O_CREAT && ret < 0 && dur > 1ms"), Ok(()));
        assert_eq!(read("libc:close", true, "arg0 > 2 && ret != 0"), Ok(()));
        for (probe, returns, condition, why) in [
            (open, true, "flag & O_CREAT", "did you mean `flags`?"),
            (open, false, "ret < 0", "`ret` is unknown"),
            ("libc:free(ptr p) -> void", true, "ret == 0", "`ret` is unknown"),
            ("usdt:libc:setjmp", true, "ret == 0", "`ret` is unknown"),
            ("libc:close+4", true, "arg0 == 0", "`arg0` is unknown"),
        ] {
            let error = read(probe, returns, condition).expect_err(condition);
            assert!(error.contains(why) && error.contains('^'), "{condition}: {error}");
        }
    }

    #[test]
    fn a_sample_is_a_share() {
        assert_eq!(sample("1/100").ok(), Some(100));
        for text in ["", "100", "2/3", "1/0", "1/99999999999", "1/-1", "1/x"] {
            assert!(sample(text).is_err(), "{text}");
        }
    }
}
