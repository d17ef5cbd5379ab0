"""Results folders: files of other commands and unrelated files are never replaced."""

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
"""Files whose key `command` names the command that wrote the folder."""


class Results(NamedTuple):
    """The results of some commands. Folders end in a slash; file `mark` names the command."""

    commands: Sequence[str]
    mark: str
    names: Sequence[str]


@contextmanager
def own_folder(out: Path, inputs: Sequence[Path], results: Results) -> Iterator[Path]:
    """Yield a folder to write into; its entries replace earlier results of these commands.

    Raises UserError as `whole_folder` does, and if `out` contains other files.
    """
    stale = [name.rstrip("/") for name in results.names]
    refuse_others(out, results.commands, results.mark, stale)
    with whole_folder(out, inputs, stale, results.names) as folder:
        yield folder


def refuse_others(
    out: Path, commands: Sequence[str], mark: str, names: Collection[str] | None = None
) -> None:
    """Raise UserError if `out` contains results of other commands, or unrelated files.

    Without `names`, unrelated files are allowed beside results of these commands.
    """
    if not out.is_dir():
        return
    there = sorted(path.name for path in out.iterdir() if not path.name.startswith("."))
    own = _command(out / mark) in commands
    unrelated = [name for name in there if names is not None and name not in names]
    if not there or (own and not unrelated):
        return
    writer = None if own else _writer(out)
    if writer is not None:
        raise UserError(f"{out}: contains results of {writer}; change --out")
    named = [*unrelated, *there][0]
    raise UserError(f"{out / named}: not a result of {commands[0]}; change --out")


def _writer(out: Path) -> str | None:
    """Return the command that wrote the folder, or None."""
    if holds_experiment(out):
        return "sia experiment"
    if (out / REPLAY).exists():
        return "sia replay"
    return next((found for mark in MARKS if (found := _command(out / mark))), None)


def _command(path: Path) -> str | None:
    """Return key `command` of a JSON file, or None."""
    try:
        found = msgspec.json.decode(path.read_bytes(), type=dict[str, Any]).get("command")
    except (OSError, msgspec.MsgspecError):
        return None
    return found if isinstance(found, str) and found.isprintable() else None
