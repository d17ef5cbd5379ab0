"""Run all tests at full length, server tests included: `make soak`, before each release.

Arguments go to pytest, so that a part can be run: `make soak ARGS=tests/cells`. `results/soak.json`
has the last result of each part by its arguments; a run of all tests replaces all of them.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
import xml.etree.ElementTree as ET
from collections import Counter
from datetime import UTC, datetime
from pathlib import Path
from tempfile import TemporaryDirectory

from benchmarks.common import RESULTS, ROOT, keep

ALL = "all"

LONGEST = 7200
"""Seconds for one test, where `make test` allows 600."""


def main() -> int:
    began = time.monotonic()
    with TemporaryDirectory() as folder:
        report = Path(folder, "report.xml")
        command = [sys.executable, "-m", "pytest", "-n", "2", "--dist", "loadgroup"]
        command += [f"--timeout={LONGEST}", f"--junitxml={report}", *sys.argv[1:]]
        ended = subprocess.run(command, cwd=ROOT, env={**os.environ, "SIA_SOAK": "1"}, check=False)
        if not report.exists():  # pytest refused its arguments
            return ended.returncode
        cases = list(ET.parse(report).iter("testcase"))
    what = " ".join(sys.argv[1:]) or ALL
    result = {**commit(), **summary(cases), "minutes": round((time.monotonic() - began) / 60, 1)}
    keep("soak", {"runs": {**kept(what), what: result}})
    return ended.returncode


def kept(what: str) -> dict[str, object]:
    """Return the stored results that a new one does not replace."""
    stored = RESULTS / "soak.json"
    if what == ALL or not stored.exists():
        return {}
    runs: dict[str, object] = json.loads(stored.read_text())["runs"]
    return runs


def commit() -> dict[str, str]:
    """Return the commit that ran, marked where files differ from it, and the day."""
    command = ["git", "describe", "--always", "--dirty", "--abbrev=12"]
    found = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    return {"commit": found.stdout.strip(), "date": datetime.now(UTC).date().isoformat()}


def summary(cases: list[ET.Element]) -> dict[str, object]:
    """Return how many tests ended in which way, and the names of those that failed."""
    ways, failed, seconds = Counter[str](), [], Counter[str]()
    for case in cases:
        file = case.get("classname", "")
        way = next((part.tag for part in case if part.tag in {"failure", "error", "skipped"}), "")
        ways[way or "passed"] += 1
        seconds[file] += float(case.get("time", 0.0))
        if way in {"failure", "error"}:
            failed.append(f"{file}::{case.get('name')}")
    slowest = {file: round(took) for file, took in seconds.most_common(10)}
    return {**ways, "failed tests": failed, "slowest files, s": slowest}


if __name__ == "__main__":
    sys.exit(main())
