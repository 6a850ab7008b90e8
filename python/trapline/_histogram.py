"""Histograms: what ``lat`` and ``hist`` give.

In: rows (low, high, count). Out: numbers, views for numpy and pandas, a picture for a notebook. The rows lie in one
array, which the views show without a copy. Invariant: no row is empty, and rows ascend. Does not: round.
"""

from __future__ import annotations

import math
from array import array
from html import escape
from typing import Any, Iterable, Iterator, List, Tuple

Row = Tuple[float, float, float]

_WIDTH = 3


class Histogram:
    """Rows of ``(low, high, count)``, half open. ``unit`` is what low and high are in."""

    def __init__(self, rows: Iterable[Row], unit: str = "ns", title: str = "") -> None:
        self._cells = array("d", (float(cell) for row in sorted(rows) for cell in row))
        self.unit = unit
        self.title = title

    def __len__(self) -> int:
        return len(self._cells) // _WIDTH

    def __iter__(self) -> Iterator[Tuple[float, float, int]]:
        cells = self._cells
        for at in range(0, len(cells), _WIDTH):
            yield cells[at], cells[at + 1], int(cells[at + 2])

    @property
    def total(self) -> int:
        """How many values it holds."""
        return sum(count for _, _, count in self)

    def percentile(self, percent: float) -> int:
        """What ``percent`` (0 to 100) of the values did not exceed: the middle of its row. 0 without values."""
        if not 0 <= percent <= 100:
            raise ValueError(f"a percentile lies between 0 and 100, not at {percent}")
        wanted, seen = max(math.ceil(self.total * percent / 100), 1), 0
        for low, high, count in self:
            seen += count
            if seen >= wanted:
                return math.floor(low / 2 + high / 2)
        return 0

    def __add__(self, other: "Histogram") -> "Histogram":
        """Both together. Rows of the same edges are added up."""
        sums: dict = {}
        for low, high, count in (*self, *other):
            sums[low, high] = sums.get((low, high), 0) + count
        return Histogram(((low, high, count) for (low, high), count in sums.items()), self.unit, self.title)

    def powers_of_two(self) -> List[Tuple[int, int, int]]:
        """Rows that double in width, for people; a row counts where its middle lies."""
        sums: dict = {}
        for low, high, count in self:
            exponent = max(math.frexp(low / 2 + high / 2)[1] - 1, 0)
            sums[exponent] = sums.get(exponent, 0) + count
        if not sums:
            return []
        span = range(min(sums), max(sums) + 1)
        return [(2**n if n else 0, 2 ** (n + 1), sums.get(n, 0)) for n in span]

    def to_numpy(self) -> Any:
        """An array with a row for each row and the columns low, high, count. It shows this object's own memory."""
        import numpy

        return numpy.frombuffer(self._cells, dtype=numpy.float64).reshape(-1, _WIDTH)

    def to_pandas(self) -> Any:
        """A table with the columns low, high, count, on the same memory."""
        import pandas

        return pandas.DataFrame(self.to_numpy(), columns=["low", "high", "count"], copy=False)

    def __repr__(self) -> str:
        return f"<Histogram of {self.total} values in {len(self)} rows, {self.unit}>"

    def _repr_html_(self) -> str:
        rows = self.powers_of_two()
        most = max((count for _, _, count in rows), default=0)
        lines = []
        for low, high, count in rows:
            bar = f'<div style="background:#4a7db5;height:0.9em;width:{100 * count / most if most else 0:.2f}%"></div>'
            label = f"[{short(low)}, {short(high)})"
            lines.append(
                f'<tr><td style="text-align:left">{label}</td><td>{count}</td><td style="width:24em">{bar}</td></tr>'
            )
        caption = escape(" ".join(part for part in (self.title, self.unit) if part))
        quarts = ", ".join(f"p{percent:g} = {self.percentile(percent)}" for percent in (50, 90, 99, 99.9))
        return f"<table><caption>{caption}</caption>{''.join(lines)}</table><p>{quarts}</p>"


def short(value: int) -> str:
    """A power of two in few letters: 4096 is 4K."""
    for shift, letter in ((40, "T"), (30, "G"), (20, "M"), (10, "K")):
        if value >= 1 << shift:
            return f"{value >> shift}{letter}"
    return str(value)
