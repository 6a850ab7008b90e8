//! On which CPUs, and by which copy routine of the kernel, a write by another process was proven to be seen
//! whole.
//!
//! In: /proc/cpuinfo and the kernel's release. Out: what may be written while threads run. The proof is a run
//! of 10⁹ toggles of running code without a call that ran half a write, by `write` for words and by `run` for
//! runs of them. `trapline-bench toggle --toggles 1000000000 --save tools/bench/runs` makes it, and it is
//! kept there. Elsewhere windows change in steps, through traps (`staged`). With TRAPLINE_UNPROVEN in the
//! environment nothing counts as proven: so what other CPUs get can be tried on any.

use std::fs;
use std::sync::OnceLock;

use crate::space::proven::{Proven, WORDS};

/// How the kernel copies into another process: `memcpy` in arch/x86/lib/memcpy_64.S, chosen at boot by the
/// CPU's features.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Copy {
    /// Loads and stores of eight bytes: from 6.4 on, without FSRM.
    Words,
    /// `rep movs`: with FSRM; before 6.4 also with ERMS or fast string operations.
    Strings,
}

const RUNS: Proven = Proven { words: true, runs: true };

/// Vendor, family, model with a run. Model −1: every model of the family that was seen shares its core.
const PROVEN: &[(&str, u32, i32, Copy, Proven)] = &[
    // Zen 5: the design's runs, 0.4 to 0.9 x 10^9 for each layout; to be repeated by `trapline-bench toggle`
    // on such a machine
    ("AuthenticAMD", 26, -1, Copy::Strings, WORDS),
    // Skylake-X, Cascade Lake: tools/bench/runs/2026-11-21-intel-85/endurance.md
    ("GenuineIntel", 6, 85, Copy::Words, RUNS),
];

/// What was proven for this machine.
pub(crate) fn proven() -> Proven {
    static ANSWER: OnceLock<Proven> = OnceLock::new();
    *ANSWER.get_or_init(|| {
        if std::env::var_os("TRAPLINE_UNPROVEN").is_some() {
            return Proven::default();
        }
        let read = |path| fs::read_to_string(path).unwrap_or_default();
        look_up(&read("/proc/cpuinfo"), &read("/proc/sys/kernel/osrelease"))
    })
}

fn look_up(cpuinfo: &str, release: &str) -> Proven {
    let field = |name: &str| {
        let line = cpuinfo.lines().find(|l| l.split(':').next().is_some_and(|key| key.trim() == name))?;
        Some(line.split_once(':')?.1.trim())
    };
    let number = |name| field(name).and_then(|v| v.parse::<u32>().ok());
    let (Some(vendor), Some(family), Some(model)) =
        (field("vendor_id"), number("cpu family"), number("model"))
    else {
        return Proven::default();
    };
    let copy = copy_of(field("flags").unwrap_or_default(), release);
    let same = |m: i32| m < 0 || u32::try_from(m) == Ok(model);
    let found = PROVEN.iter().find(|&&(v, f, m, c, _)| v == vendor && f == family && same(m) && c == copy);
    found.map_or_else(Proven::default, |row| row.4)
}

fn copy_of(flags: &str, release: &str) -> Copy {
    let mut numbers = release.split(|c: char| !c.is_ascii_digit()).map_while(|n| n.parse::<u32>().ok());
    let version = (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0));
    let has = |name| flags.split_whitespace().any(|flag| flag == name);
    let strings = has("fsrm") || version < (6, 4) && (has("erms") || has("rep_good"));
    if strings { Copy::Strings } else { Copy::Words }
}

#[cfg(test)]
mod tests {
    use super::{Proven, RUNS, WORDS, look_up};

    #[test]
    fn models_and_copies_are_distinguished() {
        let text = |vendor: &str, family: u32, model: u32, flags: &str| {
            format!(
                "processor\t: 0\nvendor_id\t: {vendor}\ncpu family\t: {family}\nmodel\t\t: {model}\nmodel name\t: x\nflags\t\t: fpu {flags}\n"
            )
        };
        let intel = |model, flags| text("GenuineIntel", 6, model, flags);
        assert_eq!(look_up(&intel(85, "erms rep_good"), "6.18.44-fc-v769"), RUNS);
        assert_eq!(look_up(&intel(85, "erms rep_good"), "6.4.0"), RUNS);
        let none = Proven::default();
        assert_eq!(look_up(&intel(85, "erms rep_good"), "6.1.0-28-amd64"), none, "copied by rep movsb there");
        assert_eq!(look_up(&intel(85, "erms fsrm"), "6.18.0"), none);
        assert_eq!(look_up(&intel(86, "erms rep_good"), "6.18.0"), none);
        assert_eq!(look_up(&text("AuthenticAMD", 26, 2, "fsrm erms"), "6.18.0"), WORDS);
        assert_eq!(look_up(&text("AuthenticAMD", 26, 2, "erms"), "6.18.0"), none);
        assert_eq!(look_up(&text("AuthenticAMD", 25, 2, "fsrm"), "6.18.0"), none);
        assert_eq!(look_up("no such thing", "6.18"), none);
    }
}
