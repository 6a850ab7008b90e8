"""The command: where it is, and one run of it.

In: words of the command line. Out: the JSON objects that it writes, one after another; an exception when it fails.
A thread reads them, so an interrupt of the main thread loses none. Waiting releases the GIL. Does not: know what the
objects mean.
"""

from __future__ import annotations

import json
import os
import queue
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
from typing import Any, Dict, IO, Iterator, List, Optional, Sequence

from ._errors import NothingProbed, Refusal, ScriptError, TraplineError, UsageError

Object = Dict[str, Any]

#: Bytes that are read at once, and blocks of lines that wait for the program. When both are full the command waits, and
#: then drops records and counts them; the target never waits.
_AT_ONCE = 1 << 16
_BLOCKS = 256


def command() -> str:
    """The path of the command: ``TRAPLINE``, else the one in this package, else the one in ``PATH``."""
    named = os.environ.get("TRAPLINE")
    if named:
        return named
    own = os.path.join(os.path.dirname(__file__), "bin", "trapline")
    if os.path.exists(own):
        return own
    found = shutil.which("trapline")
    if found is None:
        raise TraplineError("no command trapline: install a wheel that holds it, or set TRAPLINE to its path")
    return found


def main() -> None:
    """The command itself, as ``pip`` puts it into a folder of programs."""
    path = command()
    os.execv(path, [path, *sys.argv[1:]])


class Run:
    """A run of the command that writes JSON objects."""

    def __init__(self, words: Sequence[str], *, launches: bool, script: bool = False) -> None:
        self._script = script
        self._error: Optional[Object] = None
        self._any = False
        self._lines: "queue.Queue[Optional[List[bytes]]]" = queue.Queue(_BLOCKS)
        self.stopped = False
        self._closed = False
        # A command that is launched keeps both standard streams; else what is said there belongs to an exception.
        self._said: Optional[IO[bytes]] = None if launches else tempfile.TemporaryFile()
        reading, writing = os.pipe()
        try:
            self._process = subprocess.Popen(
                [command(), *(word.replace(OUTPUT, f"/proc/self/fd/{writing}") for word in words)],
                stdin=None if launches else subprocess.DEVNULL,
                stdout=None if launches else subprocess.DEVNULL,
                stderr=self._said,
                pass_fds=[writing],
            )
        except BaseException:
            os.close(reading)
            raise
        finally:
            os.close(writing)
        self._thread = threading.Thread(target=self._read, args=(reading,), name="trapline", daemon=True)
        self._thread.start()

    def _read(self, file: int) -> None:
        rest = b""
        with open(file, "rb", buffering=0) as pipe:
            while True:
                block = pipe.read(_AT_ONCE)
                if not block:
                    break
                *lines, rest = (rest + block).split(b"\n")
                if lines and not self._closed:
                    self._lines.put(lines)
        self._lines.put(None)

    def objects(self) -> Iterator[Object]:
        """All objects, until the run ends."""
        while True:
            lines = self._lines.get()
            if lines is None:
                break
            for line in lines:
                one: Object = json.loads(line)
                self._any = True
                if one.get("type") == "error":
                    self._error = one
                else:
                    yield one
        self._end()

    def stop(self) -> None:
        """Asks the command to detach and to report. Its last objects still come."""
        if not self.stopped:
            self.stopped = True
            # The terminal's Ctrl-C may have come to it too; the same signal twice would mean: do not wait for a command.
            self._process.send_signal(signal.SIGTERM)

    def close(self) -> None:
        """Ends the run, whatever is left to read."""
        if self._closed:
            return
        self._closed = True
        self.stop()
        while self._lines.get() is not None:
            pass
        self._thread.join()
        self._process.wait()
        if self._said is not None:
            self._said.close()

    def _end(self) -> None:
        self._closed = True
        self._thread.join()
        status = self._process.wait()
        said = self._text()
        if status != 0:
            self._fail(status, said)

    def _text(self) -> str:
        if self._said is None:
            return ""
        with self._said as file:
            file.seek(0)
            return file.read().decode("utf-8", "replace").strip()

    def _fail(self, status: int, said: str) -> None:
        if self._error is not None:
            message = str(self._error["message"])
        elif self._said is None and self._any:
            # The launched command's own status is none of ours.
            return
        else:
            message = said or f"trapline ended with status {status}; what it said is on standard error"
        if message.startswith("trapline: "):
            message = message[len("trapline: "):]
        if self._script:
            raise ScriptError(message, status)
        if status == 3:
            refused = (self._error or {}).get("refused", [])
            raise NothingProbed(message, [Refusal(**_known(one)) for one in refused])
        raise (UsageError if status == 2 else TraplineError)(message, status)


class Interrupts:
    """While a run is in here, Ctrl-C ends it in good order instead of raising KeyboardInterrupt: it detaches, and what it
    had recorded still comes. Ctrl-C once more raises. A handler that is not Python's own is left alone."""

    _runs: List[Run] = []
    _lock = threading.Lock()

    @classmethod
    def add(cls, run: Run) -> None:
        with cls._lock:
            is_main = threading.current_thread() is threading.main_thread()
            if is_main and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
                signal.signal(signal.SIGINT, cls._stop)
            cls._runs.append(run)

    @classmethod
    def remove(cls, run: Run) -> None:
        with cls._lock:
            if run in cls._runs:
                cls._runs.remove(run)
            is_main = threading.current_thread() is threading.main_thread()
            if not cls._runs and is_main and signal.getsignal(signal.SIGINT) == cls._stop:
                signal.signal(signal.SIGINT, signal.default_int_handler)

    @classmethod
    def _stop(cls, number: int, frame: Any) -> None:
        # Without the lock: the code that this interrupts may hold it.
        going = [run for run in list(cls._runs) if not run.stopped]
        if not going:
            signal.default_int_handler(number, frame)
        for run in going:
            run.stop()


#: Stands in words for the file that objects are written to.
OUTPUT = "\0output\0"


def _known(one: Object) -> Dict[str, str]:
    return {name: str(one.get(name, "")) for name in ("probe", "reason", "kind")}


def refusals(objects: Sequence[Object]) -> List[Refusal]:
    """The refusals in reports, each once."""
    all_of_them = [Refusal(**_known(one)) for report in objects for one in report.get("refused", [])]
    return list(dict.fromkeys(all_of_them))
