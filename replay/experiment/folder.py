"""An experiment's folder: its settings, its finished runs, and crash-safe writes.

A file or folder that is being written has a name that begins with a dot and ends in -partial. It is
renamed when it is complete. The next process that opens the folder removes leftovers.
"""

from __future__ import annotations

import fcntl
import os
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from errno import ENOSPC
from pathlib import Path
from typing import Any

import msgspec

from replay.run.output import write_json
from sia.console.errors import UserError
from sia.wording import WEEK, as_typed

SETTINGS = "settings.json"
RUNS = "runs"
TABLE = "experiments.csv"
VERDICT = "verdict.json"
OWN = (
    *(SETTINGS, RUNS, TABLE, "report.html", "figures", "frontier.json", VERDICT),
    *("front.json", "points.csv", "front.svg", "front.png"),
)
"""Files of experiments and searches. In a folder without settings, they are something else's."""
RESULTS = "results"
COMMAND = "sia experiment"
REPLAY = "summary.json"
"""A file in each results folder of `sia replay`."""

PARTIAL = "-partial"


@contextmanager
def opened(folder: Path, settings: Mapping[str, Any]) -> Iterator[None]:
    """Create or reopen the folder of the experiment with these settings, and lock it.

    Raises UserError if the folder belongs to another experiment or cannot be written, also for
    errors inside the block.
    """
    with writable(folder):
        if str(folder) == "." or (folder.exists() and not folder.is_dir()):
            raise UserError(f"{folder}: not a folder for results; give --out a folder of its own")
        folder.mkdir(parents=True, exist_ok=True)
        with locked(folder, settings["command"], "change --out"):
            _refuse_other(folder, settings)
            _tidy(folder)
            if not (folder / SETTINGS).exists():
                write_json(_partial(folder / SETTINGS), settings)
                _partial(folder / SETTINGS).rename(folder / SETTINGS)
            (folder / RUNS).mkdir(exist_ok=True)
            try:
                yield
            finally:
                _tidy(folder)


@contextmanager
def writable(folder: Path) -> Iterator[None]:
    """Turn errors of writing into a UserError of one line."""
    try:
        yield
    except BrokenPipeError:  # the reader of the output has ended
        raise
    except OSError as error:
        fix = "free some space" if error.errno == ENOSPC else "fix this"
        raise UserError(
            f"{error.filename or folder}: cannot be written ({error.strerror or error}); {fix} "
            "and repeat the command to continue"
        ) from None


@contextmanager
def locked(folder: Path, command: str, otherwise: str) -> Iterator[None]:
    """Hold an exclusive lock on a folder; the kernel releases it when the process ends.

    Raises UserError if another process holds it: wait, or do what `otherwise` says.
    """
    handle = os.open(folder, os.O_RDONLY)
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise UserError(
                f"{folder}: in use by another {command}; wait for it to end, or {otherwise}"
            ) from None
        yield
    finally:
        os.close(handle)


def holds_experiment(folder: Path) -> bool:
    """Return whether the folder contains an experiment, complete or not."""
    return (folder / TABLE).exists() or _settings(folder).get("command") == COMMAND


def _settings(folder: Path) -> dict[str, Any]:
    """Return the stored settings; empty if they are missing or not a JSON object."""
    try:
        return msgspec.json.decode((folder / SETTINGS).read_bytes(), type=dict[str, Any])
    except (OSError, msgspec.MsgspecError):
        return {}


def _refuse_other(folder: Path, settings: Mapping[str, Any]) -> None:
    """Raise UserError if the folder has other settings or unrelated files with our names."""
    path = folder / SETTINGS
    name = settings["command"].split()[-1]
    kind = f"an {name}" if name[0] in "aeiou" else f"a {name}"
    if not path.exists():
        if (folder / REPLAY).exists():
            raise UserError(f"{folder}: contains results of sia replay; change --out")
        unrelated = [name for name in OWN if (folder / name).exists()]
        if unrelated:
            raise UserError(f"{folder / unrelated[0]}: not a file of {kind}; change --out")
        return
    found = _settings(folder)
    if found.get("command") != settings["command"]:
        raise UserError(f"{path}: not a file of {kind}; change --out")
    wanted: dict[str, Any] = msgspec.json.decode(msgspec.json.encode(settings))
    for key in sorted(wanted.keys() | found.keys(), key=[*wanted, *found].index):
        if found.get(key) != wanted.get(key):
            raise UserError(
                f"{folder}: contains {kind} {_difference(key, found, wanted)}; to continue it, "
                "use the same options; otherwise change --out"
            )


def _difference(key: str, found: Mapping[str, Any], wanted: Mapping[str, Any]) -> str:
    """Return the difference between two settings in terms of command-line options."""
    if ("sizes" in found) != ("sizes" in wanted):
        return "with --size, not without it" if "sizes" in found else "without --size, not with it"
    old, new = found.get(key), wanted.get(key)
    if key == "trace_sha256":
        return "on another log than --trace"
    if key in FILES:
        old, new = old is not None, new is not None
        if old and new:
            return f"on another {FILES[key]} file than --{FILES[key]}"
    if isinstance(old, bool) and isinstance(new, bool):
        option = "--" + FILES.get(key, key).replace("_", "-")
        return f"{'with' if old else 'without'} {option}"
    if key == "version":
        return f"of sia {old}, not {new}"
    option, typed = OPTIONS.get(key, (key, _shown))
    return f"with {option} {typed(old)}, not {typed(new)}"


def _listed(values: Sequence[Any]) -> str:
    return _shown(",".join(v if isinstance(v, str) else f"{v:g}" for v in values))


def _bounds(loads: Sequence[float]) -> str:
    return "-".join(f"{load:g}" for load in dict.fromkeys(loads))


def _times(seconds: Sequence[float]) -> str:
    return _shown(",".join(map(as_typed, seconds)))


def _time(seconds: float | None) -> str:
    return "none" if seconds is None else as_typed(seconds)


def _weeks(seconds: float) -> str:
    return f"{seconds / WEEK:g}"


def _shown(value: Any) -> str:
    text = value if isinstance(value, str) else msgspec.json.encode(value).decode()
    return text if len(text) <= SHOWN else text[: SHOWN - 3] + "..."


def _marked(value: Any) -> str:
    if value is None:
        return _shown(value)
    percent, cost = value
    return f"{percent:g}:{cost if isinstance(cost, str) else as_typed(cost)}"


FILES = {"pools_sha256": "pools", "cells_sha256": "cells", "workload_sha256": "workload"}
"""Options that name the files of these checksums."""

SHOWN = 60
"""Maximum number of characters of a setting in an error."""

OPTIONS: Mapping[str, tuple[str, Callable[[Any], str]]] = {
    "queues": ("--queues", _listed),
    "length_s": ("--weeks", _weeks),
    "load": ("--load", _bounds),
    "sizes": ("--size", _listed),
    "withdraw": ("--withdraw", _shown),
    "policies": ("--policy", _listed),
    "forecast": ("--forecast", _shown),
    "durations": ("--durations", _shown),
    "load_quantile": ("--load-quantile", _shown),
    "run_time_quantile": ("--run-time-quantile", _shown),
    "max_slowed_pct": ("--max-slowed-pct", _shown),
    "windows_s": ("--windows", _times),
    "recent_windows": ("--recent", _shown),
    "slack": ("--slack", _shown),
    "model": ("--forecast with model", _shown),
    "since_s": ("--from", _time),
    "resume_cost_s": ("--resume-cost", as_typed),
    "warmup_s": ("--warmup", as_typed),
    "quota_step": ("--quota-step", _shown),
    "preemptible": ("--preemptible", _marked),
    "recall": ("--recall", _shown),
    "solver": ("--solver", _shown),
    "solver_latency_s": ("--solver-latency", as_typed),
    "seed": ("--seed", _shown),
}
"""Options of settings, and functions that format their values."""


def _tidy(folder: Path) -> None:
    """Remove unfinished files and folders."""
    _partial(folder / SETTINGS).unlink(missing_ok=True)
    unfinished = (folder / RUNS).glob(f".[0-9]*{PARTIAL}")
    for path in (_partial(folder / RESULTS), *unfinished):
        shutil.rmtree(path, ignore_errors=True)


def _partial(path: Path) -> Path:
    return path.with_name(f".{path.name}{PARTIAL}")


def run_folder(folder: Path, run: int) -> Path:
    """Return the path of a finished run's results."""
    return folder / RUNS / f"{run:03d}"


@contextmanager
def whole_run(folder: Path, run: int) -> Iterator[Path]:
    """Yield a folder for a run's results; the run counts as finished if the block succeeds."""
    place = run_folder(folder, run)
    partial = _partial(place)
    try:
        partial.mkdir()
        yield partial
        partial.rename(place)
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def read_runs(folder: Path, runs: Sequence[int]) -> list[dict[str, Any]]:
    """Return the results of finished runs. Raises UserError for a damaged file."""
    found = []
    for run in runs:
        path = run_folder(folder, run) / "run.json"
        try:
            found.append(msgspec.json.decode(path.read_bytes(), type=dict[str, Any]))
        except (FileNotFoundError, msgspec.MsgspecError):
            raise UserError(
                f"{path}: missing or damaged; remove {path.parent} and repeat the command"
            ) from None
    return found


def replace_results(folder: Path, write: Callable[[Path], None]) -> None:
    """Write results into a temporary folder, then move each file over the previous one."""
    aside = _partial(folder / RESULTS)
    aside.mkdir()
    write(aside)
    for path in sorted(aside.rglob("*")):
        place = folder / path.relative_to(aside)
        if path.is_dir():
            place.mkdir(exist_ok=True)
        else:
            path.replace(place)
