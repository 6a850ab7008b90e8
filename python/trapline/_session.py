"""Sessions: which processes, and what is asked of them.

In: processes and probes, in the command's words. Out: results, or iterators of calls. Nothing is changed in a process
before a verb is called, and everything is taken out again when it returns. Does not: parse probes.
"""

from __future__ import annotations

import shlex
from typing import Any, Callable, Generic, Iterator, List, Optional, Sequence, TypeVar, Union

from ._results import Call, Counts, Latencies, ScriptResult, Stacks
from ._tool import OUTPUT, Interrupts, Object, Run, refusals

Result = TypeVar("Result")
Words = List[str]
Seconds = Optional[float]

#: How often a report says that the run goes on. The first one says that everything is in place.
_INTERVAL = "100ms"


class Running(Generic[Result]):
    """A run beside the program's own work. ``with`` begins when everything is in place, and ends the run::

        with session.counting("libc:malloc") as running:
            work()
        print(running.result["malloc"].hits)
    """

    def __init__(self, run: Run, make: Callable[[Sequence[Object]], Result]) -> None:
        self._run = run
        self._make = make
        self._objects: List[Object] = []
        self._coming = run.objects()
        self._result: Optional[Result] = None

    def __enter__(self) -> "Running[Result]":
        first = next(self._coming, None)
        if first is not None:
            self._objects.append(first)
        return self

    def __exit__(self, kind: Any, value: Any, trace: Any) -> None:
        if kind is not None and not issubclass(kind, KeyboardInterrupt):
            self._run.close()
            return
        self._run.stop()
        self.wait()

    def wait(self) -> Result:
        """Waits until the time is over, the target has ended, or Ctrl-C; then gives the result."""
        if self._result is None:
            Interrupts.add(self._run)
            try:
                self._objects.extend(self._coming)
            finally:
                Interrupts.remove(self._run)
            self._result = self._make(self._objects)
        return self._result

    @property
    def result(self) -> Result:
        """What the run gave. It is there once the run has ended."""
        if self._result is None:
            raise RuntimeError("the run goes on: its result is there behind the with block, or after wait()")
        return self._result


class Calls:
    """Calls, one after another, as they end. Ctrl-C ends the loop, and detaches; so does leaving a ``with`` block."""

    def __init__(self, run: Run) -> None:
        self._run = run
        self._coming = run.objects()
        self._reports: List[Object] = []
        self._first: List[Call] = []
        Interrupts.add(run)

    def __iter__(self) -> Iterator[Call]:
        return self

    def __next__(self) -> Call:
        if self._first:
            return self._first.pop()
        for one in self._coming:
            if one["type"] == "call":
                return Call.of(one)
            self._take(one)
        Interrupts.remove(self._run)
        raise StopIteration

    def _take(self, one: Object) -> None:
        if one["type"] == "count":
            self._reports = [*(report for report in self._reports if report["pid"] != one["pid"]), one]

    def __enter__(self) -> "Calls":
        """Returns when everything is in place: a report or a call says so."""
        for one in self._coming:
            if one["type"] == "call":
                self._first.append(Call.of(one))
            else:
                self._take(one)
            break
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()

    def close(self) -> None:
        """Detaches. What is still to come is thrown away."""
        Interrupts.remove(self._run)
        self._run.close()

    def stop(self) -> None:
        """Detaches. Calls that were recorded by then still come."""
        self._run.stop()

    @property
    def missed(self) -> int:
        """Records that found no room, as of the last report; exact at the end. A call's entry and its end are a record
        each, and a call is shown only with both."""
        return sum(one["missed"] for one in self._reports)

    @property
    def refused(self) -> list:
        """Sites that the probes mean and that are not probed."""
        return refusals(self._reports)

    def to_pandas(self) -> Any:
        """All calls that are still to come as a table, with a column for each argument."""
        import pandas

        rows = [
            {"time_ns": call.time_ns, "pid": call.pid, "tid": call.tid, "function": call.function, **call.args,
             "ret": call.ret, "duration_ns": call.duration_ns, "how": call.how}
            for call in self
        ]
        return pandas.DataFrame(rows)

    def __del__(self) -> None:
        # The command would end by itself once its reader is gone; this ends it now.
        Interrupts.remove(self._run)
        self._run.stop()


class Session:
    """Processes to trace. See :func:`trapline.attach`, :func:`trapline.run` and :func:`trapline.everything`."""

    def __init__(self, targets: Words, argv: Sequence[str] = ()) -> None:
        self._targets = targets
        self._argv = list(argv)

    def _start(self, words: Words, seconds: Seconds, more: Sequence[str] = (), interval: bool = True) -> Run:
        words = [*words, "-q", "--json", "-o", OUTPUT, *self._targets, *more]
        if interval:
            words += ["-i", _INTERVAL]
        if seconds is not None:
            words += ["-d", f"{seconds:.9f}"]
        if self._argv:
            words += ["--", *self._argv]
        return Run(words, launches=bool(self._argv))

    def counting(self, *probes: str, by: Optional[str] = None, seconds: Seconds = None,
                 options: Sequence[str] = ()) -> Running[Counts]:
        """Counts beside the program's own work; see :class:`Running`."""
        more = [*options, *(["--by", by] if by else [])]
        return Running(self._start(["count", *probes], seconds, more), Counts.of)

    def count(self, *probes: str, by: Optional[str] = None, seconds: Seconds = None,
              options: Sequence[str] = ()) -> Counts:
        """Hits of each function until ``seconds`` are over, the target ends, or Ctrl-C. ``by``: tid, comm or cpu."""
        return self.counting(*probes, by=by, seconds=seconds, options=options).wait()

    def timing(self, *functions: str, seconds: Seconds = None, options: Sequence[str] = ()) -> Running[Latencies]:
        """Takes durations beside the program's own work; see :class:`Running`."""
        return Running(self._start(["lat", *functions], seconds, list(options)), Latencies.of)

    def lat(self, *functions: str, seconds: Seconds = None, options: Sequence[str] = ()) -> Latencies:
        """Durations of calls, from entry to return, until ``seconds`` are over, the target ends, or Ctrl-C."""
        return self.timing(*functions, seconds=seconds, options=options).wait()

    def stacking(self, *probes: str, time: bool = False, where: Optional[str] = None, seconds: Seconds = None,
                 options: Sequence[str] = ()) -> Running[Stacks]:
        """Takes stacks beside the program's own work; see :class:`Running`."""
        more = [*options, *(["--time"] if time else []), *_where(where)]
        return Running(self._start(["stack", *probes], seconds, more), Stacks)

    def stack(self, *probes: str, time: bool = False, where: Optional[str] = None, seconds: Seconds = None,
              options: Sequence[str] = ()) -> Stacks:
        """Stacks at hits, added up; with ``time``, by how long the calls took."""
        return self.stacking(*probes, time=time, where=where, seconds=seconds, options=options).wait()

    def trace(self, *probes: str, where: Optional[str] = None, seconds: Seconds = None, most: Optional[int] = None,
              entry_only: bool = False, options: Sequence[str] = ()) -> Calls:
        """Each call, with arguments, value and duration, for which ``where`` holds; at most ``most`` of them."""
        more = [*options, *_where(where), *(["--entry-only"] if entry_only else [])]
        more += ["--max", str(most)] if most is not None else []
        return Calls(self._start(["trace", *probes], seconds, more))

    def run(self, script: str, *parameters: str, seconds: Seconds = None, options: Sequence[str] = ()) -> ScriptResult:
        """Runs a script in bpftrace's language until it ends, the target ends, or Ctrl-C.

        ``seconds`` adds a block that ends it then."""
        if seconds is not None:
            script += f"\ninterval:us:{max(int(seconds * 1e6), 1)} {{ exit(); }}"
        words = ["run", "-q", "-f", "json", "-o", OUTPUT, *options, "-e", script]
        if self._argv:
            words += ["-c", shlex.join(self._argv)]
        else:
            words += self._targets
        run = Run([*words, *parameters], launches=bool(self._argv), script=True)
        return Running(run, ScriptResult).wait()

    def events(self, verb: str, *words: str, seconds: Seconds = None, options: Sequence[str] = ()) -> Iterator[Object]:
        """The JSON objects of any other verb, such as ``watch``, ``hist``, ``graph`` or ``list``, as they come."""
        run = self._start([verb, *words], seconds, list(options), interval=False)
        try:
            yield from run.objects()
        finally:
            run.close()


def _where(condition: Optional[str]) -> Words:
    return ["--if", condition] if condition is not None else []


def attach(pid: Union[int, Sequence[int], None] = None, *, name: Optional[str] = None, follow: bool = False) -> Session:
    """Running processes: one or several pids, or all of a name. With ``follow`` also their children."""
    if (pid is None) == (name is None):
        raise ValueError("attach takes a pid or a name")
    pids = [pid] if isinstance(pid, int) else list(pid or [])
    targets = [word for one in pids for word in ("-p", str(one))]
    if name is not None:
        targets += ["-n", name]
    return Session([*targets, *(["-f"] if follow else [])])


def run(argv: Union[str, Sequence[str]], *, follow: bool = False) -> Session:
    """A command, from its start. Each verb starts it anew, and returns when it has ended."""
    words = shlex.split(argv) if isinstance(argv, str) else list(argv)
    if not words:
        raise ValueError("run takes a command")
    return Session(["-f"] if follow else [], words)


def everything() -> Session:
    """Every process that maps a file of the probes and may be traced."""
    return Session([])
