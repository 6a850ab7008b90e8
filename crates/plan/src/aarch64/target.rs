//! Which programs are supported here.
//!
//! In: the first bytes of a program's ELF file (for a process: of the file that `/proc/PID/exe` names). Out:
//! nothing, or the reason by name.
//! Does not: read files.
//! x86-64 has one kind of program, so nothing has to be distinguished there.

/// Why a program is not supported.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum Unsupported {
    /// It has no ELF header.
    #[error("not an ELF file")]
    NotElf,
    /// It runs on the same kernel and processor, in another instruction set.
    #[error("AArch32: a program of 32 bits; its instructions are not those of A64")]
    AArch32,
    /// A64's instructions are little-endian there too, but literals, pointers and counters are not.
    #[error("a big-endian program")]
    BigEndian,
    /// `ELFCLASS32` for this processor (ILP32).
    #[error("ILP32: A64 with addresses of 32 bits")]
    Ilp32,
    /// It is for another processor.
    #[error("for another processor (ELF machine {machine})")]
    Machine {
        /// The header's `e_machine`.
        machine: u16,
    },
}

const ARM: u16 = 40;
const AARCH64: u16 = 183;

/// Whether a program can be probed here if its file begins with `header`.
///
/// # Errors
/// Why it cannot.
pub fn supported(header: &[u8]) -> Result<(), Unsupported> {
    let Some([0x7F, b'E', b'L', b'F', class, data, .., low, high]) = header.first_chunk::<20>() else {
        return Err(Unsupported::NotElf);
    };
    let big = *data == 2;
    let machine = if big { u16::from_be_bytes([*low, *high]) } else { u16::from_le_bytes([*low, *high]) };
    match (machine, class) {
        (ARM, _) => Err(Unsupported::AArch32),
        (AARCH64, _) if big => Err(Unsupported::BigEndian),
        (AARCH64, 2) => Ok(()),
        (AARCH64, _) => Err(Unsupported::Ilp32),
        _ => Err(Unsupported::Machine { machine }),
    }
}

#[cfg(test)]
mod tests {
    use super::{Unsupported, supported};

    fn header(class: u8, data: u8, machine: [u8; 2]) -> [u8; 20] {
        let mut header = [0; 20];
        header[..6].copy_from_slice(&[0x7F, b'E', b'L', b'F', class, data]);
        header[18..].copy_from_slice(&machine);
        header
    }

    #[test]
    fn what_is_not_understood_is_named() {
        for (class, data, machine, expected) in [
            (2, 1, [183, 0], Ok(())),
            (1, 1, [40, 0], Err(Unsupported::AArch32)),
            (1, 2, [0, 40], Err(Unsupported::AArch32)),
            (2, 2, [0, 183], Err(Unsupported::BigEndian)),
            (1, 1, [183, 0], Err(Unsupported::Ilp32)),
            (2, 1, [62, 0], Err(Unsupported::Machine { machine: 62 })),
        ] {
            assert_eq!(supported(&header(class, data, machine)), expected, "{class} {data} {machine:?}");
        }
        assert_eq!(supported(b"#!/bin/sh\n"), Err(Unsupported::NotElf));
        assert_eq!(supported(&header(2, 1, [183, 0])[..19]), Err(Unsupported::NotElf));
    }
}
