"""The wheel: made twice it is the same, and a fresh environment runs it."""

import os
import platform
import subprocess
import sys
import venv
import zipfile
from pathlib import Path

import trapline

HERE = Path(__file__).resolve().parent.parent

USE = """
import sys, trapline
counts = trapline.run([sys.argv[1], "42"]).count("price")
print(trapline.command(), counts["price"].hits)
"""


def make(folder):
    folder.mkdir()
    words = [sys.executable, HERE / "wheel.py", trapline.command(), platform.machine(), folder]
    environment = {**os.environ, "SOURCE_DATE_EPOCH": "1700000000"}
    return Path(subprocess.run(words, env=environment, capture_output=True, text=True, check=True).stdout.strip())


def test_a_fresh_environment_runs_the_wheel(tmp_path, program):
    wheel = make(tmp_path / "one")
    assert wheel.read_bytes() == make(tmp_path / "two").read_bytes()
    names = zipfile.ZipFile(wheel).namelist()
    assert "trapline/py.typed" in names and "trapline/bin/trapline" in names
    venv.create(tmp_path / "fresh", with_pip=True)
    python = tmp_path / "fresh/bin/python"
    words = [python, "-m", "pip", "install", "-q", "--no-index", "--disable-pip-version-check", wheel]
    subprocess.run(words, check=True, stdin=subprocess.DEVNULL)
    environment = {name: value for name, value in os.environ.items() if name not in ("TRAPLINE", "PYTHONPATH")}
    done = subprocess.run([python, "-c", USE, program], env=environment, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    path, hits = done.stdout.split()
    assert path.startswith(str(tmp_path / "fresh")) and hits == "42"
    said = subprocess.run([tmp_path / "fresh/bin/trapline", "--version"], capture_output=True, text=True).stdout
    assert said.startswith("trapline "), "the command itself"
    subprocess.run([python, "-m", "pip", "uninstall", "-q", "-y", "trapline"], check=True)
    assert not Path(path).exists()
