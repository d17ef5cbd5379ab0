"""CPU time of estimates with 1,000 pools, 10,000 running and 10,000 pending jobs.

`python -m benchmarks.answers.eta_speed`; the playout runs in a child process of the daemon.
"""

from __future__ import annotations

import time
from random import Random
from typing import Any

from benchmarks.common import keep
from benchmarks.daemon.core import crowded, percentiles
from daemon.answers.estimates.at_submission import new_job
from daemon.answers.estimates.observations import EstimateInputs
from daemon.answers.estimates.worlds import WORLDS, Outlook, outlook
from daemon.engine.engine import Engine
from daemon.model.inputs import Input, Started
from daemon.model.job import JobPhase
from daemon.model.outputs import StartEffect
from sia.model import Job

POOLS, RUNNING, PENDING, PAST, ASKED = 1000, 10_000, 10_000, 10_000, 2000
DAY = 86400.0


def busy() -> tuple[Engine, EstimateInputs, float]:
    """An engine with so many jobs, and two weeks of as many an hour as it can run."""
    engine, inputs = crowded(POOLS, RUNNING // POOLS, RUNNING, PENDING)
    heard, rng, now = EstimateInputs(), Random(1), 1e9
    for i in range(PAST):
        submitted = now - 14 * DAY + i * 14 * DAY / PAST
        job = Job(f"before-{i}", f"p{rng.randrange(POOLS):04}", submitted, 1)
        seconds = rng.lognormvariate(8, 1.5)
        heard.lasting.submitted(job)
        heard.lately.submitted(job, 1000.0)
        heard.lasting.started(submitted, job)
        heard.lasting.finished(submitted + seconds, job, seconds)
        heard.lately.ended(job.id, seconds)
    for first in range(0, len(inputs), 1000):
        now += 1.0
        step = engine.step(now, inputs[first : first + 1000])
        started: list[Input] = [
            Started(e.job, e.attempt) for e in step.effects if isinstance(e, StartEffect)
        ]
        more = engine.step(now, started)
        for notice in (*step.notices, *more.notices):
            heard.hear(notice, engine.book.job(notice.job))
    return engine, heard, now + 1.0


def main() -> None:
    engine, heard, now = busy()
    began = time.process_time()
    found = outlook(engine, heard.lasting, heard.lately, now)
    played = time.process_time() - began
    encoded = found.encode()
    began = time.process_time()
    found = Outlook.decode(encoded)
    result: dict[str, Any] = {
        "jobs": len(engine.book.jobs),
        "waiting": engine.core.state.waiting,
        "worlds": WORLDS,
        "playout seconds": round(played, 1),
        "megabytes to the daemon": round(len(encoded) / 1e6, 1),
        "decode milliseconds": round((time.process_time() - began) * 1e3, 2),
    }
    records, rng = list(engine.book.jobs.values()), Random(2)
    waits: dict[str, list[float]] = {"waiting": [], "running": [], "new": []}
    for _ in range(ASKED):
        record = rng.choice(records)
        pending = record.phase is JobPhase.PENDING
        began = time.perf_counter()
        times = found.times(record.spec.id) if pending else None
        times = times or new_job(found, heard.lasting, record, now)
        assert times is not None, "there is a history"
        heard.calibration.corrected(record.spec.pool, now, times)
        waits["waiting" if pending else "running"].append(time.perf_counter() - began)
        if pending:
            began = time.perf_counter()
            new_job(found, heard.lasting, record, now)
            waits["new"].append(time.perf_counter() - began)
    result["milliseconds to answer"] = {name: percentiles(some) for name, some in waits.items()}
    keep("answers/eta_speed", result)


if __name__ == "__main__":
    main()
