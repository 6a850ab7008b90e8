"""gdb walks through return addresses that Trapline replaced.

(gdb) source trapline_return_trampolines.py

For every program: a line `source /PATH/trapline_return_trampolines.py` in ~/.gdbinit. For one program, of every user: a copy named
/usr/share/gdb/auto-load/PATH/PROGRAM-gdb.py, where /PATH/PROGRAM is what runs (all links followed); gdb takes it by itself (`info auto-load python-scripts`).

Where `lat --ret=stack`, or a consumer of the process' own, puts the address of a return trampoline in the place of a return address, gdb has no
unwind information for it (the process' own unwinders were informed at run time). This finds the return trampolines by the control block
that Trapline keeps in the process. For a frame in one it reports what the entry of that one holds: where the call really returns to. Nothing is written.

A process that handles int3 itself (a probe of its own at a site that only takes a trap) may not survive a gdb that attaches at the moment of a
hit: gdb 13 takes the signal for a breakpoint of its own, and sets the instruction pointer back before it knows that the process has 64 bits.
"""

import struct

import gdb
from gdb.unwinder import Unwinder, register_unwinder

# crates/record/src/control.rs and trampolines.rs; a test compares them.
MAGIC = b"TRAPLINE"
TRAMPOLINES_CODE, TRAMPOLINES_TABLE, TRAMPOLINES_COUNT = 296, 304, 312
HINTS_LEN, CODE, ENTRY, REAL, CHAIN = 4096, 32, 64, 0, 16

# What gdb calls the processor: registers that a return trampoline leaves as they are, the stack pointer, the program counter, and the bits of an address: a return address may be signed above them.
X86_64 = ("rax rbx rcx rdx rsi rdi rbp r8 r9 r10 r11 r12 r13 r14 r15".split(), "rsp", "rip", 64)
AARCH64 = (["x%d" % n for n in range(31)], "sp", "pc", 48)
PROCESSORS = {"i386:x86-64": X86_64, "aarch64": AARCH64}


class FrameId:
    def __init__(self, sp, pc):
        self.sp, self.pc = sp, pc


def word(inferior, address):
    return struct.unpack("<Q", bytes(inferior.read_memory(address, 8)))[0]


def tables(inferior):
    """(first address of the code, how many, first entry) of all return trampolines of a process."""
    found = []
    with open("/proc/%d/maps" % inferior.pid) as maps:
        for line in maps:
            fields = line.split()
            if len(fields) < 6 or fields[5] != "/memfd:trapline" or fields[1][1] != "w" or int(fields[2], 16):
                continue
            block = int(fields[0].split("-")[0], 16)
            if bytes(inferior.read_memory(block, 8)) != MAGIC:
                continue
            code, table, count = (word(inferior, block + at) for at in (TRAMPOLINES_CODE, TRAMPOLINES_TABLE, TRAMPOLINES_COUNT))
            if count:
                found.append((code, count, table + (HINTS_LEN + count + 4095) // 4096 * 4096))
    return found


class ReturnTrampolines(Unwinder):
    def __init__(self):
        super().__init__("trapline-return-trampolines")

    def __call__(self, frame):
        inferior = gdb.selected_inferior()
        if not inferior.pid:
            return None
        processor = PROCESSORS.get(frame.architecture().name())
        if processor is None:
            return None
        registers, sp_name, pc_name, bits = processor
        pc = int(frame.read_register(pc_name)) & (1 << bits) - 1
        real = pc
        for code, count, entries in tables(inferior):
            for _ in range(CHAIN):
                if not code <= real < code + count * CODE:
                    break
                real = word(inferior, entries + (real - code) // CODE * ENTRY + REAL)
        if real == pc:
            return None
        pointer = frame.read_register(sp_name)
        info = frame.create_unwind_info(FrameId(pointer, frame.read_register(pc_name)))
        for name in registers:
            info.add_saved_register(name, frame.read_register(name))
        info.add_saved_register(sp_name, pointer)
        info.add_saved_register(pc_name, gdb.Value(real).cast(frame.read_register(registers[0]).type))
        return info


register_unwinder(None, ReturnTrampolines(), replace=True)
