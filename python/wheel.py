"""Makes a wheel: the module, and in it the command as a static binary.

As a build backend (PEP 517) for ``pip``, it takes the binary that TRAPLINE_BINARY names, else the workspace's release
build. ``cargo xtask dist`` runs it as ``wheel.py BINARY MACHINE FOLDER``. Invariant: the same files and the same
SOURCE_DATE_EPOCH make the same wheel, byte by byte. Needs nothing but Python itself.
"""

from __future__ import annotations

import base64
import hashlib
import os
import platform
import re
import sys
import time
import zipfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent
#: A static binary runs with any C library.
TAGS = "manylinux_2_17_{0}.manylinux2014_{0}.musllinux_1_1_{0}"


def version() -> str:
    """The workspace's version."""
    text = (ROOT / "Cargo.toml").read_text(encoding="utf-8")
    return re.search(r'^version = "([^"]+)"', text, re.MULTILINE).group(1)


def metadata() -> str:
    """What an index shows of the package."""
    head = [
        "Metadata-Version: 2.1",
        "Name: trapline",
        f"Version: {version()}",
        "Summary: Count, time and record the functions of running programs, from outside, without traps",
        "License: MIT OR Apache-2.0",
        "Requires-Python: >=3.8",
        "Classifier: Operating System :: POSIX :: Linux",
        "Classifier: Typing :: Typed",
        "Provides-Extra: numpy",
        "Requires-Dist: numpy; extra == 'numpy'",
        "Provides-Extra: pandas",
        "Requires-Dist: pandas; extra == 'pandas'",
        "Description-Content-Type: text/markdown",
    ]
    return "\n".join(head) + "\n\n" + (HERE / "README.md").read_text(encoding="utf-8")


class Wheel:
    """A wheel that is being written."""

    def __init__(self, machine: str, folder: Path) -> None:
        self.info = f"trapline-{version()}.dist-info"
        self.tags = TAGS.format(machine)
        self.path = folder / f"trapline-{version()}-py3-none-{self.tags}.whl"
        self.file = zipfile.ZipFile(self.path, "w", zipfile.ZIP_DEFLATED, compresslevel=9)
        self.record: list[str] = []
        # The earliest time that a wheel can hold is 1980.
        epoch = max(int(os.environ.get("SOURCE_DATE_EPOCH", "315532800")), 315532800)
        self.time = time.gmtime(epoch)[:6]

    def put(self, name: str, data: bytes, mode: int = 0o644) -> None:
        entry = zipfile.ZipInfo(name, self.time)
        entry.external_attr = (0o100000 | mode) << 16
        entry.compress_type = zipfile.ZIP_DEFLATED
        self.file.writestr(entry, data, compresslevel=9)
        digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
        self.record.append(f"{name},sha256={digest},{len(data)}\n")

    def close(self) -> None:
        tags = "".join(f"Tag: py3-none-{tag}\n" for tag in self.tags.split("."))
        wheel = f"Wheel-Version: 1.0\nGenerator: trapline\nRoot-Is-Purelib: false\n{tags}"
        self.put(f"{self.info}/WHEEL", wheel.encode())
        self.put(f"{self.info}/METADATA", metadata().encode())
        self.put(f"{self.info}/entry_points.txt", b"[console_scripts]\ntrapline = trapline._tool:main\n")
        for licence in ("LICENSE-MIT", "LICENSE-APACHE"):
            self.put(f"{self.info}/{licence}", (ROOT / licence).read_bytes())
        name = f"{self.info}/RECORD"
        self.put(name, ("".join(self.record) + f"{name},,\n").encode())
        self.file.close()


def make(binary: Path, machine: str, folder: Path) -> Path:
    """Writes the wheel; its path."""
    wheel = Wheel(machine, folder)
    for source in sorted((HERE / "trapline").iterdir()):
        if source.suffix == ".py" or source.name == "py.typed":
            wheel.put(f"trapline/{source.name}", source.read_bytes())
    wheel.put("trapline/bin/trapline", binary.read_bytes(), 0o755)
    wheel.close()
    return wheel.path


def build_wheel(wheel_directory: str, config_settings=None, metadata_directory=None) -> str:
    """For pip."""
    named = os.environ.get("TRAPLINE_BINARY")
    binary = Path(named) if named else ROOT / "target/release/trapline"
    if not binary.exists():
        raise SystemExit(f"{binary} is not there; run cargo build --release, or set TRAPLINE_BINARY")
    return make(binary, platform.machine(), Path(wheel_directory)).name


if __name__ == "__main__":
    print(make(Path(sys.argv[1]), sys.argv[2], Path(sys.argv[3])))
