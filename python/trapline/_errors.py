"""Exceptions. Each one carries what the command said, and its exit status."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Sequence, Tuple


@dataclass(frozen=True)
class Refusal:
    """A site that a probe means and that is not probed."""

    probe: str
    """``uprobe:PATH:FUNCTION``."""
    reason: str
    """Why, with address, bytes and rule."""
    kind: str
    """A stable word for the kind of reason, such as ``too-short``."""


class TraplineError(Exception):
    """A run failed. ``status`` is the command's exit status."""

    def __init__(self, message: str, status: int = 1) -> None:
        super().__init__(message)
        self.message = message
        self.status = status


class UsageError(TraplineError, ValueError):
    """A probe, a condition or an option is wrong. Nothing was touched."""


class NothingProbed(TraplineError):
    """No function matched, or all that matched were refused; ``refusals`` holds the latter."""

    def __init__(self, message: str, refusals: Sequence[Refusal] = ()) -> None:
        super().__init__(message, 3)
        self.refusals: Tuple[Refusal, ...] = tuple(refusals)


class ScriptError(TraplineError):
    """A script is wrong, or names what cannot be probed."""
