"""Whose folder it is: results of other commands, and strangers' files, are never replaced."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from replay.experiment.folder import REPLAY, SETTINGS, holds_experiment
from replay.run.output import whole_folder
from sia.console.errors import UserError

MARKS = (SETTINGS, "oracle.json", "sweep.json")
"""Files that say under `command` what has written the folder."""


class Results(NamedTuple):
    """What some commands leave, folders with a slash at their end; `mark` tells by which it is."""

    commands: Sequence[str]
    mark: str
    names: Sequence[str]


@contextmanager
def own_folder(out: Path, inputs: Sequence[Path], results: Results) -> Iterator[Path]:
    """A folder to write into, whose entries are all that `out` holds at the end.

    Raises UserError as `whole_folder` does, and where `out` holds anything else than earlier
    results of these commands. Those are replaced whole, where the block ends well.
    """
    stale = [name.rstrip("/") for name in results.names]
    refuse_others(out, results.commands, results.mark, stale)
    with whole_folder(out, inputs, stale, results.names) as folder:
        yield folder


def refuse_others(
    out: Path, commands: Sequence[str], mark: str, names: Collection[str] | None = None
) -> None:
    """Raise UserError where `out` holds other results than these commands', or further files.

    Without `names` further files are left alone where the results are theirs.
    """
    if not out.is_dir():
        return
    there = sorted(path.name for path in out.iterdir() if not path.name.startswith("."))
    own = _command(out / mark) in commands
    strange = [name for name in there if names is not None and name not in names]
    if not there or (own and not strange):
        return
    whose = None if own else _whose(out)
    if whose is not None:
        raise UserError(f"{out}: holds the results of {whose}; give another --out")
    named = [*strange, *there][0]
    raise UserError(f"{out / named}: is no result of {commands[0]}; give another --out")


def _whose(out: Path) -> str | None:
    """The command whose results stand there, if they say so."""
    if holds_experiment(out):
        return "sia experiment"
    if (out / REPLAY).exists():
        return "sia replay"
    return next((found for mark in MARKS if (found := _command(out / mark))), None)


def _command(path: Path) -> str | None:
    """What a file says that it is of; nothing where it is no JSON object."""
    try:
        found = msgspec.json.decode(path.read_bytes(), type=dict[str, Any]).get("command")
    except (OSError, msgspec.MsgspecError):
        return None
    return found if isinstance(found, str) and found.isprintable() else None
