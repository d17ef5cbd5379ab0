"""Commit times of the journal on SQLite and PostgreSQL, by the number of jobs in a step.

    python -m benchmarks.daemon.journal_stores --database postgresql://… [--seconds 5]

The database must be empty. SQLite uses a file in the system's temporary folder. Commits of
both are interleaved, so that whatever else the machine does meets both.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from benchmarks.common import keep
from daemon.config.database import DatabaseUrl
from daemon.engine.engine import Engine
from daemon.journal.journal import Journal, JournalEntry
from daemon.journal.postgres import PostgresStore
from daemon.journal.recovery import recover
from daemon.model.inputs import Submit
from daemon.model.job import JobSpec
from daemon.model.setup import Setup
from daemon.process.lease import LeaseConnection
from daemon.runtime.clock import Anchor
from sia.model import Pool

SIZES = (1, 10, 100, 1000)
"""Jobs of a step."""


def one(journal: Journal, engine: Engine, first: int, jobs: int) -> float:
    """Seconds of the commit of one step."""
    now = float(journal.last + 1)
    command = ("python", "train.py", "--lr", "0.1")
    inputs = [
        Submit(JobSpec(f"job-{first + i}", "p", 1, command, user="me", hold=True), 60.0)
        for i in range(jobs)
    ]
    step = engine.step(now, inputs)
    entry = JournalEntry(
        journal.last + 1, Anchor("", now, now), inputs, step.decisions, step.notices
    )
    began = time.perf_counter()
    journal.commit(entry)
    return time.perf_counter() - began


def median_ms(took: list[float]) -> float:
    """Of these seconds."""
    return round(sorted(took)[len(took) // 2] * 1000, 2)


def measure(journals: dict[str, Journal], seconds: float) -> dict[str, Any]:
    """Median milliseconds of a commit, by database and size of a step."""
    setup = Setup((Pool("p", 8),))
    engines = {name: recover(journal, setup) for name, journal in journals.items()}
    found: dict[str, Any] = {name: {} for name in journals}
    first = 0
    for jobs in SIZES:
        took: dict[str, list[float]] = {name: [] for name in journals}
        until = time.perf_counter() + seconds / len(SIZES)
        while time.perf_counter() < until or len(took["sqlite"]) < 5:
            for name, journal in journals.items():
                took[name].append(one(journal, engines[name], first, jobs))
            first += jobs
        for name in journals:
            found[name][f"{jobs}_ms"] = median_ms(took[name])
    return found


def main() -> None:
    """Measure, print and keep."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--database", required=True)
    parser.add_argument("--seconds", type=float, default=20.0)
    asked = parser.parse_args()
    url = DatabaseUrl(asked.database)
    desk = LeaseConnection(url)
    epoch = desk.take(desk.look(), "a benchmark", "")
    assert epoch is not None, "another daemon leads there"
    with TemporaryDirectory() as folder:
        journals = {
            "sqlite": Journal(Path(folder) / "db"),
            "postgres": Journal(PostgresStore(url, epoch)),
        }
        keep("daemon/journal_stores", measure(journals, asked.seconds))
        for journal in journals.values():
            journal.close()
    desk.give_back(epoch)
    desk.close()


if __name__ == "__main__":
    main()
