"""Run all tests at full length, server tests included: `make soak`, before each release.

Arguments go to pytest. Only a run without any is stored in `results/soak.json`.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
import xml.etree.ElementTree as ET
from collections import Counter
from datetime import UTC, datetime
from pathlib import Path
from tempfile import TemporaryDirectory

from common import ROOT, keep

LONGEST = 7200
"""Seconds for one test, where `make test` allows 600."""


def main() -> int:
    began = time.monotonic()
    with TemporaryDirectory() as folder:
        report = Path(folder, "report.xml")
        command = [sys.executable, "-m", "pytest", "-n", "2", "--dist", "loadgroup"]
        command += [f"--timeout={LONGEST}", f"--junitxml={report}", *sys.argv[1:]]
        ended = subprocess.run(command, cwd=ROOT, env={**os.environ, "SIA_SOAK": "1"}, check=False)
        cases = list(ET.parse(report).iter("testcase"))
    if len(sys.argv) == 1:
        keep("soak", {**commit(), **summary(cases), "hours": round(hours_since(began), 2)})
    return ended.returncode


def hours_since(began: float) -> float:
    return (time.monotonic() - began) / 3600


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
