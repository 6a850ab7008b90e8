"""What verbs give: hits, durations, calls, stacks, what a script wrote.

In: the command's objects. Out: typed values. Invariant: what was missed, refused or left out is an attribute of the
result. Does not: run anything, except to draw a flame graph.
"""

from __future__ import annotations

import os
import subprocess
import tempfile
from dataclasses import dataclass, field
from html import escape
from typing import Any, Dict, Generic, Iterator, List, Mapping, Optional, Sequence, Tuple, TypeVar, Union, overload

from ._errors import Refusal, TraplineError
from ._histogram import Histogram
from ._tool import Object, command, refusals


def _name(probe: str) -> str:
    """The last part of a probe: the function, or PROVIDER:NAME of a USDT probe."""
    parts = probe.split(":", 2)
    return parts[2] if len(parts) == 3 else probe


@dataclass(frozen=True)
class Site:
    """A probed place in one process."""

    probe: str
    """``uprobe:PATH:FUNCTION``."""
    function: str
    file: str
    offset: int
    """Bytes from the file's start."""
    tactic: str
    """``jump``, ``short``, ``pun``, ``trap`` or ``kernel``."""
    pid: int
    aliases: Tuple[str, ...] = field(repr=False)
    """The same place by its other names."""

    def is_named(self, name: str) -> bool:
        return name in (self.function, self.probe) or any(name in (one, _name(one)) for one in self.aliases)


def _site(one: Object, pid: int) -> Dict[str, Any]:
    return {
        "probe": one["probe"],
        "function": _name(one["probe"]),
        "file": one["file"],
        "offset": one["offset"],
        "tactic": one["tactic"],
        "pid": pid,
        "aliases": tuple(one["aliases"]),
    }


@dataclass(frozen=True)
class Share:
    """The hits of one thread, thread name or CPU."""

    hits: int
    tid: Optional[int] = None
    comm: Optional[str] = None
    cpu: Optional[int] = None
    threads: Optional[int] = None


@dataclass(frozen=True)
class Count(Site):
    """Hits of a site since attach."""

    hits: int = 0
    shares: Tuple[Share, ...] = field(default=(), repr=False)
    """With ``by``: the hits of each thread, name or CPU."""


@dataclass(frozen=True)
class Latency(Site):
    """Durations of a function's calls, in nanoseconds."""

    calls: int = 0
    total_ns: int = 0
    min_ns: int = 0
    max_ns: int = 0
    in_flight: int = 0
    """Calls that had begun and not ended."""
    unpaired: int = 0
    """Calls that ran at the attach."""
    unreturned: int = 0
    """Calls without an end: left by longjmp or an exception."""
    tail_exits: int = 0
    """Calls that were timed until they went on as another function."""
    histogram: Histogram = field(default_factory=lambda: Histogram([]), repr=False)

    def percentile(self, percent: float) -> int:
        return self.histogram.percentile(percent)


SiteT = TypeVar("SiteT", bound=Site)


class Report(Sequence[SiteT], Generic[SiteT]):
    """Rows for sites, the most first. ``report["malloc"]`` is the row of that name."""

    _columns: Tuple[str, ...] = ()

    def __init__(self, rows: Sequence[SiteT], objects: Sequence[Object]) -> None:
        self._rows = list(rows)
        self.refused: List[Refusal] = refusals(objects)
        """Sites that the probes mean and that were not probed."""
        self.missed = sum(one.get("missed", 0) for one in objects)
        """Hits that could not be recorded."""
        self.seconds: float = max((one.get("seconds", 0.0) for one in objects), default=0.0)

    def __len__(self) -> int:
        return len(self._rows)

    @overload
    def __getitem__(self, at: Union[int, str]) -> SiteT: ...
    @overload
    def __getitem__(self, at: slice) -> Sequence[SiteT]: ...
    def __getitem__(self, at: Any) -> Any:
        if not isinstance(at, str):
            return self._rows[at]
        found = [row for row in self._rows if row.is_named(at)]
        if len(found) != 1:
            names = ", ".join(f"{row.probe} of process {row.pid}" for row in found or self._rows[:10])
            what = f"no site is named {at!r}" if not found else f"{len(found)} sites are named {at!r}"
            raise KeyError(f"{what}; there are {names or 'none'}")
        return found[0]

    def to_pandas(self) -> Any:
        """A table with a row for each site."""
        import pandas

        rows = [[getattr(row, column) for column in self._columns] for row in self]
        return pandas.DataFrame(rows, columns=list(self._columns))

    def _repr_html_(self) -> str:
        head = "".join(f"<th>{escape(column)}</th>" for column in self._columns)
        rows = [[str(getattr(row, column)) for column in self._columns] for row in self]
        body = "".join(f"<tr>{''.join(f'<td>{escape(cell)}</td>' for cell in row)}</tr>" for row in rows)
        left_out = f"<p>{len(self.refused)} refused, {self.missed} hits missed</p>"
        return f"<table><tr>{head}</tr>{body}</table>{left_out}"

    def __repr__(self) -> str:
        return f"<{type(self).__name__}: {len(self)} sites, {len(self.refused)} refused, {self.missed} missed>"


class Counts(Report[Count]):
    """What ``count`` gives."""

    _columns = ("hits", "function", "file", "pid", "tactic")

    @classmethod
    def of(cls, objects: Sequence[Object]) -> "Counts":
        last = _last(objects, "count")
        rows = [
            Count(**_site(one, report["pid"]), hits=one["hits"], shares=tuple(_shares(one)))
            for report in last
            for one in report["probes"]
        ]
        return cls(sorted(rows, key=lambda row: -row.hits), last)

    @property
    def total(self) -> int:
        """Hits of all sites."""
        return sum(row.hits for row in self)


def _shares(one: Object) -> Iterator[Share]:
    for cpu, hits in enumerate(one.get("cpus", [])):
        yield Share(hits=hits, cpu=cpu)
    for share in one.get("by", []):
        yield Share(share["hits"], share.get("tid"), share.get("comm"), None, share.get("threads"))


class Latencies(Report[Latency]):
    """What ``lat`` gives."""

    _columns = ("calls", "min_ns", "max_ns", "total_ns", "function", "file", "pid")

    @classmethod
    def of(cls, objects: Sequence[Object]) -> "Latencies":
        last = _last(objects, "lat")
        numbers = ("calls", "total_ns", "min_ns", "max_ns", "in_flight", "unpaired", "unreturned", "tail_exits")
        rows = [
            Latency(
                **_site(one, report["pid"]),
                **{name: one[name] for name in numbers},
                histogram=Histogram(one["buckets_ns"], "ns", _name(one["probe"])),
            )
            for report in last
            for one in report["probes"]
        ]
        return cls(sorted(rows, key=lambda row: -row.total_ns), last)

    @property
    def histogram(self) -> Histogram:
        """All calls of all functions."""
        return sum((row.histogram for row in self), Histogram([], "ns"))

    def percentile(self, percent: float) -> int:
        """Nanoseconds that ``percent`` (0 to 100) of all calls did not exceed; off by at most 1/32."""
        return self.histogram.percentile(percent)

    def _repr_html_(self) -> str:
        return super()._repr_html_() + self.histogram._repr_html_()


def _last(objects: Sequence[Object], kind: str) -> List[Object]:
    """Of each process the last report."""
    return list({one["pid"]: one for one in objects if one["type"] == kind}.values())


class Arguments(Mapping[str, Any]):
    """A call's arguments: ``call.args["path"]`` or ``call.args.path``. ``None``: the value is not known."""

    __slots__ = ("_values",)

    def __init__(self, values: Dict[str, Any]) -> None:
        self._values = values

    def __getitem__(self, name: str) -> Any:
        return self._values[name]

    def __getattr__(self, name: str) -> Any:
        try:
            return self._values[name]
        except KeyError:
            raise AttributeError(f"no argument {name!r}; there are {', '.join(self._values) or 'none'}") from None

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def __repr__(self) -> str:
        return ", ".join(f"{name}={value!r}" for name, value in self._values.items())


@dataclass(frozen=True)
class Call:
    """One call, as ``trace`` saw it."""

    function: str
    args: Arguments
    ret: Any
    """What it returned; ``None`` if it did not return, or returns nothing."""
    duration_ns: Optional[int]
    """How long it took; ``None`` if its end was not seen."""
    time_ns: int
    """When it was entered, since the attach."""
    pid: int
    tid: int
    how: str
    """``returned``, ``tail`` (it went on as another function), ``entered`` or ``unfinished``."""
    probe: str

    @classmethod
    def of(cls, one: Object) -> "Call":
        args = Arguments({arg["name"]: arg["value"] for arg in one["args"]})
        return cls(
            _name(one["probe"]), args, one.get("ret"), one.get("dur_ns"), one["time_ns"], one["pid"], one["tid"],
            one["how"], one["probe"],
        )


@dataclass(frozen=True)
class Frame:
    """One function of a stack."""

    function: str
    module: Optional[str] = None
    file: Optional[str] = None
    line: Optional[int] = None
    inlined: bool = False


@dataclass(frozen=True)
class Stack:
    """Equal stacks: how often, or how long, and their frames, the probed function first."""

    hits: int
    time_ns: Optional[int]
    frames: Tuple[Frame, ...]
    pid: int
    probe: str
    cut: bool
    """Whether the stack goes on."""

    @classmethod
    def of(cls, one: Object) -> "Stack":
        frames = tuple(frame for place in one["frames"] for frame in _frames(place))
        return cls(one["hits"], one.get("time_ns"), frames, one["pid"], one["probe"], one["cut"])


def _frames(place: Object) -> Iterator[Frame]:
    for one in place["functions"]:
        yield Frame(one["name"], place.get("module"), one.get("file"), one.get("line"), one.get("inlined", False))
    if not place["functions"]:
        yield Frame(f"[{place['address']:#x}]", place.get("module"))


class Stacks(Sequence[Stack]):
    """What ``stack`` gives: the most frequent stack first, or with ``time`` the one that took most."""

    def __init__(self, objects: Sequence[Object]) -> None:
        self._stacks = [Stack.of(one) for one in objects if one["type"] == "stack"]
        reports = _last(objects, "count")
        self.refused = refusals(reports)
        self.missed = sum(one.get("missed", 0) for one in reports)

    def __len__(self) -> int:
        return len(self._stacks)

    def __getitem__(self, at: Any) -> Any:
        return self._stacks[at]

    @property
    def _timed(self) -> bool:
        return any(stack.time_ns is not None for stack in self)

    def folded(self) -> str:
        """A line for each stack, the outermost function first, as flamegraph.pl reads it."""
        lines = []
        for stack in self:
            names = [frame.function.replace(";", ":").replace("\n", " ") for frame in reversed(stack.frames)]
            lines.append(f"{';'.join(names)} {stack.time_ns if self._timed else stack.hits}\n")
        return "".join(lines)

    def svg(self, title: str = "stacks") -> str:
        """A flame graph, as the command draws it."""
        with tempfile.TemporaryDirectory() as folder:
            lines = os.path.join(folder, title.replace("/", "_") or "stacks")
            with open(lines, "w", encoding="utf-8") as file:
                file.write(self.folded())
            words = [command(), "dump", "--flame", "--unit", "ns" if self._timed else "calls", lines]
            done = subprocess.run(words, capture_output=True)
        if done.returncode != 0:
            raise TraplineError(done.stderr.decode("utf-8", "replace").strip(), done.returncode)
        return done.stdout.decode()

    def flamegraph(self, path: Union[str, "os.PathLike[str]"], title: str = "stacks") -> None:
        """Writes a flame graph (SVG)."""
        with open(path, "w", encoding="utf-8") as file:
            file.write(self.svg(title))

    def _repr_html_(self) -> str:
        return self.svg()

    def __repr__(self) -> str:
        return f"<Stacks: {len(self)} stacks, {sum(stack.hits for stack in self)} hits>"


class ScriptResult:
    """What a script wrote: its maps at the end, and its output."""

    def __init__(self, objects: Sequence[Object]) -> None:
        self.objects = list(objects)
        """All objects, as bpftrace writes them."""
        self.maps: Dict[str, Any] = {}
        """The value of each map when it was last printed. Histograms of maps without keys are :class:`Histogram`."""
        output = []
        for one in objects:
            data = one.get("data")
            if one["type"] == "printf" or one["type"] == "time":
                output.append(str(data))
            elif isinstance(data, dict) and one["type"] in ("map", "hist", "stats"):
                self.maps.update((name, _value(value, name)) for name, value in data.items())
        self.output = "".join(output)
        """What ``printf`` wrote."""

    def __repr__(self) -> str:
        return f"<ScriptResult: maps {', '.join(self.maps) or 'none'}>"


def _value(value: Any, name: str) -> Any:
    if isinstance(value, list) and value and all(isinstance(row, dict) and "count" in row for row in value):
        # A row of a script has its greatest value; the edge behind it is one more.
        rows = [(row.get("min", 0), row.get("max", row.get("min", 0)) + 1, row["count"]) for row in value]
        return Histogram([row for row in rows if row[2]], "", name)
    return value
