"""An experiment's folder: whose it is, what is finished in it, and how that survives anything.

What is being written has a name that begins with a dot and ends in -partial; it gets its own name
when it is whole. Leftovers of a process that was killed are removed when the next one opens it.
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
OWN = (SETTINGS, RUNS, TABLE, "report.html", "figures", "frontier.json")
RESULTS = "results"
COMMAND = "sia experiment"
REPLAY = "summary.json"
"""What each folder of `sia replay` holds."""

PARTIAL = "-partial"


@contextmanager
def opened(folder: Path, settings: Mapping[str, Any]) -> Iterator[None]:
    """Make or take up the folder of the experiment with these settings, for this process alone.

    Raises UserError where it is another's, or cannot be written, inside of the block too.
    """
    with writable(folder):
        if str(folder) == "." or (folder.exists() and not folder.is_dir()):
            raise UserError(f"{folder}: give --out the name of a folder for the results alone")
        folder.mkdir(parents=True, exist_ok=True)
        with _locked(folder, settings["command"]):
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
    """Say in one line what cannot be written there."""
    try:
        yield
    except OSError as error:
        mend = "free some space" if error.errno == ENOSPC else "mend it"
        raise UserError(
            f"{error.filename or folder}: cannot be written ({error.strerror or error}); {mend} "
            "and repeat the command to continue"
        ) from None


@contextmanager
def _locked(folder: Path, command: str) -> Iterator[None]:
    """Keep other processes out; the lock goes with the process, however that ends."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise UserError(
                f"{folder}: another {command} is at work there; wait for it, or give another --out"
            ) from None
        yield
    finally:
        os.close(handle)


def holds_experiment(folder: Path) -> bool:
    """Whether an experiment stands there, or what is left of one."""
    return (folder / TABLE).exists() or _settings(folder).get("command") == COMMAND


def _settings(folder: Path) -> dict[str, Any]:
    """What stands in its settings; nothing where that is no JSON object."""
    try:
        return msgspec.json.decode((folder / SETTINGS).read_bytes(), type=dict[str, Any])
    except (OSError, msgspec.MsgspecError):
        return {}


def _refuse_other(folder: Path, settings: Mapping[str, Any]) -> None:
    """Raise UserError for a folder with other settings, or with others' files under our names."""
    path = folder / SETTINGS
    name = settings["command"].split()[-1]
    kind = f"an {name}" if name[0] in "aeiou" else f"a {name}"
    if not path.exists():
        if (folder / REPLAY).exists():
            raise UserError(f"{folder}: holds the results of sia replay; give another --out")
        strange = [name for name in OWN if (folder / name).exists()]
        if strange:
            raise UserError(f"{folder / strange[0]}: is of no {name}; give another --out")
        return
    found = _settings(folder)
    if found.get("command") != settings["command"]:
        raise UserError(f"{path}: is of no {name}; give another --out")
    wanted: dict[str, Any] = msgspec.json.decode(msgspec.json.encode(settings))
    for key in sorted(wanted.keys() | found.keys(), key=[*wanted, *found].index):
        if found.get(key) != wanted.get(key):
            raise UserError(
                f"{folder}: holds {kind} {_difference(key, found, wanted)}; repeat its "
                "options to continue it, or choose another --out"
            )


def _difference(key: str, found: Mapping[str, Any], wanted: Mapping[str, Any]) -> str:
    """Where two experiments' settings differ, as options that the user gave, or may give."""
    if ("sizes" in found) != ("sizes" in wanted):
        return "with --size, not without it" if "sizes" in found else "without --size, not with it"
    was, now = found.get(key), wanted.get(key)
    if key == "trace_sha256":
        return "on another log than --trace"
    if key in FILES:
        was, now = was is not None, now is not None
        if was and now:
            return f"on another {FILES[key]} file than --{FILES[key]}"
    if isinstance(was, bool) and isinstance(now, bool):
        option = "--" + FILES.get(key, key).replace("_", "-")
        return f"{'with' if was else 'without'} {option}"
    if key == "version":
        return f"of sia {was}, not {now}"
    option, typed = OPTIONS.get(key, (key, _shown))
    return f"with {option} {typed(was)}, not {typed(now)}"


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
    return _shown(value) if value is None else f"{value[0]:g}:{as_typed(value[1])}"


FILES = {"pools_sha256": "pools", "cells_sha256": "cells"}
"""Checksums, and the options that name their files."""

SHOWN = 60
"""Characters of a setting in an error."""

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
    "seed": ("--seed", _shown),
}
"""Settings whose value is that of an option, and how it is typed."""


def _tidy(folder: Path) -> None:
    """Remove what was never finished."""
    _partial(folder / SETTINGS).unlink(missing_ok=True)
    unfinished = (folder / RUNS).glob(f".[0-9]*{PARTIAL}")
    for path in (_partial(folder / RESULTS), *unfinished):
        shutil.rmtree(path, ignore_errors=True)


def _partial(path: Path) -> Path:
    return path.with_name(f".{path.name}{PARTIAL}")


def run_folder(folder: Path, run: int) -> Path:
    """Where a finished run's results stand."""
    return folder / RUNS / f"{run:03d}"


@contextmanager
def whole_run(folder: Path, run: int) -> Iterator[Path]:
    """A folder to write a run's results into; it counts as finished when the block ends well."""
    place = run_folder(folder, run)
    partial = _partial(place)
    try:
        partial.mkdir()
        yield partial
        partial.rename(place)
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def read_runs(folder: Path, runs: Sequence[int]) -> list[dict[str, Any]]:
    """What those finished runs gave. Raises UserError for a file that is damaged."""
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
    """Write results aside, then put each file in the place of the one before, if there is one."""
    aside = _partial(folder / RESULTS)
    aside.mkdir()
    write(aside)
    for path in sorted(aside.rglob("*")):
        place = folder / path.relative_to(aside)
        if path.is_dir():
            place.mkdir(exist_ok=True)
        else:
            path.replace(place)
