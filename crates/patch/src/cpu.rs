//! On which CPUs an eight-byte write by another process was proven to be seen whole.
//!
//! In: /proc/cpuinfo. Out: yes or no. The proof is a run of 10⁹ toggles of running code without a call that ran half a
//! write (`trapline-bench toggle --toggles 1000000000 --save tools/bench/runs`), kept there; on other models all threads are
//! stopped while code changes.

use std::fs;
use std::sync::OnceLock;

/// (vendor, family, model) with a run. Model -1: every model of the family that was seen shares its core.
const PROVEN: &[(&str, u32, i32)] = &[
    // Zen 5: the design's runs, 0.4 to 0.9 x 10^9 for each layout; to be repeated by `trapline-bench toggle` on such a machine
    ("AuthenticAMD", 26, -1),
    // Skylake-X, Cascade Lake: tools/bench/runs/2026-11-21-intel-85/endurance.md
    ("GenuineIntel", 6, 85),
];

/// Whether this machine's CPU is among them.
pub(crate) fn proven() -> bool {
    static ANSWER: OnceLock<bool> = OnceLock::new();
    *ANSWER.get_or_init(|| fs::read_to_string("/proc/cpuinfo").is_ok_and(|text| is_proven(&text)))
}

fn is_proven(cpuinfo: &str) -> bool {
    let field = |name: &str| {
        let line = cpuinfo.lines().find(|l| l.split(':').next().is_some_and(|key| key.trim() == name))?;
        Some(line.split_once(':')?.1.trim())
    };
    let number = |name| field(name).and_then(|v| v.parse::<u32>().ok());
    let (Some(vendor), Some(family), Some(model)) =
        (field("vendor_id"), number("cpu family"), number("model"))
    else {
        return false;
    };
    PROVEN
        .iter()
        .any(|&(v, f, m)| v == vendor && f == family && u32::try_from(m).is_ok_and(|m| m == model) | (m < 0))
}

#[cfg(test)]
mod tests {
    use super::is_proven;

    #[test]
    fn models_are_told_apart() {
        let text = |vendor: &str, family: u32, model: u32| {
            format!(
                "processor\t: 0\nvendor_id\t: {vendor}\ncpu family\t: {family}\nmodel\t\t: {model}\nmodel name\t: x\n"
            )
        };
        assert!(is_proven(&text("GenuineIntel", 6, 85)));
        assert!(!is_proven(&text("GenuineIntel", 6, 86)));
        assert!(is_proven(&text("AuthenticAMD", 26, 2)));
        assert!(!is_proven(&text("AuthenticAMD", 25, 2)));
        assert!(!is_proven("no such thing"));
    }
}
