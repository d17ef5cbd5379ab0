"""A third-party package that extends SIA by entry points."""

import json
import os
import subprocess
import sys
from pathlib import Path

from tests.support.paths import ROOT
from tests.support.shell import Done

EACH_IN_TURN = """
import json, sys
from tests.support.shell import sia
json.dump([sia(*command) for command in json.load(sys.stdin)], sys.stdout)
"""


def package(folder: Path, source: str, **groups: dict[str, str]) -> Path:
    """Install a distribution with the module `others` into a folder for PYTHONPATH.

    `groups` are its entry points: `loads={"half": "HalfLoads"}` is `half` in group `sia.loads`.
    """
    (folder / "others.py").write_text(source)
    info = folder / "sia_others-1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: sia-others\nVersion: 1\n")
    lines: list[str] = []
    for group, points in groups.items():
        lines += [f"[sia.{group}]", *(f"{name} = others:{what}" for name, what in points.items())]
    (info / "entry_points.txt").write_text("\n".join(lines) + "\n")
    return folder


def sia_with(folder: Path, *arguments: object) -> subprocess.CompletedProcess[str]:
    """Run a command in a process that can import the package."""
    return python_with(folder, "-m", "sia", *arguments)


def each_with(folder: Path, commands: list[tuple[object, ...]]) -> list[Done]:
    """Run commands one after the other in one process that can import the package.

    A process of its own takes each command half a second to import SIA.
    """
    ran = subprocess.run(
        [sys.executable, "-c", EACH_IN_TURN],
        input=json.dumps([[str(word) for word in command] for command in commands]),
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join((str(folder), str(ROOT)))},
        check=True,
    )
    return [Done(*done) for done in json.loads(ran.stdout)]


def python_with(folder: Path, *arguments: object) -> subprocess.CompletedProcess[str]:
    """Run Python code in a process that can import the package."""
    return subprocess.run(
        [sys.executable, *map(str, arguments)],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": str(folder)},
        check=False,
    )
