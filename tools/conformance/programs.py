"""Compiles the programs that bpftrace's runtime tests run, as its build does.

In: a folder with bpftrace's tests. Out: the programs there, and the names of those that could not be built.
"""

import concurrent.futures
import subprocess


def build(root):
    """Compiles the programs that tests run."""
    progs, libs = root / "testprogs", root / "testlibs"
    flags = ["-g", "-O0", "-fno-omit-frame-pointer", "-mno-omit-leaf-frame-pointer", f"-I{root / 'include'}", f"-I{libs}", "-w"]
    jobs = []
    for source in sorted(libs.glob("*.c")):
        jobs.append(["cc", *flags, "-shared", "-fPIC", "-o", str(libs / f"lib{source.stem}.so"), str(source)])
    for job in jobs:
        subprocess.run(job, capture_output=True)
    jobs = []
    for source in [*sorted(progs.glob("*.c")), *sorted(progs.glob("*.cpp"))]:
        compiler = "c++" if source.suffix == ".cpp" else "cc"
        mode = flags if source.stem != "uprobe_nofp" else [
            "-g", "-O1", "-fomit-frame-pointer", "-fno-optimize-sibling-calls", f"-I{root / 'include'}", "-w"
        ]
        for suffix, pie in (("", ["-no-pie"]), ("-pie", ["-fpie", "-pie"])):
            out = progs / f"{source.stem}{suffix}"
            linked = ["-fPIC", f"-L{libs}", "-lusdt_tp", f"-Wl,-rpath,{libs}"] if source.stem == "usdt_lib" else []
            jobs.append((out, [[compiler, *mode, *pie, "-o", str(out), str(source), *linked, "-pthread", "-ldl"]]))

    def one(job):
        out, ways = job
        return None if any(subprocess.run(way, capture_output=True).returncode == 0 for way in ways) else out.name

    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        lacking = [name for name in pool.map(one, jobs) if name]
    separate(progs)
    return lacking


def separate(progs):
    """Programs whose debug information lies in other files, a file of code alone, and an archive."""
    outside, usual, test = progs / "external_debug", progs / ".debug", progs / "uprobe_test"
    for folder in (outside / "dwo", outside / "dwp", usual):
        folder.mkdir(parents=True, exist_ok=True)
    split = ["cc", "-g", "-O0", "-gsplit-dwarf", f"-I{progs.parent / 'include'}", "-w", f"{test}.c", "-o"]
    other = progs / "uprobe_separate_debug"
    jobs = [
        ["objcopy", "--only-keep-debug", test, outside / "uprobe_test-stripped.debug"],
        ["objcopy", "--strip-debug", test, progs / "uprobe_test-stripped"],
        ["objcopy", "--only-keep-debug", other, usual / "uprobe_separate_debug-stripped.debug"],
        ["objcopy", "--strip-debug", other, progs / "uprobe_separate_debug-stripped"],
        ["objcopy", f"--add-gnu-debuglink={usual / 'uprobe_separate_debug-stripped.debug'}",
         progs / "uprobe_separate_debug-stripped"],
        [*split, outside / "dwo" / "uprobe_test-split"],
        [*split, outside / "dwp" / "uprobe_test-split"],
        ["llvm-dwp", "-e", outside / "dwp" / "uprobe_test-split", "-o", outside / "dwp" / "uprobe_test-split.dwp"],
        ["cc", "-c", progs / "false.c", "-o", progs / "false.o"],
        ["objcopy", "-S", "-j", ".text", "-O", "binary", progs / "false.o", progs / "false.bin"],
        ["zip", "-0", "-j", progs / "archive.zip", progs / "true"],
    ]
    for job in jobs:
        try:
            subprocess.run([str(word) for word in job], capture_output=True, cwd=progs)
        except FileNotFoundError:
            print(f"not there: {job[0]}", flush=True)
    for left in [*(outside / "dwp").glob("*.dwo"), progs / "false.o"]:
        left.unlink(missing_ok=True)
