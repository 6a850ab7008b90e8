//! Probes that need no program, for `-l`.
//!
//! In: a pattern, or a program. Out: names of probes. Does not: look into files.

use crate::program::Program;

/// Probes that are always there.
const PROBES: [&str; 7] =
    ["begin", "end", "interval:hz:", "interval:ms:", "interval:s:", "interval:us:", "self:signal:SIGUSR1"];

/// The probes that a pattern with `*` and `?` matches.
pub fn matching(pattern: &str) -> Vec<&'static str> {
    let pattern = if pattern.is_empty() { "*" } else { pattern };
    PROBES.into_iter().filter(|probe| is_match(pattern.as_bytes(), probe.as_bytes())).collect()
}

/// The probes of a program, each once.
pub fn listed(program: &Program) -> Vec<String> {
    let mut all: Vec<String> = Vec::new();
    for probe in program.blocks.iter().flat_map(|block| &block.probes) {
        let name = match probe {
            crate::attach::Probe::Interval(_, text) => {
                format!("interval:{}:", text.rsplit_once(':').map_or("ns", |(unit, _)| unit))
            }
            other => other.to_string(),
        };
        if !all.contains(&name) {
            all.push(name);
        }
    }
    all
}

/// Whether a pattern matches all of a name.
pub fn is_match(mut pattern: &[u8], mut name: &[u8]) -> bool {
    // Where to go on when a star has to take one letter more.
    let mut retry: Option<(&[u8], &[u8])> = None;
    loop {
        match (pattern.split_first(), name.split_first()) {
            (None, None) => return true,
            (Some((b'*', rest)), _) => {
                retry = Some((rest, name));
                pattern = rest;
            }
            (Some((b'?', rest)), Some((_, after))) => (pattern, name) = (rest, after),
            (Some((a, rest)), Some((b, after))) if a == b => (pattern, name) = (rest, after),
            _ => match retry {
                Some((after_star, [_, more @ ..])) => {
                    retry = Some((after_star, more));
                    (pattern, name) = (after_star, more);
                }
                _ => return false,
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{is_match, matching};

    #[test]
    fn patterns_match_whole_names() {
        assert_eq!(matching("interval:*").len(), 4);
        assert_eq!(matching("be?in"), ["begin"]);
        assert!(matching("interval").is_empty());
        assert!(is_match(b"*a*b", b"xaxbab") && !is_match(b"*a*b", b"ba"));
        assert!(is_match(b"", b"") && is_match(b"**", b"") && !is_match(b"?", b""));
    }
}
