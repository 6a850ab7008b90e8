#!/usr/bin/env python3
"""Runs bpftrace's own runtime tests with `trapline run`, and counts what passes.

In: a checkout (or a bare repository) of bpftrace, the trapline binary. Out: a table by class and suite, and a line for each test
that fails, with what was missing. bpftrace's tests stay in that checkout: nothing of them is in this project.

    git clone https://github.com/bpftrace/bpftrace
    sudo tools/conformance/bpftrace_tests.py bpftrace target/release/trapline [--filter REGEX] [--details FILE]

Classes, by the probes that a test names: *language* (begin, end, interval and others of the tracer's own alone), *user*
(uprobe, uretprobe, usdt, watchpoint, and none of the kernel), *kernel*, and *options* (no probe at all).
All of it runs in mount and PID namespaces of its own, so that no other process of the machine is probed.
A test that asks for what this machine lacks is skipped, as bpftrace's runner does; so are tests of the kernel.
"""

import argparse
import concurrent.futures
import json
import os
import pathlib
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time

from programs import build

USER = r"(?:uprobe|uretprobe|usdt|watchpoint|asyncwatchpoint|uprobe_multi|u|ur|U|w|aw)"
KERNEL = (
    r"(?:kprobe|kretprobe|k|kr|tracepoint|t|rawtracepoint|rt|fentry|fexit|kfunc|kretfunc|f|fr|iter|it|profile|p|software|s|"
    r"hardware|h)"
)
OWN = r"(?:begin|end|BEGIN|END|interval|i|self|bench|test)"
ATTACH = 10
WORD_OF_READY = "__BPFTRACE_NOTIFY_PROBES_ATTACHED\n"


class Test:
    """One test: its directives, each with all of its values."""

    def __init__(self, suite, lines):
        self.suite, self.fields, last = suite, [], ""
        for line in lines:
            if last and line[: len(last) + 1].isspace():
                self.fields[-1][1] += "\n" + line[len(last) + 1 :].rstrip("\n")
                continue
            name, _, value = line.strip().partition(" ")
            self.fields.append([name, value.strip()])
            last = name
        self.name = f"{suite}.{self.one('NAME')}"

    def all(self, name):
        return [value for field, value in self.fields if field == name]

    def one(self, name, default=""):
        return (self.all(name) or [default])[0]

    @property
    def text(self):
        return self.one("PROG") or self.one("RUN")

    def probes(self, root):
        """What it runs, with the scripts that it names."""
        text = self.text
        for path in re.findall(r"[\w./-]+\.bt", text):
            script = root / path
            text += script.read_text(errors="replace") if script.is_file() else ""
        return text

    def sort(self, root):
        text = self.probes(root)

        def names(which):
            return re.search(rf"(?:^|[\s;}}'\",]){which}:", text) is not None

        own = re.search(rf"(?:^|[\s;}}'\",]){OWN}\b\s*[:{{/,]", text)
        if names(KERNEL):
            return "kernel"
        if names(USER):
            return "user"
        return "language" if own else "options"

    def is_of_here(self):
        here = {os.uname().machine.lower(), "le"}
        named = [arch.strip() for value in self.all("ARCH") for arch in value.split("|")]
        wanted = {arch for arch in named if not arch.startswith("!")}
        unwanted = {arch[1:] for arch in named if arch.startswith("!")}
        return not (wanted and not wanted & here) and not unwanted & here


def read(root):
    for path in sorted((root / "runtime").iterdir()):
        if not path.is_file() or path.name.startswith("."):
            continue
        block = []
        for line in [*path.read_text().splitlines(keepends=True), "\n"]:
            if line.startswith("#"):
                continue
            if line != "\n":
                block.append(line)
            elif block:
                yield Test(path.name, block)
                block = []


def expected(test, output, root):
    """The expectations that the output does not meet."""
    failed = []
    for kind, value in test.fields:
        if not kind.startswith("EXPECT"):
            continue
        none = kind.endswith("_NONE")
        if kind in ("EXPECT", "EXPECT_NONE"):
            met = re.search(rf"^\s*{re.escape(value)}\s*$", output, re.M) is not None
        elif kind in ("EXPECT_REGEX", "EXPECT_REGEX_NONE"):
            met = re.search(value, output, re.M) is not None
        elif kind == "EXPECT_FILE":
            wanted = (root / value).read_text().strip()
            moment = test.one("LOCALIZE_TIMESTAMPS")
            met = output.strip() == (time.strftime(wanted, time.localtime(int(moment))) if moment else wanted)
        else:
            met = same_json(output.strip(), (root / value).read_text(), value.endswith("ndjson"))
        if met == none:
            failed.append(f"{kind} {value}")
    return failed


def same_json(output, wanted, lines):
    try:
        if not lines:
            return json.loads(output) == json.loads(wanted)
        return [json.loads(line) for line in output.splitlines()] == [
            json.loads(line) for line in wanted.strip().splitlines()
        ]
    except ValueError:
        return False


def children(pid):
    try:
        tasks = pathlib.Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    except OSError:
        return []
    return [int(child) for child in tasks]


def begin(command, **more):
    return subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=True,
        text=True,
        errors="backslashreplace",
        **more,
    )


def stop(process, how=signal.SIGKILL):
    if process is not None and process.poll() is None:
        try:
            os.killpg(process.pid, how)
        except ProcessLookupError:
            pass


class Run:
    """One test that runs."""

    def __init__(self, test, root, tracer):
        self.test, self.root, self.tracer, self.beside, self.output = test, root, tracer, [], ""

    def command(self, prefix, pid):
        test = self.test
        if test.one("PROG"):
            plain = next((kind for kind, _ in test.fields if kind.startswith("EXPECT")), "")
            form = "-q -f json" if plain == "EXPECT_JSON" else ""
            whole = f"{self.tracer} {form} -e {shlex.quote(test.one('PROG'))}"
        else:
            whole = test.one("RUN").replace("{{BPFTRACE}}", str(self.tracer))
        return prefix + whole.replace("{{BEFORE_PID}}", str(pid))

    def before(self):
        """Starts what is to run before; the words to enter its namespace, and its number."""
        prefix, pid, test = "", 0, self.test
        for nth, command in enumerate(test.all("BEFORE")):
            words = command.split()
            if "NEW_PIDNS" in dict(test.fields) and nth == 0:
                words = ["unshare", "--fork", "--pid", "--mount-proc", "-r", "--kill-child", "--", *words]
            elif prefix:
                words = [*prefix.split(), *[str(self.root / word) if "/" in word else word for word in words]]
            process = begin(words, cwd=self.root)
            self.beside.append(process)
            end = time.monotonic() + 5
            while not (found := children(process.pid)) and process.poll() is None and time.monotonic() < end:
                if words[0] not in ("unshare", "nsenter") and not prefix:
                    break
                time.sleep(0.02)
            time.sleep(0.15)
            if "NEW_PIDNS" in dict(test.fields) and nth == 0 and found:
                prefix = f"nsenter -p -m -t {found[0]} "
            pid = pid or self.number(process, command)
        return prefix, pid

    @staticmethod
    def number(process, command):
        """The process that a command's last word names, which may be a child of the one that was started."""
        name = os.path.basename(command.split()[-1])[:15].encode()
        queue = [process.pid]
        while queue:
            pid = queue.pop(0)
            try:
                if pathlib.Path(f"/proc/{pid}/comm").read_bytes().strip() == name:
                    return pid
            except OSError:
                pass
            queue += children(pid)
        return process.pid

    def run(self):
        try:
            return self.tried()
        finally:
            for process in self.beside:
                stop(process)
                process.wait()
                process.stdout.close()
            if cleanup := self.test.one("CLEANUP"):
                subprocess.run(cleanup, shell=True, cwd=self.root, capture_output=True, timeout=60)

    def tried(self):
        test, exact = self.test, any(kind in ("EXPECT_FILE", "EXPECT_JSON") for kind, _ in self.test.fields)
        if setup := test.one("SETUP"):
            if subprocess.run(setup, shell=True, cwd=self.root, capture_output=True, timeout=60).returncode:
                return "failed", "its SETUP"
        prefix, pid = self.before()
        env = {"PATH": os.environ["PATH"], "test": test.one("NAME"), "__BPFTRACE_NOTIFY_PROBES_ATTACHED": "1"}
        env.update(pair.split("=", 1) for value in test.all("ENV") for pair in value.split())
        process = begin(self.command(prefix, pid), shell=True, cwd=self.root, env=env)
        self.beside.append(process)
        patience = int(test.one("TIMEOUT", "5"))
        late, attached = False, False

        limit = time.monotonic() + ATTACH
        os.set_blocking(process.stdout.fileno(), False)
        rest = b""
        while True:
            try:
                piece = os.read(process.stdout.fileno(), 65536)
            except BlockingIOError:
                piece = None
            if piece == b"":
                break
            if piece:
                rest += piece
                text = rest.decode(errors="backslashreplace")
                if not attached and WORD_OF_READY in text:
                    attached = True
                    limit = time.monotonic() + patience
                    if exact:
                        rest = text.split(WORD_OF_READY, 1)[1].encode()
                    if after := test.one("AFTER"):
                        self.beside.append(begin(f"{prefix}{after}", shell=True, cwd=self.root))
                continue
            if time.monotonic() > limit:
                if late:
                    stop(process)
                    break
                late = True
                limit = time.monotonic() + 2
                stop(process, signal.SIGTERM)
            time.sleep(0.01)
        process.wait()
        self.output = rest.decode(errors="backslashreplace")
        failed = expected(test, self.output, self.root)
        if failed:
            return "failed", ("too late; " if late else "") + "; ".join(failed)
        wanted = int(test.one("RETURN_CODE", "0"))
        if late:
            return "passed", ""
        if "WILL_FAIL" in dict(test.fields):
            return ("passed", "") if process.returncode else ("failed", "it did not fail")
        if process.returncode != wanted:
            return "failed", f"status {process.returncode}, not {wanted}"
        return "passed", ""


def checkout(source, to):
    git = ["git", "-C", str(source)]
    archive = subprocess.run([*git, "archive", "HEAD", "tests"], capture_output=True, check=True).stdout
    subprocess.run(["tar", "-x", "-C", str(to), "--strip-components=1"], input=archive, check=True)
    return subprocess.run([*git, "rev-parse", "HEAD"], capture_output=True, text=True).stdout.strip()


def apart():
    """The same command in namespaces of its own."""
    if os.environ.get("TRAPLINE_APART") == "1":
        subprocess.run(["mount", "-t", "tracefs", "tracefs", "/sys/kernel/tracing"], capture_output=True)
        return
    env = {**os.environ, "TRAPLINE_APART": "1"}
    words = ["unshare", "-m", "-p", "-f", "--mount-proc", "--kill-child", sys.executable, *sys.argv]
    os.execvpe("unshare", words, env)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("bpftrace", type=pathlib.Path, help="checkout of bpftrace")
    parser.add_argument("trapline", type=pathlib.Path, help="binary to test")
    parser.add_argument("--filter", default=".", help="names of tests, as suite.name")
    parser.add_argument("--class", dest="sort", default="language,user", help="classes that are run")
    parser.add_argument("--details", type=pathlib.Path, help="file for what failing tests wrote")
    args = parser.parse_args()
    apart()
    root = pathlib.Path(tempfile.mkdtemp(prefix="trapline_bpftrace_"))
    try:
        return run_all(args, root)
    finally:
        shutil.rmtree(root, ignore_errors=True)


def run_all(args, root):
    revision = checkout(args.bpftrace, root)
    lacking = build(root)
    # Tests find the tracer by its name.
    named = root / "bin" / "bpftrace"
    named.parent.mkdir()
    shutil.copy(args.trapline, named)
    tracer = root / "tracer"
    tracer.write_text(f'#!/bin/sh\nexec {named} run "$@"\n')
    tracer.chmod(0o755)
    tests = [test for test in read(root) if test.is_of_here()]
    chosen = [
        (test.sort(root), test) for test in tests if re.search(args.filter, test.name)
    ]
    print(f"bpftrace {revision}; {len(tests)} tests; not built: {' '.join(lacking) or 'none'}", flush=True)

    def one(sort_and_test):
        sort, test = sort_and_test
        for need in test.all("REQUIRES"):
            if subprocess.run(need, shell=True, cwd=root, capture_output=True).returncode:
                return sort, test, "skipped", f"needs: {need}", ""
        run = Run(test, root, tracer)
        try:
            result, why = run.run()
        except Exception as error:  # A test that cannot be run has failed.
            result, why = "failed", f"{type(error).__name__}: {error}"
        return sort, test, result, why, run.output

    results = []
    wanted = args.sort.split(",")
    of = {name: [pair for pair in chosen if pair[0] == name] for name in wanted}
    # Blocks of the tracer's own disturb nobody; programs that are probed might.
    for name in wanted:
        with concurrent.futures.ThreadPoolExecutor(3 if name == "language" else 1) as pool:
            results += pool.map(one, of[name])
    return tell(args, wanted, results)


def tell(args, wanted, results):
    details = args.details.open("w") if args.details else None
    for sort, test, result, why, output in results:
        if result == "failed":
            print(f"{sort} {test.name}: {why.splitlines()[0][:160] if why else ''}")
            if details:
                details.write(f"== {test.name}\n{test.text}\n-- {why}\n-- output\n{output}\n\n")
    for sort in wanted:
        ran = [result for kind, _, result, _, _ in results if kind == sort]
        passed, skipped = ran.count("passed"), ran.count("skipped")
        print(f"{sort}: {passed} of {len(ran) - skipped} passed, {skipped} skipped, {len(ran)} in all")
    return 0


if __name__ == "__main__":
    sys.exit(main())
