"""What numpy, pandas and notebooks are shown; and that the types hold."""

import subprocess
import sys
from pathlib import Path

import pytest

import trapline

ROWS = [(0, 2, 1), (64, 128, 10), (128, 256, 5)]


def test_a_histogram_counts():
    histogram = trapline.Histogram(ROWS)
    assert histogram.total == 16 and len(histogram) == 3 and list(histogram)[1] == (64, 128, 10)
    assert [histogram.percentile(percent) for percent in (0, 6.25, 50, 100)] == [1, 1, 96, 192]
    with pytest.raises(ValueError):
        histogram.percentile(101)
    assert (histogram + histogram).total == 32 and len(histogram + histogram) == 3
    assert trapline.Histogram([]).percentile(50) == 0
    assert histogram.powers_of_two()[-1] == (128, 256, 5) and len(histogram.powers_of_two()) == 8


def test_numpy_shows_the_same_memory():
    numpy = pytest.importorskip("numpy")
    histogram = trapline.Histogram(ROWS)
    array = histogram.to_numpy()
    assert array.shape == (3, 3) and array[:, 2].sum() == 16 and array.base is not None
    array[0, 2] = 7
    assert histogram.total == 22, "no copy"
    assert numpy.shares_memory(array, histogram.to_numpy())


def test_pandas_has_a_row_for_each(program):
    pandas = pytest.importorskip("pandas")
    table = trapline.Histogram(ROWS).to_pandas()
    assert list(table.columns) == ["low", "high", "count"] and table["count"].sum() == 16
    session = trapline.run([program, "20"])
    counts = session.count("price", "store").to_pandas()
    assert isinstance(counts, pandas.DataFrame) and set(counts["function"]) == {"price", "store"}
    assert list(counts["hits"]) == [20, 20]
    calls = session.trace("price").to_pandas()
    assert list(calls["item"]) == list(range(20)) and (calls["ret"] == -1).sum() == 2


def test_a_notebook_shows_pictures(program):
    nbclient = pytest.importorskip("nbclient")
    nbformat = pytest.importorskip("nbformat")
    pytest.importorskip("ipykernel")
    session = f"import trapline\ns = trapline.run([{program!r}, '50'])"
    cells = [session, "s.count('price')", "s.lat('store').histogram", "s.stack('store')"]
    book = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell) for cell in cells])
    nbclient.NotebookClient(book, timeout=120, kernel_name="python3").execute()
    shown = [cell.outputs[0].data.get("text/html", "") for cell in book.cells[1:]]
    assert "<td>50</td>" in shown[0] and "price" in shown[0]
    assert "background:#4a7db5" in shown[1] and "p99 = " in shown[1]
    assert "<svg" in shown[2] and "handle (50 calls, 100.00%)" in shown[2]


def test_the_types_hold():
    pytest.importorskip("mypy")
    package = Path(trapline.__file__).parent
    words = [sys.executable, "-m", "mypy", "--ignore-missing-imports", "--check-untyped-defs", str(package)]
    done = subprocess.run(words, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout
