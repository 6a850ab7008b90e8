//! Registers by the names that scripts have for them: those of the kernel's `pt_regs`, as bpftrace has them.
//!
//! In: such names. Out: the processor's own names, if records can hold the register. Does not: read registers.

use trapline::beyond;

/// Names on any processor: `ax` and `r8` on x86-64, `r0` to `r30` on arm64.
const NAMED: [&str; 8] = ["ax", "bx", "cx", "dx", "si", "di", "bp", "sp"];
/// The address of the probed instruction: it is the same at each hit, so no record holds it.
pub(super) const PLACE: [&str; 2] = ["ip", "pc"];
/// Registers with numbers, of which a processor has some.
const NUMBERED: u8 = 31;

/// All names that this processor has.
pub(super) fn names() -> Vec<String> {
    let numbered = (0..NUMBERED).map(|nth| format!("r{nth}"));
    let all = NAMED.iter().map(|name| (*name).to_owned()).chain(numbered);
    let own = all.filter(|name| engine_name(name).is_some());
    own.chain(PLACE.map(str::to_owned)).collect()
}

/// The processor's name: `rax`, `r8`, `x8`, `sp`.
pub(super) fn engine_name(name: &str) -> Option<String> {
    let numbered = name.strip_prefix('r').map(|nth| format!("x{nth}"));
    let all = [Some(format!("r{name}")), Some(name.to_owned()), numbered];
    all.into_iter().flatten().find(|name| beyond::register(name).is_some())
}

#[cfg(test)]
mod tests {
    use super::{engine_name, names};

    #[test]
    fn registers_are_named_as_the_kernel_does() {
        let own = |name| engine_name(name);
        let expected: &[(&str, &str)] = match names().contains(&"ax".to_owned()) {
            true => &[("ax", "rax"), ("sp", "rsp"), ("r8", "r8")],
            false => &[("r0", "x0"), ("r30", "x30"), ("sp", "sp")],
        };
        for (name, processor) in expected {
            assert_eq!(own(name).as_deref(), Some(*processor), "{name}");
            assert!(names().contains(&(*name).to_owned()), "{name}");
        }
        assert_eq!([own("xyz"), own(""), own("r31")], [None, None, None]);
    }
}
