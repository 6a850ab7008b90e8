"""Count, time and record the functions of running programs, from outside, without traps.

>>> import trapline
>>> s = trapline.attach(pid=4711)
>>> s.count("libc:malloc*", seconds=1)
>>> for call in s.trace("libc:openat(int fd, str path) -> int", where="ret < 0"):
...     print(call.args.path, call.ret)
>>> s.lat("handle", seconds=1).percentile(99)
>>> s.stack("libc:malloc", seconds=1).flamegraph("malloc.svg")
>>> s.run("uprobe:libc:malloc { @[arg0] = count(); }", seconds=1).maps["@"]
"""

from ._errors import NothingProbed, Refusal, ScriptError, TraplineError, UsageError
from ._histogram import Histogram
from ._results import (
    Arguments, Call, Count, Counts, Frame, Latencies, Latency, ScriptResult, Share, Site, Stack, Stacks,
)
from ._session import Calls, Running, Session, attach, everything, run
from ._tool import command

__all__ = [
    "Arguments", "Call", "Calls", "Count", "Counts", "Frame", "Histogram", "Latencies", "Latency", "NothingProbed",
    "Refusal", "Running", "ScriptError", "ScriptResult", "Session", "Share", "Site", "Stack", "Stacks",
    "TraplineError", "UsageError", "attach", "command", "everything", "run",
]
