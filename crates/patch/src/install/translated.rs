//! Programs that execute a translation of another program's code, recognized by what they map.
//!
//! In: mappings. Out: the name of the program that translates. Such a program reads the translated code as
//! data, patches and all, and runs the result elsewhere. It would follow a jump into our code to memory that
//! it does not know, and would raise a guard's trap where no handler serves it.
//! Does not: examine what is translated.

use trapline_tracee::Mapping;

/// Instruction sets for which QEMU's user mode is built; its program is named after one.
const QEMU: [&str; 20] = [
    "aarch64",
    "aarch64_be",
    "alpha",
    "arm",
    "armeb",
    "hexagon",
    "hppa",
    "i386",
    "loongarch64",
    "m68k",
    "microblaze",
    "mips",
    "mips64",
    "mips64el",
    "mipsel",
    "ppc64",
    "ppc64le",
    "riscv64",
    "s390x",
    "x86_64",
];

/// Name of the program that translates code in a process that maps this, if there is one.
#[must_use]
pub fn translator(maps: &[Mapping]) -> Option<&'static str> {
    maps.iter().filter(|m| m.perms.exec || m.path.starts_with("/memfd:")).find_map(|m| by_path(&m.path))
}

fn by_path(path: &str) -> Option<&'static str> {
    let name = path.rsplit('/').next().unwrap_or(path);
    let starts = |start: &str| name.starts_with(start);
    let qemu = || {
        let set = name.strip_prefix("qemu-").map(|rest| rest.strip_suffix("-static").unwrap_or(rest));
        set.is_some_and(|set| QEMU.contains(&set))
    };
    let valgrind = || path.contains("/valgrind/") && name.ends_with("-linux");
    match name {
        _ if starts("vgpreload_") || valgrind() => Some("valgrind"),
        _ if qemu() => Some("QEMU's user mode"),
        _ if starts("libdynamorio.so") => Some("DynamoRIO"),
        "pinbin" => Some("Pin"),
        _ if starts("librrpreload") || starts("librrpage") || name == "rr_page_64" => Some("rr"),
        _ if starts("memfd:runsc-memory") => Some("gVisor"),
        "FEXInterpreter" | "FEXLoader" => Some("FEX"),
        "box64" => Some("Box64"),
        "rosetta" if path.contains("/rosetta/") => Some("Rosetta"),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::{by_path, translator};
    use trapline_tracee::Mapping;

    #[test]
    fn translators_are_recognized_by_name() {
        for (path, name) in [
            ("/usr/libexec/valgrind/memcheck-amd64-linux", Some("valgrind")),
            ("/usr/lib/valgrind/vgpreload_core-amd64-linux.so", Some("valgrind")),
            ("/usr/bin/qemu-x86_64-static", Some("QEMU's user mode")),
            ("/usr/bin/qemu-aarch64", Some("QEMU's user mode")),
            ("/usr/bin/qemu-system-x86_64", None),
            ("/usr/bin/qemu-img", None),
            ("/opt/dr/lib64/release/libdynamorio.so.10.0", Some("DynamoRIO")),
            ("/opt/pin/intel64/bin/pinbin", Some("Pin")),
            ("/usr/lib/rr/librrpreload.so", Some("rr")),
            ("/memfd:runsc-memory", Some("gVisor")),
            ("/home/x/valgrind/prog", None),
            ("/usr/lib/x86_64-linux-gnu/libc.so.6", None),
            ("[stack]", None),
        ] {
            assert_eq!(by_path(path), name, "{path}");
        }
    }

    /// A debugger that looks at QEMU maps its file, too.
    #[test]
    fn what_is_mapped_as_data_translates_nothing() {
        let map = |perms: &str| {
            let line = format!("1000-2000 {perms} 00000000 08:01 7 /usr/bin/qemu-x86_64");
            Mapping::parse(&line).expect("a mapping")
        };
        assert_eq!(translator(&[map("r--p")]), None);
        assert_eq!(translator(&[map("r--p"), map("r-xp")]), Some("QEMU's user mode"));
    }
}
