//! SIM-1: if memory faults, at the first access or at the second one, nothing has changed.

use trapline_insn::x86_64::simulate::{Fault, Memory, Size, Verdict, simulate, verdict};
use trapline_insn::x86_64::{Gpr, Immovable, Options, Regs};

/// Memory that grants `granted` accesses, then faults.
struct Failing {
    granted: usize,
    stores: usize,
}

impl Failing {
    fn access(&mut self, addr: u64) -> Result<u64, u64> {
        let granted = self.granted > 0;
        self.granted = self.granted.saturating_sub(1);
        if granted { Ok(0x1234_5678_9ABC_DEF0) } else { Err(addr) }
    }
}

impl Memory for Failing {
    fn load(&mut self, addr: u64, _: Size) -> Result<u64, u64> {
        self.access(addr)
    }
    fn store(&mut self, addr: u64, _: Size, _: u64) -> Result<(), u64> {
        self.access(addr)?;
        self.stores += 1;
        Ok(())
    }
}

/// Instructions, and their accesses in order: `l` for a load, `s` for a store.
const CASES: &[(&[u8], &str)] = &[
    (&[0x55], "s"),                         // push rbp
    (&[0x54], "s"),                         // push rsp
    (&[0xFF, 0x74, 0x24, 0x08], "ls"),      // push [rsp+8]
    (&[0x5D], "l"),                         // pop rbp
    (&[0x5C], "l"),                         // pop rsp
    (&[0x8F, 0x44, 0x24, 0x08], "ls"),      // pop [rsp+8]
    (&[0xC9], "l"),                         // leave
    (&[0x48, 0x8B, 0x00], "l"),             // mov rax, [rax]
    (&[0x48, 0x89, 0x5C, 0x24, 0x08], "s"), // mov [rsp+8], rbx
    (&[0x48, 0x0F, 0xBE, 0x07], "l"),       // movsx rax, byte [rdi]
    (&[0x48, 0x03, 0x07], "l"),             // add rax, [rdi]
    (&[0x83, 0x3F, 0x00], "l"),             // cmp dword [rdi], 0
    (&[0xFF, 0x25, 0, 0, 0, 0], "l"),       // jmp [rip]
    (&[0xFF, 0x15, 0, 0, 0, 0], "ls"),      // call [rip]
    (&[0xFF, 0xD0], "s"),                   // call rax
    (&[0xE8, 0, 0, 0, 0], "s"),             // call
    (&[0xC3], "l"),                         // ret
    (&[0xC2, 0x10, 0], "l"),                // ret 16
    (&[0x48, 0x83, 0xEC, 0x18], ""),        // sub rsp, 24
    (&[0xF3, 0x0F, 0x1E, 0xFA], ""),        // endbr64
];

#[test]
fn a_fault_changes_nothing() {
    let mut before = Regs { rip: 0x40_1000, rflags: 0x8D7, ..Regs::default() };
    Gpr::ALL.into_iter().for_each(|gpr| before.set(gpr, 0x7000 + 0x101 * gpr as u64));
    for &(bytes, accesses) in CASES {
        let Verdict::Simulate(op) = verdict(bytes, Options::default()) else { panic!("{bytes:02x?}") };
        for (granted, kind) in accesses.chars().enumerate() {
            let (mut regs, mut memory) = (before, Failing { granted, stores: 0 });
            let fault = simulate(&op, &mut regs, &mut memory).expect_err("a fault");
            assert_eq!(matches!(fault, Fault::Store { .. }), kind == 's', "{bytes:02x?}: {fault}");
            assert_eq!((regs, memory.stores), (before, 0), "{bytes:02x?}: {fault}");
        }
        let (mut regs, mut memory) = (before, Failing { granted: accesses.len(), stores: 0 });
        assert_eq!(simulate(&op, &mut regs, &mut memory), Ok(()), "{bytes:02x?}");
        assert_eq!(memory.granted, 0, "{bytes:02x?}: fewer accesses than the processor makes");
        assert_ne!(regs, before);
    }
}

#[test]
fn what_is_not_simulated_has_its_reason() {
    let refused = |bytes: &[u8], why| {
        assert_eq!(verdict(bytes, Options::default()), Verdict::Refuse(why), "{bytes:02x?}");
    };
    refused(&[], Immovable::Invalid);
    refused(&[0x06], Immovable::Invalid);
    refused(&[0x48, 0x8B], Immovable::Invalid);
    refused(&[0xCC], Immovable::Trap);
    refused(&[0x0F, 0x0B], Immovable::Trap);
    refused(&[0xF4], Immovable::Trap);
    refused(&[0x66, 0xE8, 0, 0, 0, 0], Immovable::OperandSize);
    refused(&[0x66, 0xFF, 0xD0], Immovable::OperandSize);
    refused(&[0x66, 0x67, 0xFF, 0x15, 0, 0, 0, 0], Immovable::OperandSize);
    refused(&[0x66, 0x67, 0x46, 0xFF, 0x25, 0, 0, 0, 0], Immovable::OperandSize);
    refused(&[0xC7, 0xF8, 0, 0, 0, 0], Immovable::Xbegin);
    refused(&[0xCB], Immovable::Far);
    let moved: [&[u8]; 9] = [
        &[0x48, 0x89, 0x84, 0x24, 0, 0xF0, 0xFF, 0xFF], // mov [rsp-4096], rax
        &[0x64, 0x48, 0x8B, 0x04, 0x25, 0x28, 0, 0, 0], // mov rax, fs:40
        &[0x0F, 0x05],                                  // syscall
        &[0xF0, 0x48, 0x0F, 0xB1, 0x17],                // lock cmpxchg [rdi], rdx
        &[0x01, 0x07],                                  // add [rdi], eax
        &[0x66, 0x50],                                  // push ax
        &[0x8C, 0xD8],                                  // mov eax, ds
        &[0xF3, 0x90],                                  // pause
        &[0xC5, 0xF8, 0x77],                            // vzeroupper
    ];
    for bytes in moved {
        assert_eq!(verdict(bytes, Options::default()), Verdict::OutOfLine, "{bytes:02x?}");
    }
    let guarded = Options { shadow_stack: true };
    assert_eq!(verdict(&[0xE8, 0, 0, 0, 0], guarded), Verdict::Refuse(Immovable::ShadowStack));
    assert_eq!(verdict(&[0xC3], guarded), Verdict::OutOfLine);
    assert!(matches!(verdict(&[0x55], guarded), Verdict::Simulate(_)));
}
