"""The victim, built once, and running."""

import shutil
import signal
import subprocess
from pathlib import Path

import pytest

# A shell starts its background jobs with SIGINT ignored, and programs inherit that. What the tests interrupt must see it.
signal.signal(signal.SIGINT, signal.default_int_handler)

HERE = Path(__file__).parent


class Victim:
    """The victim, waiting for numbers of rounds."""

    def __init__(self, path):
        self.process = subprocess.Popen([path], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert self.process.stdout.readline() == "ready\n"
        self.pid = self.process.pid

    def run(self, rounds):
        """Runs so many rounds; how often it has called ``price`` and ``store`` by then."""
        self.process.stdin.write(f"{rounds}\n")
        self.process.stdin.flush()
        return tuple(int(word) for word in self.process.stdout.readline().split())


@pytest.fixture(scope="session")
def program(tmp_path_factory):
    """The path of the victim."""
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("no C compiler")
    path = tmp_path_factory.mktemp("victim") / "victim"
    words = [compiler, "-O2", "-g", "-fno-omit-frame-pointer", "-o", path, HERE / "victim.c"]
    subprocess.run(words, check=True)
    return str(path)


@pytest.fixture
def victim(program):
    running = Victim(program)
    yield running
    running.process.stdin.close()
    assert running.process.wait(60) == 0, "it ends as it would have"
    running.process.stdout.close()
