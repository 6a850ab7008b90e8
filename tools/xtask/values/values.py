# Stops once at the first instruction of each function, and writes what its arguments are, a line of JSON each.
#
# In: VALUES_FUNCTIONS, a file with a line `ADDRESS NAME` for each function; VALUES_OUT; VALUES_GATE. Out: lines
# `{"at": ADDRESS, "tid": THREAD, "args": [[NAME, VALUE], ...]}`. A value that gdb does not have is null. Does not: judge.
import json
import os

import gdb

DEEPEST = 10


def converted(value, deep=0):
    """A value as JSON: numbers, [kind, ...] for everything else."""
    try:
        kind = value.type.strip_typedefs()
        code = kind.code
        if value.is_optimized_out or deep > DEEPEST:
            return None
        if deep == 0:
            # What a reference leads to, and what is passed in memory, is shown by its elements.
            is_reference = code in (gdb.TYPE_CODE_REF, gdb.TYPE_CODE_RVALUE_REF)
            held = elements(value.referenced_value() if is_reference else value)
            if held is not None:
                return held
        if code in (gdb.TYPE_CODE_STRUCT, gdb.TYPE_CODE_UNION):
            if kind.name in ("&str", "&[u8]"):
                return counted(int(value["data_ptr"]), int(value["length"]), ("data_ptr", "length"))
            # Go's strings, whatever their type is called.
            if [field.name for field in kind.fields()] == ["str", "len"]:
                return counted(int(value["str"]), int(value["len"]), ("str", "len"))
            if kind.name == "[]uint8":
                parts = {"cap": int(value["cap"])}
                return counted(int(value["array"]), int(value["len"]), ("array", "len"), parts)
            members = []
            for field in kind.fields():
                if not hasattr(field, "bitpos"):
                    continue
                name = "<%s>" % field.name if field.is_base_class else (field.name or "")
                members.append([name, converted(value[field], deep + 1)])
            return ["record", members]
        if code == gdb.TYPE_CODE_ARRAY:
            if kind.is_vector:
                return None
            first, last = kind.range()
            element = kind.target().strip_typedefs()
            if element.code == gdb.TYPE_CODE_INT and element.sizeof == 1 and element.name == "char":
                raw = bytes(int(value[n]) & 0xFF for n in range(first, last + 1))
                return ["text", raw.split(b"\0")[0].decode("utf-8", "replace")]
            return ["list", [converted(value[n], deep + 1) for n in range(first, last + 1)]]
        if code == gdb.TYPE_CODE_PTR:
            pointer = int(value) & (2**64 - 1)
            target = kind.target().strip_typedefs()
            text = None
            if target.sizeof == 1 and target.unqualified().name == "char":
                text = read(pointer)
            return ["pointer", pointer, text]
        if code in (gdb.TYPE_CODE_REF, gdb.TYPE_CODE_RVALUE_REF):
            return ["pointer", int(value.referenced_value().address) & (2**64 - 1), None]
        if code == gdb.TYPE_CODE_FLT:
            return ["float", repr(float(value))] if kind.sizeof <= 8 else None
        if code in (gdb.TYPE_CODE_INT, gdb.TYPE_CODE_CHAR, gdb.TYPE_CODE_BOOL, gdb.TYPE_CODE_ENUM):
            return ["number", str(int(value))]
        return None
    except (gdb.error, gdb.MemoryError, RuntimeError, ValueError, OverflowError):
        return None


def elements(value):
    """A string or vector of C++'s library by its elements; None of anything else."""
    kind = value.type.strip_typedefs()
    name = kind.unqualified().name or ""
    if kind.code != gdb.TYPE_CODE_STRUCT:
        return None
    if name.startswith("std::__cxx11::basic_string<char,"):
        return counted(int(value["_M_dataplus"]["_M_p"]), int(value["_M_string_length"]), ("address", "length"))
    if name.startswith("std::basic_string_view<char,"):
        return counted(int(value["_M_str"]), int(value["_M_len"]), ("address", "length"))
    if name.startswith("std::vector<") and not name.startswith("std::vector<bool"):
        start, finish = value["_M_impl"]["_M_start"], value["_M_impl"]["_M_finish"]
        count = int(finish - start)
        if 0 < start.type.target().sizeof <= 64:
            shown = min(count, 64 // start.type.target().sizeof)
            return ["elements", count, [converted(start[nth], 1) for nth in range(shown)]]
    return None


def counted(pointer, length, names, parts=None):
    """The first 64 bytes of a text that ends by its length, and its parts, which are shown where it is within others."""
    raw = bytes(gdb.selected_inferior().read_memory(pointer, min(length, 64))) if length else b""
    return ["text", raw.decode("utf-8", "replace"), {names[0]: pointer, names[1]: length, **(parts or {})}]


def read(pointer):
    """The first bytes of a text, up to its end or to 64; None if there are none."""
    whole = b""
    while len(whole) < 64:
        try:
            byte = bytes(gdb.selected_inferior().read_memory(pointer + len(whole), 1))
        except gdb.error:
            break
        if byte == b"\0":
            return whole.decode("utf-8", "replace")
        whole += byte
    return whole.decode("utf-8", "replace") if whole else None


def is_packed(of):
    """Whether the parts of a value fill it: Go's notes of what lies in registers leave padding out, so that gdb takes
    what follows it from other bytes."""
    of = of.strip_typedefs()
    if of.code != gdb.TYPE_CODE_STRUCT:
        return True
    fields = of.fields()
    return sum(field.type.sizeof for field in fields) == of.sizeof and all(is_packed(field.type) for field in fields)


def is_early(name, value):
    """Whether gdb looks for it in the function's own frame, which is not made yet."""
    if value.address is None:
        return False
    # clang's functions without frame pointers: relative to a stack pointer that is lower only later.
    if "frame base reg $rsp" in gdb.execute("info address " + name, to_string=True):
        return True
    below = int(gdb.parse_and_eval("(unsigned long)$sp")) - int(value.address)
    return -8 < below < 1 << 20


def arguments():
    frame = gdb.newest_frame()
    while frame.type() == gdb.INLINE_FRAME:
        frame = frame.older()
    try:
        block = frame.block()
    except RuntimeError:
        return None
    while block is not None and block.function is None:
        block = block.superblock
    if block is None:
        return None
    found = []
    for symbol in block:
        if symbol.is_argument:
            try:
                value = frame.read_var(symbol, block)
                is_known = not is_early(symbol.name, value) and (frame.language() != "go" or is_packed(value.type))
                found.append([symbol.name, converted(value) if is_known else None])
            except (gdb.error, ValueError, RuntimeError):
                found.append([symbol.name, None])
    return found


for setting in (
    "pagination off",
    "confirm off",
    "breakpoint always-inserted on",
    "print elements 0",
    "max-value-size unlimited",
    "detach-on-fork on",
    "follow-fork-mode parent",
):
    gdb.execute("set " + setting)
for signal in ("SIGSEGV", "SIGBUS", "SIGPIPE", "SIGUSR1", "SIGUSR2", "SIGALRM", "SIGCHLD", "SIGTERM", "SIGINT", "SIGURG"):
    gdb.execute("handle %s nostop noprint pass" % signal, to_string=True)

points = {}
with open(os.environ["VALUES_FUNCTIONS"]) as functions:
    for line in functions:
        at = int(line.split()[0], 16)
        points[at] = gdb.Breakpoint("*%#x" % at, internal=True)
        points[at].silent = True
ended = []
gdb.events.exited.connect(lambda event: ended.append(event))
open(os.environ["VALUES_GATE"] + ".go", "w").close()
with open(os.environ["VALUES_OUT"], "w") as out:
    while not ended:
        try:
            gdb.execute("continue", to_string=True)
        except gdb.error as error:
            out.write(json.dumps({"error": str(error)}) + "\n")
            break
        if ended:
            break
        at = gdb.newest_frame().pc()
        point = points.pop(at, None)
        if point is None:
            continue
        tid = gdb.selected_thread().ptid[1]
        out.write(json.dumps({"at": at, "tid": tid, "args": arguments()}) + "\n")
        out.flush()
        point.delete()
