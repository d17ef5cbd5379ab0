"""Files through which a job goes from POST to running: python -m benchmarks.daemon.way_of_a_job.

A profiler on all threads of a daemon with simulated jobs notes each call of a function of the
project, from the request for the second job until 0.1 s after it runs. Answers, notices and the
commits of the journal are included. A change of file is a call into another file than the call
before on the same thread.

`MERGES` are groups of files that could be one; the report says what each would save.
"""

from __future__ import annotations

import asyncio
import sys
import threading
from collections import Counter
from pathlib import Path
from tempfile import TemporaryDirectory
from types import FrameType
from typing import Any

from tests.support.daemons.daemons import until
from tests.support.daemons.doors import asked, door, job_in

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("cells", "sia", "predictors", "replay", "oracle", "daemon")

MERGES = {
    "service": "service/{service,durability,event_feed,ended_jobs,observer}",
    "lending checks": "engine/{guardrails,lending_budgets,outages}",
    "journal": "journal/{writer,journal,rows,snapshots,account_tables}",
    "requests and answers": "wire/{bodies,jobs,wishes}",
    "answer to a submission": "doors/views/{notes,resources,submission}",
}
"""Files of `daemon` that could be one, by what they have in common."""


def main() -> None:
    """Print all files with their calls, the changes of file, and what merges would save."""
    threads: dict[int, list[str]] = {}
    asyncio.run(_submit_twice(threads))
    calls = Counter(file for way in threads.values() for file in way)
    for file, count in sorted(calls.items()):
        print(f"{count:5} {file}")
    print(f"{len(calls)} files, {_changes(threads, {})} changes of file")
    together: dict[str, str] = {}
    for name, pattern in MERGES.items():
        merged = dict.fromkeys(_expanded(pattern), name)
        together |= merged
        lines = sum(len((ROOT / file).read_text().splitlines()) for file in merged)
        print(f"{name}: {_left(threads, merged)}; {lines:,} lines in one file")
    print(f"all of these: {_left(threads, together)}")


async def _submit_twice(threads: dict[int, list[str]]) -> None:
    def note(frame: FrameType, event: str, _: Any) -> None:
        file = frame.f_code.co_filename
        if event == "call" and file.startswith(str(ROOT)):
            file = str(Path(file).relative_to(ROOT))
            if noting and file.startswith(PACKAGES):
                threads.setdefault(threading.get_ident(), []).append(file)

    noting = False
    threading.setprofile(note)
    sys.setprofile(note)
    with TemporaryDirectory() as folder:
        async with door(Path(folder), policy="sia", speed=1.0) as client:
            job = {"pool": "vision", "gpus": 1, "duration": 1e6}
            await asked(client, "POST", "/v1/jobs", {"id": "first", **job}, status=201)
            await job_in(client, "first", "running")
            noting = True
            await asked(client, "POST", "/v1/jobs", {"id": "second", **job}, status=201)
            await until(lambda: client.service.book.jobs["second"].phase.value == "running")
            await asyncio.sleep(0.1)  # the last notices leave
            noting = False
    sys.setprofile(None)
    threading.setprofile(None)


def _changes(threads: dict[int, list[str]], merged: dict[str, str]) -> int:
    ways = ([merged.get(file, file) for file in way] for way in threads.values())
    return sum(a != b for way in ways for a, b in zip(["", *way], way, strict=False))


def _left(threads: dict[int, list[str]], merged: dict[str, str]) -> str:
    files = {merged.get(file, file) for way in threads.values() for file in way}
    return f"{len(files)} files, {_changes(threads, merged)} changes"


def _expanded(pattern: str) -> list[str]:
    folder, names = pattern.rstrip("}").split("{")
    return [f"daemon/{folder}{name}.py" for name in names.split(",")]


if __name__ == "__main__":
    main()
