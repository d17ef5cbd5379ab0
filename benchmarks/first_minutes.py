"""A stranger's first minutes: a clean clone, an empty home, `make run`, and how long each takes.

    python benchmarks/first_minutes.py [REVISION]

Nothing of this checkout is used but its commits. Python's packages come from the registry, without
a cache. Stores when each of the things that a stranger waits for was there, in seconds from the
command: `make run` in the clone, and again when it is installed. CPU seconds are those of all
processes.
"""

from __future__ import annotations

import os
import re
import resource
import subprocess
import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from common import ROOT, keep

FOR = "45s"
"""How long the demo runs: to the end of its first day."""

SEEN = {
    "the company": r"A made-up company",
    "the address": r"in a browser",
    "since Monday": r"^Since Monday",
    "first row": r"^  day 1, ",
    "end of a day": r"^Wednesday: ",
}
"""What a stranger waits for, by the line with which it comes."""


def children() -> float:
    """Return the CPU seconds of ended child processes."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def watched(folder: Path, home: Path, *command: str) -> dict[str, Any]:
    """Run a command as a stranger; return when each line was seen, and what it took."""
    env = {
        "HOME": str(home),
        "PATH": os.environ["PATH"],
        "LANG": "C.UTF-8",
        "PIP_NO_CACHE_DIR": "1",
    }
    began, before, seen = time.monotonic(), children(), dict[str, float]()
    with subprocess.Popen(command, cwd=folder, env=env, stdout=subprocess.PIPE, text=True) as run:
        assert run.stdout is not None
        for line in run.stdout:
            for what, pattern in SEEN.items():
                if what not in seen and re.search(pattern, line):
                    seen[what] = round(time.monotonic() - began, 1)
    if run.returncode:
        sys.exit(f"{' '.join(command)} ended with {run.returncode}")
    missing = SEEN.keys() - seen.keys()
    if missing:
        sys.exit(f"never seen: {', '.join(sorted(missing))}")
    total = {"whole": round(time.monotonic() - began, 1), "cpu": round(children() - before, 1)}
    return {**seen, **total}


def main() -> None:
    revision = sys.argv[1] if len(sys.argv) > 1 else "HEAD"
    load = os.getloadavg()[0]
    with TemporaryDirectory() as name:
        clone, home = Path(name) / "sia", Path(name) / "home"
        home.mkdir()
        began = time.monotonic()
        subprocess.run(["git", "clone", "--quiet", ROOT, clone], check=True)
        subprocess.run(["git", "checkout", "--quiet", revision], cwd=clone, check=True)
        cloned = round(time.monotonic() - began, 1)
        demo = "make", "run", f"ARGS=--for={FOR}"
        first = watched(clone, home, *demo)
        again = watched(clone, home, *demo)
        left = sorted(str(path.relative_to(home)) for path in home.rglob("*"))
    keep(
        "first_minutes",
        {
            "load": round(load, 1), "clone": cloned, "make run": first,
            "make run, installed": again, "files left in the home": left,
        },
    )  # fmt: skip


if __name__ == "__main__":
    main()
